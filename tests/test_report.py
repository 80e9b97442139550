"""The report of a small folder of results: pages, links, figures, and numbers that agree with their
queries.
"""

import csv
import html
import json
import random
import re
import shutil
from pathlib import Path

import pytest

from llmbench.analysis.stats import spread_of_pairs
from llmbench.analysis.steps import spent
from llmbench.cli.reading import report
from llmbench.compare.compare import interleaved_pairs
from llmbench.compare.verb import compare_words
from llmbench.compare.words import notes
from llmbench.core.errors import LlmbenchError, RequestError
from llmbench.core.files import write_json_atomic
from llmbench.core.glossary.table import DEFINED, ENTRIES, heading_entry
from llmbench.core.numbers import significant
from llmbench.core.records import write_run
from llmbench.core.schema import SCHEMA, dump_run, validate_run
from llmbench.plan.flops import parameter_count
from llmbench.report.answer import answer_of
from llmbench.report.build import build_report, study_counts
from llmbench.report.methods import columns_of
from llmbench.report.pages.detectable import detectable_rows
from llmbench.report.pages.overview import answer_sentences, fairness_note, single_sentence
from llmbench.report.pages.runpages import run_records
from llmbench.report.site.links import broken_links
from llmbench.report.workbench import Study, Workbench
from llmbench.spec.request import run_id, spec_record
from llmbench.spec.resolve import resolve_run
from llmbench.store.database import executed, open_store

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    "index",
    "compare",
    "history",
    "models",
    "published",
    "generations",
    "plan",
    "advice",
    "goodput",
    "ask",
    "planned",
    "sources",
    "runs",
    "methods",
    "glossary",
    "faults",
)
LIVE = {
    "single": 130 * 2**20,
    "ddp": 130 * 2**20,
    "fsdp": 94 * 2**20,
    "zero1": 120 * 2**20,
    "zero2": 120 * 2**20,
    "zero3": 112 * 2**20,
}
GROWTH = {"ddp": 2**28}  # of the process: ddp's grew least, and its tensors take most
STEP_S = {"single": 0.49, "ddp": 0.58, "fsdp": 0.80, "zero1": 0.71, "zero2": 0.72, "zero3": 0.87}


def made_run(
    strategy: str,
    attempt: int,
    *,
    study: str = "small",
    status: str = "ok",
    compute: str = "float32",
    asked=None,
    facts=None,
    step_s=None,
    times=None,
):
    """One run with invented figures, through the same types as a real one."""
    world_size = 1 if strategy == "single" else 2
    chance = random.Random(f"{strategy}{attempt}")
    precision = {"param": "float32", "compute": compute, "reduce": "float32"}
    spec = resolve_run(
        {
            "study": study,
            "model": "gpt-tiny",
            "strategy": strategy,
            "world_size": world_size,
            "seq_len": 128,
            "batch": {"micro": 2, "global_tokens": 1024},
            "steps": 12,
            "warmup_steps": 2,
            "precision": precision,
        }
        | (asked or {})
    )
    record = spec_record(spec).model_dump() | {
        "data": {"kind": "synthetic", "fingerprint": "51c0ffee00000000"}
    }
    record["model"]["parameters"] = parameter_count(spec.model)
    between = 1 + 0.01 * chance.random()
    steps = spec.steps
    times = times or [
        (step_s or STEP_S[strategy]) * between * (1 + 0.02 * chance.random()) for _ in range(steps)
    ]
    loss = [
        8.4 - k / 10 + (0 if strategy == "single" else 1e-7 * chance.random()) for k in range(steps)
    ]
    columns = {
        "step": list(range(steps)),
        "time_s": times,
        "tokens": [1024] * steps,
        "loss": loss,
        "grad_norm": [1.0] * steps,
        "lr": [1e-3] * steps,
    }
    ranks = [
        {
            "rank": r,
            "host": "a",
            "time_s": times,
            "peak_allocated_bytes": GROWTH.get(strategy, 2**29) + attempt * 2**20,
            "param_bytes": 2**24,
            "grad_bytes": 2**24,
            "optimizer_bytes": 2**25,
            "memory_source": "process_rss",
            "live_tensor_peak_bytes": LIVE[strategy],
        }
        for r in range(world_size)
    ]
    env = {
        "platform": "cpu",
        "hostnames": ["a"],
        "threads_per_rank": 2 // world_size,
        "cpu": {"logical_cores": 2},
        "framework": "llmbench",
        "versions": {"torch": "2.13.0"},
        "devices": [
            {"rank": r, "name": "Example CPU", "matmul_tflops": 0.2} for r in range(world_size)
        ],
    }
    return validate_run(
        {
            "schema": SCHEMA,
            "run_id": run_id(spec, attempt),
            "study": study,
            "attempt": attempt,
            "status": status,
            "reason": None if status == "ok" else "rank 1: [1.2](x) GiB <b>asked</b> | refused",
            "started_at": f"2026-11-21T10:{attempt:02d}:00.000Z",
            "spec": record,
            "steps": columns,
            "ranks": ranks,
            "env": env,
        }
        | (facts or {})
    )


def trained_by(framework: str, attempt: int, *, step_s: float = 0.5, **more):
    """A run of the same request under a framework, with invented figures."""
    run = dump_run(
        made_run(
            "single",
            attempt,
            study="who",
            asked={"name": f"single-{framework}"},
            step_s=step_s,
            **more,
        )
    )
    run["env"] |= {"framework": framework, "versions": {"torch": "2.13.0", framework: "9.9"}}
    if framework != "llmbench":
        told = [
            {"kind": "from_request", "text": "…"},
            {"kind": "not_honoured", "text": "precision.reduce = float32: [its](own) <b>type</b>"},
        ]
        run |= {
            "source": {"kind": "import", "format": "callback", "file": None, "sha256": None},
            "events": told,
        }
    return validate_run(run)


def put(folder: Path, run) -> None:
    write_run(folder / run.study / run.run_id, run)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for attempt in (1, 2, 3):
        for strategy in STEP_S:
            lost = strategy == "zero3" and attempt == 2
            put(folder, made_run(strategy, attempt, status="oom" if lost else "ok"))
    study = {
        "study": "small",
        "title": "A small study",
        "baseline": {"strategy": "single"},
        "varies": ["strategy", "world_size"],
    }
    write_json_atomic(folder / "small" / "study.json", study)
    return folder


def copied_sources(folder: Path) -> Path:
    """The sources of the report without what was published with them."""
    return shutil.copytree(
        ROOT / "reports",
        folder,
        ignore=shutil.ignore_patterns("published", "_site", "images", "assets"),
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    return copied_sources(tmp_path_factory.mktemp("plain") / "reports")


@pytest.fixture(scope="module")
def site(results, plain, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "site"
    outcome = build_report(results, out, engine="pandoc", source=plain)
    assert (outcome.runs, outcome.ok, outcome.pages) == (18, 17, len(PAGES) + 1 + 18)
    return out


def texts(site: Path) -> dict[str, str]:
    return {f.relative_to(site).as_posix(): f.read_text() for f in sorted(site.rglob("*.html"))}


def section(site: Path, study: str, name: str) -> str:
    """A section of a study's page, from its heading to the next; empty where it has none."""
    text = (site / f"study-{study}.html").read_text()
    _, found, rest = text.partition(f'<h2 id="{name}">')
    return rest.partition('<h2 id="')[0] if found else ""


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
        loaded = re.findall(
            r'<(?:script|link|img|iframe|source)\b[^>]*?\s(?:src|href)="([^"]+)"', text
        )
        assert not [u for u in loaded if re.match(r"(https?:)?//", u)], name
        assert "@import" not in text
        # The page SQL fetches the query that its address names, below sql/ of the same site.
        fetched = ["named"] if name == "ask.html" else []
        assert re.findall(r"fetch\(([^)]*)\)", text) == fetched, name


SOURCES = (
    {".sql", ".csv"},
    {".json", ".csv"},
    {".csv"},
)  # a query; a bench file; a profiler's table, which no query reads


def test_every_figure_and_table_has_its_query_and_its_rows(site):
    """The file of the query, run again over the same results, gives the file of the rows."""
    charts = 0
    for name, text in texts(site).items():
        for figure in re.findall(r'<figure id="(?:fig|tbl)-[^"]*".*?</figure>', text, re.DOTALL):
            if 'id="tbl-ranks"' in figure:
                continue  # the run file itself, linked at the top of its page
            links = re.findall(r'href="([^"]+\.(?:sql|csv))"', figure)
            assert {Path(x).suffix for x in links} in SOURCES, f"{name}: {figure[:80]}"
            charts += "vega-chart" in figure
    assert charts >= 8 + 17


def test_queries_give_their_rows(site, results):
    connection = open_store(results)
    queries = sorted((site / "sql").rglob("*.sql"))
    assert len(queries) > 25
    for file in queries:
        name = file.relative_to(site / "sql").with_suffix("").as_posix()
        found = executed(connection, file.read_text())  # reads the published rows, too
        kept = rows(site, name)
        assert "order by" in file.read_text().lower() and not re.search(
            r"\$(study|run_id)", file.read_text()
        ), name
        columns = [column[0] for column in found.description]
        assert len(found.fetchall()) == len(kept), name
        if kept:
            assert list(kept[0]) == columns, name


def test_the_overview_says_what_the_queries_say(site):
    overview = texts(site)["study-small.html"].replace("\u00a0", " ").replace("&nbsp;", " ")
    fastest = max(
        (r for r in rows(site, "small/throughput") if r["world_size"] == "2" and r["tokens_per_s"]),
        key=lambda r: float(r["tokens_per_s"]),
    )
    shown = [
        significant(float(fastest[k]))
        for k in ("tokens_per_s", "tokens_per_s_low", "tokens_per_s_high")
    ]
    assert fastest["strategy"] == "ddp"
    assert (
        f"ddp trains gpt-tiny fastest at 2 ranks: {shown[0]} tokens/s (95 % {shown[1]} to"
        f" {shown[2]})" in overview
    )
    assert f"{shown[0]} ({shown[1]} to {shown[2]}) tokens/s" in overview, "the table of winners"
    least = min(
        (r for r in rows(site, "small/memory") if r["world_size"] == "2"),
        key=lambda r: float(r["live_memory_gib"]),
    )
    assert (
        least["strategy"] == "fsdp"
        and f"| Least memory at 2 ranks | **fsdp** | fsdp: {significant(float(least['live_memory_gib']))} ("
        in (site / "report.md").read_text()
    )
    front = texts(site)["index.html"].replace("\u00a0", " ").replace("&nbsp;", " ")
    assert f"{shown[0]} tokens/s (95 % {shown[1]} to {shown[2]})" in front, "the study's card"
    assert "says nothing about GPUs" in overview
    assert "17 of 18" in overview and "comparable" in overview and "not comparable" not in overview


def test_growth_of_a_process_names_no_winner(tmp_path):
    """Runs that did not count their tensors, as all did on a CPU before November 2026."""
    for strategy in ("ddp", "fsdp"):
        for attempt in (1, 2, 3):
            run = dump_run(made_run(strategy, attempt))
            for rank in run["ranks"]:
                del rank["live_tensor_peak_bytes"]
            put(tmp_path / "r", validate_run(run))
    build_report(tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    (line,) = re.findall(
        r"Least memory at 2 ranks.*", (tmp_path / "site" / "report.md").read_text()
    )
    assert "not named" in line and "does not decide" in line
    assert "needs" not in (tmp_path / "site" / "report.md").read_text()
    assert left_over_markup(tmp_path / "site") == []


def left_over_markup(site: Path) -> list[str]:
    """Pages whose text has a mark of the sources that pandoc did not take for one."""
    folded = re.compile(r"<(pre|code|script|style)\b.*?</\1>", re.DOTALL)
    marks = re.compile(r":::|\{#[a-z]|\{\.[a-z]")
    found = {}
    for page in site.rglob("*.html"):
        text = re.sub(r"<[^>]*>", "", folded.sub("", page.read_text(encoding="utf-8")))
        if mark := marks.search(text):
            found[page.name] = text[max(0, mark.start() - 40) : mark.end() + 20]
    return [f"{name}: {text}" for name, text in sorted(found.items())]


def test_no_mark_of_the_sources_is_left_in_a_text(site, rich, tmp_path):
    assert left_over_markup(site) == [] == left_over_markup(rich)
    (tmp_path / "page.html").write_text("<p>drawn. ::: {#fig-a}</p><code>::: x</code>")
    assert left_over_markup(tmp_path) == ["page.html: drawn. ::: {#fig-a}"]


def test_charts_are_specifications_with_words(site):
    text = section(site, "small", "throughput")
    spec = json.loads(
        re.search(r'<script[^>]*data-chart="[^"]*"[^>]*>(.*?)</script>', text, re.DOTALL)[1]
    )
    assert "ddp · 2 ranks" in spec["description"] and spec["$schema"].startswith(
        "https://vega.github.io/schema/vega-lite/"
    )
    assert 'aria-label="Throughput' in text


def test_a_failed_run_is_a_row_and_its_reason_stays_text(site):
    runs, lost = (
        texts(site)["runs.html"],
        next((site / "runs").glob("small.zero3-w2.*.2.html")).read_text(),
    )
    for text in (runs, lost):
        assert (
            "oom" in text
            and "&lt;b&gt;asked&lt;/b&gt;" in text
            and "<b>asked" not in text
            and 'href="x"' not in text
        )


def test_no_winner_without_a_comparable_verdict(tmp_path):
    for attempt in (1, 2, 3):
        put(tmp_path / "r", made_run("ddp", attempt))
        put(tmp_path / "r", made_run("zero1", attempt, compute="bfloat16"))
    outcome = build_report(
        tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports"
    )
    overview = texts(outcome.out)["study-small.html"]
    assert "not comparable" in overview and "precision.compute" in overview
    assert "fastest at 2 ranks" not in (outcome.out / "report.md").read_text()


def test_one_repeat_says_that_it_knows_nothing_about_repeats(tmp_path):
    for strategy in ("ddp", "zero1"):
        put(tmp_path / "r", made_run(strategy, 1))
    outcome = build_report(
        [tmp_path / "r"], tmp_path / "site", engine="pandoc", source=ROOT / "reports"
    )
    assert "over steps only: one run" in outcome.headlines[0]


def test_broken_files_are_named_and_the_rest_is_reported(tmp_path):
    put(tmp_path / "r", made_run("ddp", 1))
    broken = tmp_path / "r/small/cut/run.json"
    broken.parent.mkdir()
    broken.write_text('{"schema": "llmbench.run/1", "run')
    outcome = build_report(
        tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports"
    )
    assert outcome.runs == 1 and "small/cut/run.json" in texts(outcome.out)["runs.html"]


def test_nothing_finished_is_said_too(tmp_path):
    put(tmp_path / "r", made_run("ddp", 1, status="crash"))
    outcome = build_report(
        tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports"
    )
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


def test_sources_are_left_as_they_are(site, plain):
    assert not (plain / "_generated").exists() and not (plain / "_variables.yml").exists()


# ---- pages that are made only where there is something to show

COLLECTIVES = {
    "collectives": [
        {"kind": "all_reduce", "calls": 8, "bytes": 34_000_000, "time_s": 0.1, "exposed_s": 0.05}
    ],
    "window": {"steps": 2, "time_s": 1.0},
    "transfer": {"all_reduce_bus_gb_s": 1.9},
}
KERNELS = {
    "steps": 2,
    "rank": 0,
    "kernels": [
        {"name": "aten::mm", "calls": 2, "self_time_s": 0.8, "share_pct": 80.0, "where": "host"},
        {"name": "aten::add_", "calls": 2, "self_time_s": 0.1, "share_pct": 10.0, "where": "host"},
    ],
}


def bench_facts(seed: int = 0) -> dict:
    chance = random.Random(seed)

    def peer(name, cost):
        repeat = {
            "start_s": 1.0,
            "time_s": [0.05 * cost * chance.uniform(0.99, 1.01) for _ in range(20)],
            "cpu_s": [0.05 * cost] * 20,
            "instructions": [int(1e8 * cost)] * 20,
            "page_faults": [3] * 20,
            "loss": [8.0] * 20,
            "peak_rss_bytes": 2**29,
        }
        return {
            "name": name,
            "title": name,
            "versions": {},
            "differs": "",
            "status": "ok",
            "reason": None,
            "repeats": [repeat],
        }

    spec = {
        "model": {"name": "llama-tiny"},
        "seq_len": 64,
        "batch": {"global_tokens": 128},
        "precision": {"compute": "float32"},
    }
    machine = {
        "cpu": {"name": "Example CPU"},
        "python": "3.11",
        "git": {"commit": "0123abc"},
        "versions": {"torch": "2.13.0"},
    }
    return {
        "schema": "llmbench.peers/1",
        "spec": spec,
        "threads": 1,
        "rounds": 20,
        "warmup_rounds": 5,
        "started_at": "2026-11-21T06:30:01.645Z",
        **machine,
        "peers": [
            peer("bare loop", 1),
            peer("bare loop, again", 1),
            peer("llmbench", 1.001),
            peer("Slow", 1.08),
        ],
    }


def growth_facts() -> dict:
    def cost(wall_s):
        return {"wall_s": wall_s, "cpu_s": wall_s, "peak_mib": 90.0, "exit_code": 0}

    sizes = [
        {"runs": n, "first_chart": cost(0.4 + n / 5000), "next_query": cost(0.2), "site": None}
        for n in (10, 100)
    ]
    sweep = cost(6.0) | {"direct": True, "runs": 2, "trained_s": [1.4, 1.6]}
    return {
        "schema": "llmbench.growth/1",
        "starts": {"help": [cost(0.06)]},
        "sweeps": [sweep],
        "sizes": sizes,
    }


def ancestor_facts() -> dict:
    row = {"of": "A", "did": "train", "now": "llmbench run", "state": "works", "seconds": 1.0}
    row |= {"printed": "1 of 1 runs are ok", "lacks": None}
    return {"schema": "llmbench.ancestors/1", "made": "2026-11-23T00:00:00Z", "rows": [row]}


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    "The sources of the report with bench files."
    folder = copied_sources(tmp_path_factory.mktemp("sources") / "reports")
    for name, facts in (
        ("overhead", bench_facts()),
        ("peers", bench_facts(1)),
        ("growth", growth_facts()),
        ("ancestors", ancestor_facts()),
    ):
        write_json_atomic(folder / "published" / "bench" / f"{name}.json", facts)
    return folder


@pytest.fixture(scope="module")
def rich(sources, tmp_path_factory) -> Path:
    """A site with a study of strategies that was profiled, one unsteady set in it, and a study of
    settings.
    """
    folder = tmp_path_factory.mktemp("rich")
    longer = {"steps": 32}
    for attempt in (1, 2, 3):
        put(folder, made_run("single", attempt, asked=longer))
        put(folder, made_run("ddp", attempt, asked=longer, facts=COLLECTIVES))
        moved = [0.8 * (1 + 0.01 * (k % 5)) * (1.3 if k >= 20 else 1) for k in range(32)]
        put(folder, made_run("fsdp", attempt, asked=longer, times=moved if attempt == 2 else None))
        for name, settings, step_s in (
            ("plain", {}, 0.9),
            ("bf16", {"precision": "bf16"}, 0.6),
            ("fused", {"optimizer": {"fused": True}}, 0.9),
        ):
            put(
                folder,
                made_run(
                    "single", attempt, study="tuned", asked={"name": name} | settings, step_s=step_s
                ),
            )
        for framework, step_s in (("llmbench", 0.5), ("lightning", 0.4), ("deepspeed", 0.7)):
            put(folder, trained_by(framework, attempt, step_s=step_s))
        put(folder, trained_by("torchtitan", attempt, status="refused"))
    profiled = next((folder / "small").glob("small.ddp-w2.*.1"))
    write_json_atomic(profiled / "kernels-rank-000.json", KERNELS)
    study = {
        "study": "small",
        "title": "A small study",
        "baseline": {"strategy": "single"},
        "varies": ["strategy", "world_size"],
    }
    write_json_atomic(folder / "small" / "study.json", study)
    tuned = {
        "study": "tuned",
        "title": "What settings add",
        "baseline": {"name": "plain"},
        "varies": ["precision", "optimizer.fused"],
    }
    write_json_atomic(folder / "tuned" / "study.json", tuned)
    who = {
        "study": "who",
        "title": "Who trains it",
        "baseline": {"framework": "llmbench"},
        "varies": ["strategy", "framework"],
    }
    write_json_atomic(folder / "who" / "study.json", who)
    out = tmp_path_factory.mktemp("out") / "site"
    build_report(folder, out, engine="pandoc", source=sources)
    return out


OPTIONAL = ("peers", "growth", "ancestors")
OF_SOME = ("spending", "settings", "frameworks")  # sections of some studies


def test_a_page_with_nothing_to_show_is_not_made_and_not_linked(site, rich):
    plain, full = texts(site), texts(rich)
    assert not {f"{p}.html" for p in OPTIONAL} & set(plain) and {
        f"{p}.html" for p in OPTIONAL
    } <= set(full)
    assert all(f'href="{p}.html"' not in text for p in OPTIONAL for text in plain.values())
    assert (
        all(f'href="{p}.html"' in full["index.html"] for p in OPTIONAL) and broken_links(rich) == []
    )
    assert not any(section(site, "small", name) for name in OF_SOME)
    studies = zip(("small", "tuned", "who"), OF_SOME, strict=True)
    assert all(section(rich, study, name) for study, name in studies)


def test_every_column_is_defined_on_the_page_of_methods(site):
    text = texts(site)["methods.html"]
    for topic in (topic for topics in DEFINED.values() for topic in topics):
        assert f'id="{topic.anchor}"' in text
        for column in (name for names in columns_of(topic).values() for name in names):
            assert f"<code>{column}</code>" in text


def known_heading(text: str) -> bool:
    try:
        return bool(heading_entry(text))
    except KeyError:
        return False


def table_headings(site) -> dict[str, str]:
    """Every heading of a column of the site and of report.md, with a page that has it."""
    found = {}
    for page in site.rglob("*.html"):
        for head in re.findall(r"<th\b[^>]*>(.*?)</th>", page.read_text(), re.DOTALL):
            text = html.unescape(re.sub(r"<[^>]+>", "", head)).strip()
            found[" ".join(text.split())] = page.name
    lines = (site / "report.md").read_text().splitlines()
    for head, rule in zip(lines, lines[1:]):
        if re.fullmatch(r"\|[-:|]+\|", rule):
            found |= {cell.strip(): "report.md" for cell in head.strip("|").split("|")}
    return found


def test_every_heading_of_the_site_is_in_the_glossary_and_carries_its_unit(site, rich):
    found = table_headings(site) | table_headings(rich)
    assert len(found) > 80 and "report.md" in found.values()
    unknown = {h: page for h, page in found.items() if not known_heading(h)}
    assert not unknown, unknown
    physical = r"(s|ms|GiB|MiB|GB|GB/s|tokens/s|TFLOP/s|%|USD .*|bytes)(; .*)?"
    bare = [
        h for h in found
        if re.fullmatch(physical, heading_entry(h).unit)
        and not re.search(r"\(|/s|, ms|, GiB|Seconds|Share", h)
    ]  # fmt: skip
    assert not bare, f"write the unit into the heading: {bare}"


def test_the_page_of_the_glossary_has_every_entry_and_every_link_of_it_leads_somewhere(site):
    page, methods = ((site / f"{name}.html").read_text() for name in ("glossary", "methods"))
    for entry in ENTRIES:
        assert f'id="{entry.anchor}"' in page
    for anchor in re.findall(r'href="methods\.html#([^"]+)"', page):
        assert f'id="{anchor}"' in methods
    assert 'href="glossary.html"' in (site / "index.html").read_text()


def test_every_header_of_a_table_leads_to_its_entry(site, rich):
    for folder in (site, rich):
        for name, page in texts(folder).items():
            for head in re.findall(r"<th\b[^>]*>(.*?)</th>", page, re.DOTALL):
                words = html.unescape(re.sub(r"<[^>]+>", "", head))
                entry = heading_entry(" ".join(words.split()))
                assert name == "glossary.html" or f"glossary.html#{entry.anchor}" in head, name


def test_the_bound_stands_beside_the_throughput(rich):
    text, found = section(rich, "small", "throughput"), rows(rich, "small/throughput")
    assert all(float(r["ceiling_tokens_per_s"]) > float(r["tokens_per_s"]) for r in found)
    assert (
        significant(float(found[0]["ceiling_tokens_per_s"])) in text and "Theoretical bound" in text
    )


def test_an_unsteady_repeat_has_its_sign_and_the_others_have_none(rich):
    full = texts(rich)
    for name in ("throughput", "latency", "memory", "scaling", "runs"):
        text = section(rich, "small", name)
        assert "△\u00a020" in text.replace("&nbsp;", "\u00a0"), name
    assert "marks repeats whose step time changed" in full["study-small.html"]
    assert "marks repeats whose step time changed" not in full["study-tuned.html"]
    pages = {name: "△" in text for name, text in full.items() if "small.fsdp-w2" in name}
    assert sorted(pages.values()) == [False, False, True]


def test_the_time_of_a_step_is_taken_apart(rich):
    text, found = section(rich, "small", "spending"), rows(rich, "small/collectives")
    assert [(r["kind"], r["calls"], r["exposed_s"]) for r in found] == [
        ("all_reduce", "4.0", "0.025")
    ]
    assert float(found[0]["bus_gb_s"]) == pytest.approx(34e6 / 0.1 / 1e9)
    kinds = rows(rich, "small/kernel_kinds")
    assert (
        len(kinds) == 1
        and float(kinds[0]["matrix products"]) == pytest.approx(400)
        and float(kinds[0]["total_ms"]) == pytest.approx(500)
    )
    assert "5 % exposed" in text and not section(rich, "tuned", "spending")


def test_settings_are_compared_with_their_baseline(rich):
    text = section(rich, "tuned", "settings").replace("&nbsp;", "\u00a0")
    assert re.search(
        r"<strong>bf16</strong> trains 1\.\d\d \(1\.\d\d to 1\.\d\d\) times as fast as plain by"
        r" time spent",
        text,
    )
    assert "same training" in text and not section(rich, "small", "settings")
    assert not section(rich, "tuned", "scaling") and not section(rich, "tuned", "parity")


def test_one_request_on_two_cards_is_two_sets_everywhere(plain, tmp_path):
    """A planted 30 % between the cards, in the names, the bars, the steps and the scaling of every
    page.
    """
    folder = tmp_path / "results"
    for attempt in range(1, 7):
        card, slower = ("Card A", 1.0) if attempt % 2 else ("Card B", 1.3)
        for strategy in ("single", "ddp"):
            run = made_run(strategy, attempt, study="cards", step_s=STEP_S[strategy] * slower)
            facts = run.model_dump(by_alias=True)
            facts["env"]["devices"] = [d | {"name": card} for d in facts["env"]["devices"]]
            put(folder, validate_run(facts))
    site = tmp_path / "site"
    build_report(folder, site, engine="pandoc", source=plain)
    rates = {
        r["hardware"]: float(r["tokens_per_s"])
        for r in rows(site, "cards/throughput")
        if r["strategy"] == "ddp"
    }
    assert rates["Card A"] == pytest.approx(1.3 * rates["Card B"], rel=0.02)
    for name, sets in {
        "step_time": 4,
        "memory": 4,
        "scaling": 4,
        "contenders": 12,
        "step_spread": 4,
        "parity_worst": 2,
    }.items():
        assert len(rows(site, f"cards/{name}")) == sets, name
    labels = {
        f"{strategy} · {card}"
        for strategy in ("single · 1 rank", "ddp · 2 ranks")
        for card in ("Card A", "Card B")
    }
    for name in ("throughput", "latency", "memory", "scaling"):
        assert all(label in section(site, "cards", name) for label in labels), name
    assert {r["speedup"] for r in rows(site, "cards/scaling") if r["strategy"] == "single"} == {
        "1.0"
    }, "each card is measured against itself"


def test_frameworks_are_compared_with_this_harness(rich):
    text = section(rich, "who", "frameworks").replace("&nbsp;", "\u00a0")
    assert re.search(
        r"<strong>lightning 9.9 is faster</strong>: 1\.2\d \(1\.2\d to 1\.\d\d\) times as fast as"
        r" llmbench, to the same loss",
        text,
    )
    assert (
        re.search(r"<strong>deepspeed 9.9 is slower</strong>: 0\.7", text)
        and "<strong>torchtitan 9.9</strong> did not train" in text
    )
    assert "same training" in text and "&lt;b&gt;type" in text
    sets = {r["framework"]: r for r in rows(rich, "who/frameworks")}
    assert (
        len(sets) == 4
        and sets["lightning"]["repeats"] == "3"
        and sets["torchtitan"]["tokens_per_s"] == ""
    )
    assert significant(float(sets["lightning"]["tokens_per_s"])) in text
    said = rows(rich, "who/frameworks_said")
    assert [(r["frameworks"], r["number"]) for r in said] == [
        ("deepspeed, lightning, torchtitan", "3")
    ]
    assert not any(section(rich, "who", name) for name in ("settings", "scaling", "parity"))


def test_the_bench_pages_say_what_the_files_say(rich):
    peers, growth = (texts(rich)[f"{p}.html"] for p in ("peers", "growth"))
    found = rows(rich, "bench/peers")
    assert [r["peer"] for r in found] == ["bare loop", "bare loop, again", "llmbench", "Slow"]
    assert (
        float(found[3]["witness_ratio"]) == pytest.approx(1 / 1.08)
        and significant(float(found[3]["time_ratio"]), 4) in peers
    )
    assert found[3]["time_ratio_low"] == "", (
        "one process says nothing about the next, however many steps it took"
    )
    assert (
        "The harness trains" in peers
        and "1.50 s" in growth
        and (rich / "data/bench/growth.json").is_file()
    )


def test_every_figure_of_these_pages_has_its_sources_too(rich):
    test_every_figure_and_table_has_its_query_and_its_rows(rich)


def test_a_broken_bench_file_is_named(results, tmp_path):
    shutil.copytree(
        ROOT / "reports",
        tmp_path / "reports",
        ignore=shutil.ignore_patterns("published", "_site", "images"),
    )
    write_json_atomic(
        tmp_path / "reports" / "published" / "bench" / "growth.json",
        {"schema": "llmbench.growth/1"},
    )
    with pytest.raises(LlmbenchError, match="growth"):
        build_report(results, tmp_path / "site", engine="pandoc", source=tmp_path / "reports")
    assert not (tmp_path / "site").exists()


def test_a_log_that_counts_tokens_has_one_throughput_on_every_page(tmp_path):
    """Neither a request nor a strategy is known: the tokens are the counted ones, the label is the
    run's own name, else its framework.
    """
    for attempt, name in ((1, "night-2"), (2, None)):
        run = dump_run(made_run("ddp", attempt))
        run["spec"]["batch"]["global_tokens"] = run["spec"]["hash"] = None
        run["spec"]["strategy"]["name"], run["spec"]["name"] = None, name
        run["steps"]["tokens"] = [1024, 1025] * 6
        put(tmp_path / "r", validate_run(run | {"env": run["env"] | {"framework": "nanoGPT"}}))
    out = tmp_path / "site"
    build_report(tmp_path / "r", out, engine="pandoc", source=copied_sources(tmp_path / "s"))
    first = (out / "study-small.html").read_text()
    through = rows(out, "small/throughput")
    for label in ("night-2 · 2 ranks", "nanoGPT · 2 ranks"):
        assert label in first and label in section(out, "small", "throughput")
    assert len(through) == 2
    for row in through:
        assert float(row["tokens_per_s"]) > 0
        assert significant(float(row["tokens_per_s"])) in first
    assert "unknown · 2 ranks" not in "".join(texts(out).values())


def test_the_command_says_whose_studies_the_site_has(tmp_path, capsys):
    """Without --results the published studies are on the site, too; the help says so."""
    put(tmp_path / "r", made_run("ddp", 1))
    assert report(results=tmp_path / "r", site=tmp_path / "site", engine="pandoc") == 0
    said = capsys.readouterr().out
    assert "studies: 1 of your own, 0 published with llmbench\n" in said
    published = ROOT / "reports/published/cpu-memory"
    assert study_counts([tmp_path / "r", published], ROOT / "reports") == (1, 1)


def test_the_overview_and_compare_decide_alike(tmp_path):
    """Two loops whose undisturbed steps are equal, one of them with long steps: time spent decides,
    and both say what explains it.
    """
    for attempt in range(1, 5):
        for strategy, longer in (("ddp", 1.0), ("zero1", 2.0)):
            step_s = 0.6 * random.Random(f"{strategy}{attempt}").uniform(0.99, 1.01)
            times = [step_s * (1 if k % 3 else longer) for k in range(32)]
            put(tmp_path / "r", made_run(strategy, attempt, asked={"steps": 32}, times=times))
    said = compare_words("strategy=ddp", "strategy=zero1", tmp_path / "r")
    outcome = build_report(
        tmp_path / "r", tmp_path / "site", engine="pandoc", source=ROOT / "reports"
    )
    assert said.outcome == "faster" and not said.calm.excludes(1.0)
    for text in (outcome.headlines[0], "\n".join(notes(said))):
        assert "zero1: 40 of 120 steps took 2.0 times the median step of their run" in text
    assert outcome.headlines[0].startswith("ddp trains") and "by time spent" in outcome.headlines[0]


def test_the_latency_page_knows_of_interleaved_pairs_as_compare_does(tmp_path):
    """The published interleaved study: its spread is that of the pairs that compare uses, without
    the load of the machine that both runs of a pair had.
    """
    published = ROOT / "reports" / "published" / "cpu-turns"
    said = compare_words("name=plain", "name=fused", published)
    bench = Workbench(open_store(published), copied_sources(tmp_path / "reports"))
    contenders = bench.rows("contenders", "cpu-turns")
    labels = [
        next(r["label"] for r in contenders if r["name"] == name) for name in ("fused", "plain")
    ]
    (row,) = detectable_rows(contenders, labels)
    assert (
        row["label"] == f"{labels[1]} against {labels[0]}"
        and row["interleaved"]
        and said.interleaved
    )
    assert row["spread"] == pytest.approx(spread_of_pairs(interleaved_pairs(said.a, said.b), spent))
    assert row["shown"] < 1 / said.speed.estimate - 1, (
        "what compare shows, the page does not call too small to be shown"
    )


def test_a_contest_is_judged_by_its_own_members_as_compare_does(tmp_path):
    """The published study of hosts compares hosts with hosts: unequal cores between one, two and
    three forbid no winner among two.
    """
    published = ROOT / "reports" / "published" / "cpu-nodes-1gbit"
    store = open_store(published)
    bench = Workbench(store, copied_sources(tmp_path / "reports"), runs=run_records([published]))
    answer = answer_of(bench, Study("cpu-nodes-1gbit", "Hosts", varies=("strategy", "world_size")))
    assert answer.fairness.comparable is False and answer.fair_places == ["2 ranks", "3 ranks"]
    for ranks in (2, 3):
        said = compare_words(f"name=ddp-w{ranks}", f"name=fsdp-w{ranks}", published)
        decision = next(answer.speed(c) for c in answer.contests if c.world_size == ranks)
        assert said.outcome == "faster" and decision.claimed and decision.order[0].name == "ddp"
        assert decision.ratio.estimate == pytest.approx(said.speed.estimate)
    assert compare_words("strategy=single", "name=ddp-w3", published).outcome == "unfair"
    assert "not compared with ddp: hardware.cpu_cores 1 against 3" in single_sentence(
        answer
    ) and "same cores" not in single_sentence(answer)
    assert not any("No winner" in s for s in answer_sentences(answer))


def test_other_training_is_in_a_contest_of_its_own_and_the_others_are_compared(tmp_path):
    """PowerSGD's losses left those of the other levers: it is in no contest with them, and the page
    says so.
    """
    published = ROOT / "reports" / "published" / "cpu-levers"
    store = open_store(published)
    bench = Workbench(store, copied_sources(tmp_path / "reports"), runs=run_records([published]))
    answer = answer_of(
        bench, Study("cpu-levers", "Levers", varies=("strategy.compression", "strategy.bucket_mib"))
    )
    assert (
        answer.apart == ["powersgd"]
        and len(answer.main.contenders) == 4
        and answer.fair_places == ["2 ranks"]
    )
    assert "powersgd is not comparable with any other" in fairness_note(
        answer
    ) and "losses are up to 8.7e-02 apart" in fairness_note(answer)
    assert answer_sentences(answer)[0].startswith("No winner can be claimed at 2 ranks between")
