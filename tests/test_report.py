"""The report of a small folder of results: pages, links, figures, and numbers that agree with their queries."""

import csv
import json
import random
import re
from pathlib import Path

import pytest

from llmbench.accounting import parameter_count
from llmbench.core import RequestError, significant, write_json_atomic
from llmbench.records import write_run
from llmbench.report import build_report
from llmbench.schema import SCHEMA, validate_run
from llmbench.site import broken_links
from llmbench.resolve import resolve_run
from llmbench.spec import run_id, spec_record
from llmbench.store import open_store

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("index", "throughput", "latency", "memory", "scaling", "parity", "runs", "methods")
STEP_S = {"single": 0.49, "ddp": 0.58, "fsdp": 0.80, "zero1": 0.71, "zero2": 0.72, "zero3": 0.87}


def made_run(strategy: str, attempt: int, *, study: str = "small", status: str = "ok", compute: str = "float32"):
    """One run with invented figures, through the same types as a real one."""
    world_size = 1 if strategy == "single" else 2
    chance = random.Random(f"{strategy}{attempt}")
    precision = {"param": "float32", "compute": compute, "reduce": "float32"}
    spec = resolve_run({"study": study, "model": "gpt-tiny", "strategy": strategy, "world_size": world_size, "seq_len": 128,
                        "batch": {"micro": 2, "global_tokens": 1024}, "steps": 12, "warmup_steps": 2, "precision": precision})
    record = spec_record(spec).model_dump() | {"data": {"kind": "synthetic", "fingerprint": "51c0ffee00000000"}}
    record["model"]["parameters"] = parameter_count(spec.model)
    between = 1 + 0.01 * chance.random()
    times = [STEP_S[strategy] * between * (1 + 0.02 * chance.random()) for _ in range(12)]
    loss = [8.4 - k / 10 + (0 if strategy == "single" else 1e-7 * chance.random()) for k in range(12)]
    columns = {"step": list(range(12)), "time_s": times, "tokens": [1024] * 12, "loss": loss, "grad_norm": [1.0] * 12, "lr": [1e-3] * 12}
    ranks = [{"rank": r, "host": "a", "time_s": times, "peak_allocated_bytes": 2**29 + attempt * 2**20, "param_bytes": 2**24,
              "grad_bytes": 2**24, "optimizer_bytes": 2**25, "memory_source": "process_rss"} for r in range(world_size)]
    env = {"platform": "cpu", "hostnames": ["a"], "threads_per_rank": 2 // world_size, "cpu": {"logical_cores": 2}, "framework": "llmbench",
           "versions": {"torch": "2.13.0"}, "devices": [{"rank": r, "name": "Example CPU"} for r in range(world_size)]}
    return validate_run({
        "schema": SCHEMA, "run_id": run_id(spec, attempt), "study": study, "attempt": attempt, "status": status,
        "reason": None if status == "ok" else "rank 1: [1.2](x) GiB <b>asked</b> | refused", "started_at": f"2026-11-21T10:{attempt:02d}:00.000Z",
        "spec": record, "steps": columns, "ranks": ranks, "env": env,
    })


def put(folder: Path, run) -> None:
    write_run(folder / run.study / run.run_id, run)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for attempt in (1, 2, 3):
        for strategy in STEP_S:
            lost = strategy == "zero3" and attempt == 2
            put(folder, made_run(strategy, attempt, status="oom" if lost else "ok"))
    study = {"study": "small", "title": "A small study", "baseline": {"strategy": "single"}, "varies": ["strategy", "world_size"]}
    write_json_atomic(folder / "small" / "study.json", study)
    return folder


@pytest.fixture(scope="module")
def site(results, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "site"
    outcome = build_report(results, out, engine="pandoc", source=ROOT / "reports")
    assert (outcome.runs, outcome.ok, outcome.pages) == (18, 17, len(PAGES) + 18)
    return out


def texts(site: Path) -> dict[str, str]:
    return {f.relative_to(site).as_posix(): f.read_text() for f in sorted(site.rglob("*.html"))}


def rows(site: Path, name: str) -> list[dict[str, str]]:
    with (site / "data" / f"{name}.csv").open(newline="") as f:
        return list(csv.DictReader(f))


def test_every_page_is_there(site):
    assert {f"{p}.html" for p in PAGES} <= set(texts(site))
    assert len(list((site / "runs").glob("*.html"))) == 18
    assert len(rows(site, "../metrics")) == 18 and (site / "report.md").read_text().startswith("# ")


def test_every_link_inside_the_site_resolves(site):
    assert broken_links(site) == []


def test_nothing_is_loaded_from_elsewhere(site):
    for name, text in texts(site).items():
        loaded = re.findall(r'<(?:script|link|img|iframe|source)\b[^>]*?\s(?:src|href)="([^"]+)"', text)
        assert not [u for u in loaded if re.match(r"(https?:)?//", u)], name
        assert "@import" not in text and "fetch(" not in text


def test_every_figure_and_table_has_its_query_and_its_rows(site):
    """The file of the query, run again over the same results, gives the file of the rows."""
    charts = 0
    for name, text in texts(site).items():
        for figure in re.findall(r'<figure id="(?:fig|tbl)-[^"]*".*?</figure>', text, re.DOTALL):
            if 'id="tbl-ranks"' in figure:
                continue  # the run file itself, linked at the top of its page
            links = re.findall(r'href="([^"]+\.(?:sql|csv))"', figure)
            assert {Path(x).suffix for x in links} == {".sql", ".csv"}, f"{name}: {figure[:80]}"
            charts += "vega-chart" in figure
    assert charts >= 8 + 17


def test_queries_give_their_rows(site, results):
    connection = open_store(results)
    queries = sorted((site / "sql").rglob("*.sql"))
    assert len(queries) > 25
    for file in queries:
        name = file.relative_to(site / "sql").with_suffix("").as_posix()
        found = connection.sql(file.read_text())
        kept = rows(site, name)
        assert "order by" in file.read_text().lower() and not re.search(r"\$(study|run_id)", file.read_text()), name
        assert len(found.fetchall()) == len(kept), name
        if kept:
            assert list(kept[0]) == found.columns, name


def test_the_overview_says_what_the_queries_say(site):
    overview = texts(site)["index.html"].replace("\u00a0", " ").replace("&nbsp;", " ")
    fastest = max((r for r in rows(site, "small/throughput") if r["world_size"] == "2" and r["tokens_per_s"]),
                  key=lambda r: float(r["tokens_per_s"]))
    shown = [significant(float(fastest[k])) for k in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high")]
    assert fastest["strategy"] == "ddp"
    assert f"ddp trains gpt-tiny fastest at 2 ranks: {shown[0]} tokens/s (95 % {shown[1]} to {shown[2]})" in overview
    assert f"{shown[0]} ({shown[1]} to {shown[2]}) tokens/s" in overview, "the table of winners"
    least = min((r for r in rows(site, "small/memory") if r["world_size"] == "2"), key=lambda r: float(r["peak_memory_gib"]))
    assert significant(float(least["peak_memory_gib"])) in overview
    assert "17 of 18" in overview and "comparable" in overview and "not comparable" not in overview


def test_charts_are_specifications_with_words(site):
    text = texts(site)["throughput.html"]
    spec = json.loads(re.search(r'<script[^>]*data-chart="[^"]*"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    assert "ddp · 2 ranks" in spec["description"] and spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")
    assert 'aria-label="Throughput' in text


def test_a_failed_run_is_a_row_and_its_reason_stays_text(site):
    runs, lost = texts(site)["runs.html"], next((site / "runs").glob("small.zero3-w2.*.2.html")).read_text()
    for text in (runs, lost):
        assert "oom" in text and "&lt;b&gt;asked&lt;/b&gt;" in text and "<b>asked" not in text and 'href="x"' not in text


def test_no_winner_without_a_comparable_verdict(tmp_path):
    for attempt in (1, 2, 3):
        put(tmp_path / "r", made_run("ddp", attempt))
        put(tmp_path / "r", made_run("zero1", attempt, compute="bfloat16"))
    outcome = build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    overview = texts(outcome.out)["index.html"]
    assert "not comparable" in overview and "precision.compute" in overview
    assert "fastest at 2 ranks" not in (outcome.out / "report.md").read_text()


def test_one_repeat_says_that_it_knows_nothing_about_repeats(tmp_path):
    for strategy in ("ddp", "zero1"):
        put(tmp_path / "r", made_run(strategy, 1))
    outcome = build_report([tmp_path / "r"], tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    assert "over steps only: one run" in outcome.headlines[0]


def test_broken_files_are_named_and_the_rest_is_reported(tmp_path):
    put(tmp_path / "r", made_run("ddp", 1))
    broken = tmp_path / "r/small/cut/run.json"
    broken.parent.mkdir()
    broken.write_text('{"schema": "llmbench.run/1", "run')
    outcome = build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    assert outcome.runs == 1 and "small/cut/run.json" in texts(outcome.out)["runs.html"]


def test_nothing_finished_is_said_too(tmp_path):
    put(tmp_path / "r", made_run("ddp", 1, status="crash"))
    outcome = build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    assert outcome.ok == 0 and "No run of gpt-tiny finished" in outcome.headlines[0]


def test_without_results_the_message_says_what_to_type(tmp_path):
    (tmp_path / "r").mkdir()
    for wrong in (tmp_path / "r", tmp_path / "missing"):
        with pytest.raises(RequestError) as caught:
            build_report(wrong, tmp_path / "site", engine="pandoc", source=ROOT / "reports")
        assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(RequestError, match="llmbench sweep"):
        build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    assert not (tmp_path / "site").exists()


def test_sources_are_left_as_they_are(site):
    assert not (ROOT / "reports" / "_generated").exists() and not (ROOT / "reports" / "_variables.yml").exists()
