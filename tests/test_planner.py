"""The planner as a user has it: fitted again, asked, and scored with tables of runs."""

import csv
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.compare.planned.answer import machine_named
from llmbench.plan.predicted.imputed import imputed
from llmbench.plan.predicted.memory import memory
from llmbench.plan.predicted.requests import arrays_of
from llmbench.plan.predicted.step import step_seconds
from llmbench.spec.resolve import load_run

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "data" / "published" / "training_throughput.csv"
SMALL = ("--model", "llama3.1-8b", "--hardware", "h100", "--gpus", "8,16", "--global-tokens", "1M",
         "--seq-len", "8192")  # fmt: skip


def llmbench(*typed: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "llmbench.cli", *typed], cwd=ROOT, capture_output=True, text=True
    )


def written(path: Path, rows: list[dict], names: list[str]) -> Path:
    with path.open("w", newline="") as f:
        writer = csv.DictWriter(f, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def picked() -> list[dict]:
    rows = list(csv.DictReader(TABLE.open()))
    sources = ("megatron-bridge", "mosaic-llm-foundry", "alcf", "torchtitan")
    return [r for r in rows if r["source_id"].startswith(sources)][::7]


def scores(path: Path) -> dict:
    done = llmbench("plan", "--score", str(path), "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout, parse_constant=pytest.fail)  # NaN is no JSON; unknown is null


def test_the_constants_are_those_of_the_tables():
    """`make calibrate CHECK=1`: another fit would need another table, or another formula."""
    done = subprocess.run(
        [sys.executable, "-m", "llmbench.bench.planner", "--check"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_order_and_measured_cells_change_no_prediction(picked, tmp_path):
    names = list(picked[0])
    first = scores(written(tmp_path / "first.csv", picked, names))
    assert first["time"]["all"]["n"] > 40 and first["predicted"] > 60
    random.Random(1).shuffle(names)
    others = [dict(r, source_id="elsewhere", publisher="somebody", notes="") for r in picked[::-1]]
    second = scores(written(tmp_path / "second.csv", others, names))
    assert second["time"]["all"] == first["time"]["all"]
    assert second["memory"] == first["memory"]


def test_cells_that_are_wrong_are_named_and_a_table_without_peaks_has_none(picked, tmp_path):
    rows = [dict(r, peak_mem_gb="", outcome="ok") for r in picked[:20]]
    rows[0]["tp"], rows[1]["task"] = "many", "\x1b[31mred"
    found = scores(written(tmp_path / "odd.csv", rows, list(rows[0])))
    assert found["could_not_be_read"]["count"] >= 1
    assert "many" in " ".join(found["could_not_be_read"]["first"])
    assert found["memory"]["found"] is None and found["memory"]["n"] == 0
    text = llmbench("plan", "--score", str(tmp_path / "odd.csv")).stdout
    assert "\x1b" not in text and "could not be read" in text


def test_planted_errors_are_seen(picked, tmp_path):
    """A score that cannot get worse is none: rates of a third of the rows are doubled."""
    names = list(picked[0])
    speeds = ("tokens_per_s_per_gpu", "tokens_per_s_total", "samples_per_s_total")
    wrong = [
        {n: str(2 * float(v)) if n in speeds and v else v for n, v in r.items()}
        if i % 3 == 0
        else r
        for i, r in enumerate(picked)
    ]
    honest = scores(written(tmp_path / "honest.csv", picked, names))["time"]["all"]
    planted = scores(written(tmp_path / "planted.csv", wrong, names))["time"]["all"]
    assert planted["p90_pct"] > honest["p90_pct"] + 30
    assert planted["covered_pct"] < honest["covered_pct"] - 10


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--model", "llama3.1-8b"], "--hardware"),
        (["--score", "missing.csv"], "missing.csv"),
        (["--model", "x", "--hardware", "h100", "--gpus", "8", "--global-tokens", "1M"], "x"),
        (["--model", "llama3.1-8b", "--hardware", "q1", "--gpus", "8", "--global-tokens", "1M"],
         "six numbers"),
        ([*SMALL, "--spot"], "--spot-mtbf-h"),
        ([*SMALL, "--price", "0"], "--price 0"),
        ([*SMALL, "--start", "soon"], "YYYY-MM-DD"),
        ([*SMALL, "--rank", "luck"], "luck"),
        ([*SMALL, "--write", "0"], "--write 0"),
        ([*SMALL, "--network-gb-s", "0"], "--network-gb-s 0"),
        ([*SMALL, "--network-gb-s", "nan"], "--network-gb-s nan"),
        ([*SMALL, "--top", "0"], "--top 0"),
        (["--model", "llama3.1-8b", "--hardware", "h100", "--gpus", "8", "--global-tokens", "1M",
          "--seq-len", "-5"], "--seq-len -5"),
        (["--model", "llama3.1-8b", "--hardware", "peak_16=989", "--gpus", "8",
          "--global-tokens", "1M"], "peak_8"),
        ([*SMALL, "--framework", "jax", "--write", "1"], "jax"),
    ],
)  # fmt: skip
def test_a_wrong_request_is_refused(typed, words):
    done = llmbench("plan", *typed)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


def test_a_table_without_a_row_is_refused(tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text("row_id,model,n_gpus,seq_len\n")
    done = llmbench("plan", "--score", str(empty))
    assert done.returncode == 2 and "no row" in done.stderr


def test_a_layout_adds_up_and_more_cards_are_faster():
    done = llmbench("plan", "--model", "llama3.1-70b", "--hardware", "h100", "--gpus", "64,256",
                    "--global-tokens", "4M", "--seq-len", "8192", "--format", "json", "--top", "20")  # fmt: skip
    assert done.returncode == 0, done.stderr
    layouts = json.loads(done.stdout)["layouts"]
    for one in layouts:
        assert abs(sum(one["parts_s"].values()) - one["step_time_s"]) < 1e-9
        assert one["dp"] * one["tp"] * one["pp"] * one["cp"] == one["ranks"]
        inside = one["step_time_s_low"] < one["step_time_s"] < one["step_time_s_high"]
        assert inside and one["peak_memory_gib"] < 80 and 0 < one["goodput"] < 1
    assert {one["ranks"] for one in layouts} == {256}, "by time, more cards are first"
    steps = [one["step_time_s"] / one["goodput"] for one in layouts]
    assert steps == sorted(steps)


def test_every_order_puts_its_best_first_and_the_front_is_the_same():
    """The order is by what is asked; a whole training has an interval of days, dates and cost."""
    found = {}
    for rank in ("time", "cost", "memory", "goodput"):
        typed = ("--tokens", "1T", "--start", "2027-01-01", "--power-price", "0.1", "--top", "60")
        done = llmbench("plan", *SMALL, "--rank", rank, *typed, "--format", "json")
        assert done.returncode == 0, done.stderr
        found[rank] = json.loads(done.stdout, parse_constant=pytest.fail)
    keys = {"time": "step_time_s", "cost": "usd_per_1m_lasting_tokens", "memory": "peak_memory_gib"}
    for rank, key in keys.items():
        best = found[rank]["layouts"][0][key]
        assert all(best <= one[key] * (1 + 1e-3) for a in found.values() for one in a["layouts"])
    goods = [one["goodput"] for one in found["goodput"]["layouts"]]
    assert goods == sorted(goods, reverse=True)
    assert len({a["front_size"] for a in found.values()}) == 1
    for one in found["cost"]["layouts"]:
        assert one["days_p10"] < one["days"] < one["days_p90"]
        assert one["end_date_p10"] <= one["end_date"] <= one["end_date_p90"]
        assert one["training_usd_p10"] < one["training_usd"] < one["training_usd_p90"]
        assert one["power_usd_at_most"] == pytest.approx(0.1 * one["training_kwh_at_most"])


def test_failures_lengthen_a_training_and_a_guess_says_so():
    said = ("--mtbf-h", "100", "--restart-s", "1800", "--storage-gb-s", "2", "--network-gb-s", "50")
    many = llmbench("plan", *SMALL, "--tokens", "1T", *said, "--format", "json")
    few = llmbench("plan", *SMALL, "--tokens", "1T", "--format", "json")
    text = llmbench("plan", *SMALL, "--tokens", "1T", "--checkpoint-every-s", "20000")
    assert many.returncode == few.returncode == text.returncode == 0, many.stderr + text.stderr
    many, few = json.loads(many.stdout), json.loads(few.stdout)
    assert many["layouts"][0]["days"] > few["layouts"][0]["days"]
    assert many["guesses"] == [] and len(few["guesses"]) == 4
    assert "guessed, as nothing was said" in text.stdout and "the best is every" in text.stdout


FAMILIES = {"megatron": ("megatron", "nemo"), "torch": ("torchtitan",), "hf": ("accelerate",),
            "megatron-deepspeed": ("deepspeed",)}  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_plan_writes_is_shown_rendered_and_predicted_the_same(family, tmp_path):
    """Each file means the layout: read again, it has the step and the peak of the plan's row."""
    given = "" if family == "megatron" else "tp=1,pp=1,cp=1,zero_stage=3"
    degrees = ("--layout", given) if given else ("--rank", "memory")
    asked = ("plan", *SMALL, "--framework", family, "--write", "2", "--out", str(tmp_path / "p"))
    done = llmbench(*asked, *degrees, "--top", "20", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    files = [Path(line) for line in done.stderr.splitlines() if line.endswith(".yaml")]
    assert 1 <= len(files) <= 2 and sorted(files) == sorted((tmp_path / "p").iterdir())
    machine = machine_named("h100")[0]
    rows = {(one["ranks"], one["layout"]): one for one in answer["layouts"]}
    for file in files:
        arrays = imputed(arrays_of([load_run(file)], 80.0, family))[0]
        seconds = float(step_seconds(arrays, machine)[0])
        peak_gib = float(memory(arrays).total_bytes[0]) / 2**30
        close = [r for r in rows.values() if abs(r["step_time_s"] / seconds - 1) < 1e-9]
        assert any(abs(r["peak_memory_gib"] / peak_gib - 1) < 1e-9 for r in close), file
    shown = llmbench("show", str(files[0]))
    assert shown.returncode == 0, shown.stderr
    for backend in FAMILIES[family]:
        folder = tmp_path / backend
        rendered = llmbench("backend", backend, str(files[0]), "--render", str(folder))
        assert rendered.returncode == 0 and any(folder.iterdir()), rendered.stderr


def test_a_plan_never_writes_over_a_file_unless_it_is_told_to(tmp_path):
    asked = ("plan", *SMALL, "--write", "1", "--out", str(tmp_path))
    assert llmbench(*asked).returncode == 0
    (file,) = tmp_path.iterdir()
    file.write_text("mine")
    again = llmbench(*asked)
    assert again.returncode == 2 and "--force" in again.stderr and file.read_text() == "mine"
    assert llmbench(*asked, "--force").returncode == 0 and load_run(file)


def test_megatron_shards_what_the_file_of_a_plan_means(tmp_path):
    """ZeRO-1 beside a pipeline is the distributed optimizer, in the file and in the rendering."""
    asked = ("--layout", "pp=2,tp=2,zero_stage=1", "--write", "1", "--out", str(tmp_path / "p"))
    done = llmbench("plan", *SMALL, *asked)
    assert done.returncode == 0, done.stderr
    (file,) = (tmp_path / "p").iterdir()
    rendered = llmbench("backend", "megatron", str(file), "--render", str(tmp_path / "out"))
    assert rendered.returncode == 0, rendered.stderr
    words = (tmp_path / "out" / "arguments.txt").read_text()
    assert "--use-distributed-optimizer" in words and "fsdp" not in words


def test_a_request_that_does_not_fit_is_named_wherever_money_is_spent(tmp_path):
    """On stderr; the exit code, stdout and the files stay what they are."""
    file = tmp_path / "large.yaml"
    file.write_text(
        "{model: llama3.1-8b, strategy: ddp, world_size: 8, seq_len: 4096, hardware: h100,"
        " precision: bf16, batch: {micro: 1}}\n"
    )
    typed = (
        ("show", str(file)),
        ("launch", "local", str(file), "--render", str(tmp_path / "local")),
        ("backend", "megatron", str(file), "--render", str(tmp_path / "megatron")),
    )
    for verb in typed:
        done = llmbench(*verb)
        assert done.returncode == 0 and "chance to fit 0.00" in done.stderr, done.stderr
        fits = llmbench(*verb, "-o", "strategy=fsdp")
        assert fits.returncode == 0 and "chance to fit" not in fits.stderr, fits.stderr
    shown = llmbench("show", str(file), "-o", "strategy=fsdp").stdout
    assert "# memory: predicted peak" in shown and "P10 to P90" in shown
