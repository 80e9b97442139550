"""Comparisons as people and CI meet them: the line, the forms, the exit code, baselines, history;
over a folder of results.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.compare.history import history_command
from llmbench.compare.select import baseline_command, save_baseline
from llmbench.compare.verb import compare_command, compare_words
from llmbench.core.errors import LlmbenchError, RequestError
from llmbench.core.records import write_run
from llmbench.core.schema import SCHEMA, validate_run
from llmbench.plan.flops import parameter_count
from llmbench.spec.request import run_id, spec_record
from llmbench.spec.resolve import resolve_run
from llmbench.store.database import query

ROOT = Path(__file__).resolve().parents[1]
STEP_S = {"ddp": 0.50, "zero1": 0.501, "zero2": 0.50 / 1.061}


def made_run(
    strategy,
    attempt,
    step_s=None,
    *,
    status="ok",
    commit="0a1b2c3d",
    day=21,
    platform="cpu",
    change=None,
    **asked,
):
    """One run with invented figures, through the same types as a real one; `change` sets dotted
    fields afterwards.
    """
    spec = resolve_run(
        {
            "study": "small",
            "model": "gpt-tiny",
            "strategy": strategy,
            "world_size": 2,
            "seq_len": 128,
            "steps": 14,
            "batch": {"micro": 2, "global_tokens": 2048},
            "warmup_steps": 2,
        }
        | asked
    )
    record = spec_record(spec).model_dump() | {
        "data": {"kind": "synthetic", "fingerprint": "51c0ffee00000000"}
    }
    record["model"]["parameters"] = parameter_count(spec.model)
    chance = random.Random(f"{strategy}{attempt}{commit}")
    between = 1 + 0.008 * chance.uniform(-1, 1)
    times = [
        (step_s or STEP_S[strategy]) * between * (1 + 0.01 * chance.random()) for _ in range(14)
    ]
    steps = {
        "step": list(range(14)),
        "time_s": times,
        "tokens": [2048] * 14,
        "loss": [8.4 - k / 10 for k in range(14)],
        "grad_norm": [1.0] * 14,
    }
    ranks = [
        {
            "rank": r,
            "peak_allocated_bytes": 2**29,
            "param_norm_before": 31.0,
            "param_norm_after": 32.0,
        }
        for r in range(2)
    ]
    env = {
        "platform": platform,
        "threads_per_rank": 1,
        "cpu": {"logical_cores": 2},
        "framework": "llmbench",
        "git": {"commit": commit},
        "versions": {"torch": "2.13.0"},
        "devices": [{"rank": r, "name": "Example"} for r in range(2)],
    }
    if platform == "cuda":
        env |= {
            "driver": "550.54",
            "cuda": "12.8",
            "nccl": "2.27.3",
            "devices": [d | {"power_limit_w": 700.0} for d in env["devices"]],
        }
    run = {
        "schema": SCHEMA,
        "run_id": run_id(spec, attempt),
        "study": "small",
        "attempt": attempt,
        "status": status,
        "reason": None if status == "ok" else f"invented {status}",
        "started_at": f"2026-11-{day:02d}T10:{attempt:02d}:00.000Z",
        "spec": record,
        "steps": steps,
        "ranks": ranks,
        "env": env,
    }
    for path, value in (change or {}).items():
        *parents, last = path.split(".")
        at = run
        for parent in parents:
            at = at[int(parent) if parent.isdigit() else parent]
        at[last] = value
    return validate_run(run)


def put(folder, *runs):
    for run in runs:
        write_run(folder / "small" / run.run_id, run)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare") / "results"
    put(folder, *(made_run(s, k) for k in range(1, 6) for s in STEP_S))
    put(folder, made_run("zero3", 1, 0.6, status="oom"))
    return folder


def sides(tmp_path, **second):
    "A folder with DDP as it is and ZeRO-2 with something changed."
    folder = tmp_path / "results"
    put(
        folder,
        *(made_run("ddp", k) for k in range(1, 4)),
        *(made_run("zero2", k, **second) for k in range(1, 4)),
    )
    return folder


def compared(folder, a="strategy=zero2", b="strategy=ddp", **options):
    return json.loads(compare_command(a, b, folder, style="json", **options)[0])


def test_a_difference_is_claimed_with_its_interval(results):
    facts = compared(results)
    assert facts["outcome"] == "faster" and facts["speed"]["low"] < 1.061 < facts["speed"]["high"]
    line = compare_command("strategy=zero2", "strategy=ddp", results)[0].splitlines()[0]
    assert (
        line == facts["sentence"]
        and line.startswith("zero2 is ")
        and line.endswith("n = 5 × 12, comparable: yes")
    )
    turned = compared(results, "strategy=ddp", "strategy=zero2")
    assert (
        turned["outcome"] == "slower"
        and abs(turned["speed"]["ratio"] * facts["speed"]["ratio"] - 1) < 1e-12
    )


def test_no_difference_names_the_repeats_it_would_take(results, tmp_path):
    same = compared(results, "strategy=zero1")
    assert same["outcome"] == "none" and same["sentence"].startswith(
        "no difference can be claimed between zero1 and ddp: 95 % interval"
    )
    noisy = tmp_path / "noisy"
    put(
        noisy,
        *(
            made_run(s, k, 0.5 * (1 + 0.05 * ((k * 7 + len(s)) % 5)))
            for k in (1, 2, 3)
            for s in ("ddp", "zero2")
        ),
    )
    facts = compared(noisy)
    assert facts["outcome"] == "none" and facts["needed_repeats"] > 20
    assert f"(needs about {facts['needed_repeats']} repeats for 3 %)" in facts["sentence"]


def test_the_interval_for_all_pairs_is_wider_than_that_of_one(results):
    """Three sets are three pairs: of equals, up to 14 in 100 studies claim something at 95 %."""
    said = compare_words("strategy=zero2", "strategy=ddp", results)
    assert said.sets == 3 and said.family.estimate == said.speed.estimate
    assert said.family.low < said.speed.low < said.speed.high < said.family.high


def test_markdown_holds_the_line_and_a_small_table(results):
    text, code = compare_command(
        "strategy=zero2", "strategy=ddp", results, style="markdown", fail_if_slower="3%"
    )
    lines = text.splitlines()
    assert code == 0 and lines[0] == f"**{compared(results)['sentence']}**"
    rows = [line for line in lines if line.startswith("|")]
    assert rows[0] == "| | zero2 | ddp | difference |" and {line.count("|") for line in rows} == {5}
    assert (
        any("memory of tensors" in r for r in rows)
        and any("last loss" in r and "equal" in r for r in rows)
        and "check **passed**" in text
    )


@pytest.mark.parametrize(("field", "value", "named"), [
    ("spec.precision.compute", "bfloat16", "precision.compute bfloat16 against float32"),
    ("spec.optimizer.fused", True, "optimizer.fused True against False"),
    ("env.versions", {"torch": "2.12.0"}, "software.torch 2.12.0 against 2.13.0"),
    ("events", [{"kind": "profiled"}], "the timed steps ran under a profiler"),
    ("steps.loss", [8.4] * 14, "the loss does not fall"),
])  # fmt: skip
def test_unlike_runs_get_no_winner_and_no_number(tmp_path, field, value, named):
    folder = sides(tmp_path, change={field: value})
    facts = compared(folder)
    assert (
        facts["outcome"] == "unfair"
        and named in facts["sentence"]
        and "faster" not in facts["sentence"]
    )
    text, code = compare_command("strategy=zero2", "strategy=ddp", folder, fail_if_slower="50%")
    assert code == 1 and "check failed: zero2 and ddp may not be compared" in text, (
        "a check that cannot check is not green"
    )


def test_parameters_that_did_not_change_are_no_training(tmp_path):
    folder = sides(
        tmp_path, change={"ranks.0.param_norm_after": 31.0, "ranks.1.param_norm_after": 31.0}
    )
    assert "the parameters did not change" in compared(folder)["sentence"]
    one_rank = sides(tmp_path / "one", change={"ranks.0.param_norm_after": 31.0})
    assert compared(one_rank)["outcome"] == "faster"


def test_what_was_not_recorded_is_unknown(tmp_path):
    facts = compared(sides(tmp_path, change={"spec.optimizer.fused": None}))
    assert facts["outcome"] == "unknown" and facts["unknowns"] == ["optimizer.fused"]


def test_the_limit_fails_only_what_is_shown(results):
    """Beyond the whole interval, inside it, and on the good side of it."""
    speed = compared(results, "strategy=ddp", "strategy=zero2")["speed"]
    limits = [100 * (1 - v) for v in (speed["high"] + 0.01, speed["ratio"], speed["low"] - 0.01)]
    for limit, outcome, code in zip(limits, ("failed", "unsure", "passed"), (1, 0, 0), strict=True):
        text, returned = compare_command(
            "strategy=ddp", "strategy=zero2", results, style="json", fail_if_slower=f"{limit:.4f} %"
        )
        check = json.loads(text)["check"]
        assert (check["outcome"], returned) == (outcome, code) and abs(
            check["limit_pct"] - limit
        ) < 1e-3


def test_one_run_claims_nothing(results):
    ids = compared(results)["a"]["run_ids"][0], compared(results)["b"]["run_ids"][0]
    facts = compared(results, *ids)
    assert (
        facts["outcome"] == "too few" and "one run says nothing about repeats" in facts["sentence"]
    )
    beginning = compared(results, *(name.rpartition(".")[0] for name in ids))
    assert beginning["sentence"] == compared(results)["sentence"], (
        "an id without its repeat means all repeats"
    )


def test_accelerators_are_compared_at_the_median(tmp_path):
    folder = tmp_path / "results"
    put(folder, *(made_run(s, k, platform="cuda") for k in range(1, 4) for s in ("ddp", "zero2")))
    assert (
        compared(folder)["speed"]["at"] == "time spent"
        and compared(folder)["beside"]["at"] == "median step"
    )


def test_one_question_at_a_time(tmp_path):
    folder = tmp_path / "results"
    put(folder, *(made_run("ddp", k, precision=p) for k in (1, 2, 3) for p in ("fp32", "bf16")))
    put(folder, *(made_run("zero2", k, precision="bf16") for k in (1, 2, 3)))
    assert (
        compared(folder, "strategy=ddp,precision=bf16", "strategy=ddp,precision=fp32")["comparable"]
        == "yes"
    )
    both = compared(folder, "strategy=zero2,precision=bf16", "strategy=ddp,precision=fp32")
    assert both["comparable"] == "no" and any("precision.compute" in d for d in both["differences"])


@pytest.mark.parametrize(("a", "b", "options", "says"), [
    ("strategy=dpd", "strategy=zero2", {}, "there are ddp, zero1, zero2 and zero3"),
    ("stratgy=ddp", "strategy=zero2", {}, "did you mean strategy"),
    ("ddp", "strategy=zero2", {}, "did you mean strategy=ddp?"),
    ("study=small", "strategy=ddp", {}, "3 different sets of repeats; add strategy=ddp"),
    ("strategy=ddp", None, {}, "--baseline NAME"),
    ("strategy=ddp", None, {"baseline": "gone"}, "unknown baseline 'gone'"),
    ("strategy=ddp", "strategy=zero2", {"fail_if_slower": "fast"}, "write a percentage"),
    ("strategy=ddp", "strategy=zero2", {"where": ["world_size=4"]}, "no run has world_size=4; there is 2"),
    ("strategy=ddp", "strategy=zero2", {"varies": ["sped"]}, "unknown key that a comparison varies 'sped'"),
])  # fmt: skip
def test_a_wrong_request_is_one_line(results, a, b, options, says):
    with pytest.raises(RequestError) as e:
        compare_command(a, b, results, **options)
    assert says in str(e.value) and "\n" not in str(e.value)


def test_runs_that_failed_are_counted_not_compared(results, tmp_path):
    with pytest.raises(LlmbenchError, match="none of 1 runs ended ok \\(oom\\)"):
        compare_command("strategy=zero3", "strategy=ddp", results)
    folder = sides(tmp_path)
    put(folder, made_run("zero2", 4, status="crash"))
    assert compared(folder)["notes"][:-1] == ["zero2: 1 more ended as crash"] and compared(folder)[
        "notes"
    ][-1].startswith("covers: these 6 runs")


def test_a_baseline_outlives_the_folder(tmp_path):
    folder = tmp_path / "results"
    put(folder, *(made_run(s, k) for k in range(1, 6) for s in ("ddp", "zero2")))
    assert baseline_command("save", "main", ["study=small"], folder).endswith(
        "main.json: 10 runs kept\n"
    )
    with pytest.raises(RequestError, match="--force"):
        save_baseline(folder, "main")
    put(
        folder,
        *(made_run("ddp", k, 0.53, commit="fedcba98", day=22) for k in range(1, 6)),
        *(made_run("zero2", k, day=22) for k in range(1, 6)),
    )
    text, code = compare_command("strategy=ddp", None, folder, baseline="main", fail_if_slower="3%")
    assert code == 1 and text.startswith("ddp is ") and " slower than ddp of main, " in text
    assert (
        compare_command("strategy=zero2", None, folder, baseline="main", fail_if_slower="3%")[1]
        == 0
    )
    assert "main" in baseline_command("list", None, [], folder)
    (folder / "baselines" / "main.json").write_text('{"schema": "llmbench.baseline/1"')
    with pytest.raises(LlmbenchError, match="not a baseline"):
        compare_command("strategy=ddp", None, folder, baseline="main")
    with pytest.raises(LlmbenchError, match="baseline save main --force"):
        baseline_command("list", None, [], folder)


def test_a_baseline_is_not_held_against_its_own_runs(tmp_path):
    """A sweep skips what is finished: without this, a comparison in CI that trained nothing new
    would always pass.
    """
    folder = tmp_path / "results"
    put(folder, *(made_run("ddp", k) for k in (1, 2, 3)))
    save_baseline(folder, "main")
    with pytest.raises(
        RequestError, match="3 of 3 runs .* are those that baseline main keeps.*sweep STUDY --force"
    ):
        compare_command("strategy=ddp", None, folder, baseline="main", fail_if_slower="3%")
    put(
        folder, *(made_run("ddp", k, day=22) for k in (1, 2, 3))
    )  # trained again under the same names
    assert (
        compare_command("strategy=ddp", None, folder, baseline="main", fail_if_slower="30%")[1] == 0
    )


def test_a_limit_that_looks_like_a_share_is_asked_about(results):
    with pytest.raises(RequestError, match="write 0.03% if you mean that, 3% if it is a share"):
        compare_command("strategy=ddp", "strategy=zero1", results, fail_if_slower="0.03")
    assert (
        "0.03 %"
        in compare_command("strategy=zero2", "strategy=ddp", results, fail_if_slower="0.03%")[0]
    )


def test_history_names_the_commit_that_made_it_slower(tmp_path):
    folder = tmp_path / "results"
    commits = ("aaaa1111", "bbbb2222", "cccc3333", "dddd4444")
    for day, commit in enumerate(commits, 1):
        put(
            folder,
            *(
                made_run("ddp", k, 0.5 if day < 3 else 0.53, commit=commit, day=day)
                for k in range(1, 4)
            ),
        )
        save_baseline(folder, commit)
    rows = json.loads(history_command("strategy=ddp", folder, style="json"))
    assert [r["commit"] for r in rows] == list(commits) and [r["repeats"] for r in rows] == [3] * 4
    assert [bool(r["said_of_it"]) for r in rows] == [
        False,
        False,
        True,
        False,
    ] and "level changes here: −6" in rows[2]["said_of_it"]
    assert history_command("strategy=ddp", folder).count("\n") == 2 + 4


def cli(folder, *words):
    command = [sys.executable, "-m", "llmbench.cli", *words, "--results", str(folder)]
    return subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def published(tmp_path, strategy, change):
    """A copy of the published quickstart in which `change` was done to each run of a strategy, as a
    mapping.
    """
    folder = shutil.copytree(ROOT / "reports/published/cpu-quickstart", tmp_path / "cpu-quickstart")
    for file in sorted(folder.glob(f"*{strategy}*/run.json")):
        run = json.loads(file.read_text())
        change(run)
        file.write_text(json.dumps(run))
    return folder


def astray(run):
    run["steps"]["loss"] = [8.3 - step / 100 for step in range(len(run["steps"]["loss"]))]


def test_a_strategy_that_trains_something_else_wins_nothing(tmp_path):
    folder = published(tmp_path, "ddp-w2", astray)
    lines = cli(folder, "compare", "strategy=ddp", "strategy=fsdp", "--fail-if-slower", "3%")
    assert (
        lines.returncode == 1
        and lines.stdout.startswith("no winner between ddp and fsdp: ")
        and "check failed" in lines.stdout
    )
    assert (
        "apart, where the same training allows 1e-05" in lines.stdout
        and "comparable: yes" not in lines.stdout
    )
    told = dict(query(folder, "SELECT strategy, fairness FROM groups")[1])
    assert told.pop("ddp").startswith("no: the losses are up to ") and set(told.values()) == {"yes"}


def test_what_the_published_studies_say_of_the_same_training():
    """Levers, settings, splits and frameworks train the same; PowerSGD does not, and 1-bit Adam
    does not train at all if it freezes the variance too early. NeMo on a CPU trains the same and is
    not compared: its steps ran through an adapter. torchtitan's gradients under ddp are half as
    large as its own FSDP's; trials of what fits are too short to train.
    """
    asked = "study NOT IN ('cpu-nodes-1gbit', 'cpu-memory-fit') AND fairness <> 'yes'"
    rows = query(ROOT / "reports/published", f"SELECT name, fairness FROM groups WHERE {asked}")[1]
    told = {}
    for name, fairness in rows:
        told.setdefault(name, []).append(fairness)
    adapted = [said for name in told if name.endswith("-nemo") for said in told[name]]
    assert len(adapted) == 4 and all("through an adapter" in said for said in adapted)
    assert not any("apart" in said for said in adapted), "their losses are ours"
    titan = [said for name in list(told) if name.endswith("-torchtitan") for said in told.pop(name)]
    assert len(titan) == 2 and all("gradient norms are up to" in said for said in titan), titan
    others = {name for name in told if not name.endswith("-nemo")}
    assert others == {"powersgd", "onebit-early"} and "8.7e-02 apart" in told["powersgd"][0]
    assert told["onebit-early"][0].startswith("no: the loss does not fall")


def test_a_clock_on_the_host_is_no_clock_of_an_accelerator(tmp_path):
    def told(clock):
        folder = tmp_path / str(clock)
        put(
            folder,
            *(
                made_run(
                    "ddp", k, platform="cuda", change={"measurement": {"clock": "device_events"}}
                )
                for k in range(1, 4)
            ),
        )
        put(
            folder,
            *(
                made_run("zero2", k, platform="cuda", change={"measurement": {"clock": clock}})
                for k in range(1, 4)
            ),
        )
        return json.loads(
            compare_command("strategy=zero2", "strategy=ddp", folder, style="json")[0]
        )

    by_event, by_host, by_unknown = told("device_events"), told("monotonic"), told(None)
    assert by_event["comparable"] == "yes"
    assert by_host["comparable"] == "no" and by_host["problems"] == [
        "clock monotonic on cuda: it stops when the work is queued, not when it is done"
    ]
    assert by_host["differences"] == ["measurement.clock monotonic against device_events"]
    assert by_unknown["comparable"] == "unknown" and by_unknown["unknowns"] == ["measurement.clock"]


def test_what_a_framework_did_not_honour_is_said_and_not_equal(tmp_path):
    def told(name, *texts):
        events = [
            {"kind": "from_request", "text": "…"},
            *({"kind": "not_honoured", "text": text} for text in texts),
        ]
        return json.loads(
            compare_command(
                "strategy=zero2",
                "strategy=ddp",
                sides(tmp_path / name, change={"events": events}),
                style="json",
            )[0]
        )

    own_type = "precision.reduce = float32: gradients are summed in their own type"
    known = told("known", own_type, "timeouts.collective_s = 60: its own")
    assert known["comparable"] == "yes" and [n for n in known["notes"] if "honour" in n] == [
        f"zero2 did not honour {own_type}"
    ]
    assert told("unknown", "attention = sdpa: its own kernel")["unknowns"] == ["attention"]


def test_files_that_cannot_be_read_are_counted_on_stderr(tmp_path):
    def cut(run):
        run["steps"]["grad_norm"] = []

    folder = published(tmp_path, "ddp-w2", cut)
    counted = "llmbench: 5 files were set aside; type: llmbench query 'SELECT * FROM quarantine'"
    lost = cli(folder, "compare", "strategy=ddp", "strategy=fsdp")
    first, second = lost.stderr.splitlines()
    assert (
        lost.returncode == 2
        and first.startswith(counted)
        and "no run has strategy=ddp; there are fsdp, single" in second
    )
    assert "5 files were set aside: cpu-quickstart/" in second and "run.json (" in second
    for words in (
        ("query", "SELECT 1"),
        ("compare", "strategy=zero1", "strategy=fsdp"),
        ("history", "strategy=fsdp"),
        ("baseline", "save", "v1"),
    ):
        done = cli(folder, *words)
        assert (
            done.returncode == 0
            and done.stderr.startswith(counted)
            and done.stderr.count("\n") == 1
        ), (words, done.stderr)
    assert cli(folder, "query", "SELECT file FROM quarantine").stderr == ""


def test_the_command_line_returns_the_check(results):
    def run(*words):
        return cli(results, *words)

    slow = run("compare", "strategy=ddp", "strategy=zero2", "--fail-if-slower", "1%")
    assert slow.returncode == 1 and "check failed" in slow.stdout and slow.stderr == ""
    fine = run(
        "compare",
        "strategy=zero2",
        "strategy=ddp",
        "--where",
        "study=small",
        "--fail-if-slower",
        "3%",
        "--format",
        "markdown",
    )
    assert fine.returncode == 0 and fine.stdout.startswith("**zero2 is ")
    wrong = run("compare", "strategy=zero2", "strategy=dpd")
    assert wrong.returncode == 2 and wrong.stdout == "" and wrong.stderr.count("\n") == 1
    assert (
        run("history", "strategy=ddp").returncode == 0 and run("baseline", "list").returncode == 0
    )
