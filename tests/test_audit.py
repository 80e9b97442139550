"""The audit on figures that were published, on our own runs, on runs that were doctored, and on
rubbish.
"""

import copy
import json
import random
import re
from pathlib import Path

import pytest

from llmbench.cli.main import VERBS, main
from llmbench.compare.audit.faults import FAULTS
from llmbench.compare.audit.verb import audit_paths, coverage, format_audit
from llmbench.core.errors import RequestError
from llmbench.core.records import empty_run, result_files
from llmbench.core.schema import dump_run

ROOT = Path(__file__).resolve().parents[1]
DATA = Path(__file__).parent / "data"
PUBLISHED = ROOT / "reports/published"


def found(audit):
    """Fault numbers with their verdicts; None is a contradiction beside the thirteen."""
    return {f.fault: f.verdict for f in reversed(audit.faults)}


def evidence(audit, fault):
    return " ".join(f.evidence for f in audit.faults if f.fault == fault)


def audited(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return audit_paths([folder])


def test_the_page_of_faults_has_every_fault_and_every_fault_its_test():
    """reports/faults.qmd is the one list; the audit and the tests count as it does."""
    page = (ROOT / "reports/faults.qmd").read_text()
    headings = re.findall(r"^### (\d+)\. .+ \{#fault-(\d+)\}$", page, re.MULTILINE)
    assert [(int(a), int(b)) for a, b in headings] == [(n, n) for n in FAULTS]
    tests = (ROOT / "tests/test_thirteen_faults.py").read_text()
    assert {int(n) for n in re.findall(r"^def test_fault_(\d\d)_", tests, re.MULTILINE)} == set(
        FAULTS
    )


# --- the first ancestor


def test_the_eight_published_rows_show_five_faults():
    told = audit_paths([DATA / "eight-rows.md"])
    assert (
        found(told) == {2: "certain", 6: "certain", 7: "certain", 8: "certain", 13: "likely"}
        and told.exit_code == 1
    )
    assert (
        "8,369 tokens/s × 0.489 s = 4,092 tokens = 2 GPUs × 1 × 2,048: one micro step of 4"
        in evidence(told, 2)
    )
    assert "accumulation 4 would be 16,384" in evidence(
        told, 2
    ) and "7 more rows alike" in evidence(told, 2)
    assert "1 × 2,048 tokens × 4 bytes ÷ 0.489 s = 0.000017 GB/s" in evidence(told, 6)
    assert "DDP 2 GPUs, FSDP 2 GPUs, ZERO2 2 GPUs, ZERO3 2 GPUs at 50.0 % = 100 / 2" in evidence(
        told, 7
    )
    assert (
        "DDP 4 GPUs 73.0 %, FSDP 4 GPUs 69.6 %, ZERO2 4 GPUs 82.5 %, ZERO3 4 GPUs 75.6 %"
        in evidence(told, 7)
    )
    assert "3,025 = 18,147 tokens/s (ZERO2 4 GPUs) ÷ $6.00 per hour" in evidence(
        told, 8
    ) and "10.9 M tokens per dollar" in evidence(told, 8)
    assert "125.2 M with a tied head, 163.8 M with its own" in evidence(told, 13)


def test_what_eight_rows_cannot_tell_is_said():
    told = audit_paths([DATA / "eight-rows.md"])
    states = coverage(told)
    assert [n for n, s in states.items() if s == "cannot tell"] == [1, 3, 4, 5, 9, 10]
    assert states[11] == "not claimed" and states[12] == "clean"
    assert "which is not clean: 1 (the clock is not published)" in " ".join(
        format_audit(told).split()
    )


@pytest.mark.parametrize(("file", "faults"), [("metrics.csv", {2, 6, 7}), ("result.json", {2, 6})])
def test_its_csv_and_json_show_them_too(file, faults):
    told = audit_paths([DATA / file])
    assert set(found(told)) == faults and set(found(told).values()) == {"certain"}
    assert "1 × 2,048 tokens × 4 bytes ÷ 0.4893986 s" in evidence(told, 6)


def test_results_in_single_files_are_compared_with_each_other(tmp_path):
    one = json.loads((DATA / "result.json").read_text())
    files = {
        f"job-{n}_results/result.json": one | {"world_size": n, "scaling_efficiency_pct": e}
        for n, e in ((2, 50.0), (4, 36.5))
    }
    assert found(audited(tmp_path, files))[7] == "certain"


def test_the_same_rows_put_right_are_without_a_fault(tmp_path):
    rows = [
        "strategy,gpus,tokens_per_s,step_time_s,seq_len,micro_batch,grad_accum,scaling_efficiency_pct,scaling_baseline,usd_per_hour,tokens_per_usd"
    ]
    for strategy, two, four in (("ddp", 8369, 12220), ("zero2", 10999, 18147)):
        for n, rate in ((2, two), (4, four)):
            eff, baseline = 100 * rate * 2 / (two * n), f"{strategy} · 2 ranks"
            rows.append(
                f"{strategy},{n},{rate},{n * 4 * 2048 / rate:.4f},2048,1,4,{eff:.1f},{baseline},{n * 1.5},{rate * 3600 / (n * 1.5):.0f}"
            )
    told = audited(tmp_path, {"right.csv": "\n".join(rows)})
    assert told.exit_code == 0 and not told.faults
    assert {n for n, s in coverage(told).items() if s == "clean"} == {2, 7, 8, 12}


# --- the second and third


def tprimat(**change):
    """A result in the second ancestor's layout, figures of a published run of 8 MI300X; `a__b`
    changes a section.
    """
    times = [33.687, 9.836, 9.702, 9.699, 9.729, 9.765, 9.760, 9.795, 9.793, 9.792]
    result = {
        "platform": "amd",
        "gpu_info": {
            "device_count": 8,
            "device_name": "AMD Instinct MI300X",
            "software_stack": "rocm",
        },
        "training_config": {"global_batch_size": 128, "sequence_length": 2048, "num_gpus": 8},
        "performance_metrics": {
            "avg_step_time_seconds": 9.763,
            "tokens_per_second": 107400.711,
            "tokens_per_second_per_gpu": 13425.089,
        },
        "raw_step_times": times,
    }
    result = copy.deepcopy(result)
    for path, value in change.items():
        *section, key = path.split("__")
        (result[section[0]] if section else result)[key] = value
    return result


def test_a_sequence_length_that_contradicts_the_throughput(tmp_path):
    told = audited(tmp_path, {"a.json": tprimat()})
    assert found(told) == {10: "likely", None: "certain"}
    assert (
        "= 1,048,553 tokens per step = 128 sequences × 8,191.8 tokens; recorded sequence length 2,048"
        in evidence(told, None)
    )
    assert "4 times too many" in evidence(told, None)
    assert None not in found(
        audited(tmp_path, {"a.json": tprimat(training_config__sequence_length=8192)})
    )


DOCTORED_FOREIGN = {
    "cuda on an AMD card": (9, "certain", {"platform": "cuda"}),
    "cores of another card": (9, "certain", {"gpu_info__gpu_cores": 16896}),
    "written by a log parser": (9, "likely", {"source": "primus_log_extraction"}),
    "all steps averaged": (
        10,
        "certain",
        {
            "performance_metrics__avg_step_time_seconds": 12.156,
            "training_config__sequence_length": 10200,
        },
    ),
    "the first step dropped": (10, "likely", {}),
    "throughput per core": (
        12,
        "certain",
        {"performance_metrics__throughput_per_gpu_core": 5.26e-06},
    ),
    "two that do not multiply": (
        None,
        "certain",
        {
            "performance_metrics__tokens_per_second_per_gpu": 1.0,
            "training_config__sequence_length": 8192,
        },
    ),
    "a loss that no text has": (5, "likely", {"loss_values": [11.9 * 0.5**i for i in range(20)]}),
    "an MFU of another card": (
        11,
        "certain",
        {"performance_metrics__mfu_pct": 40.0, "performance_metrics__tflops_per_gpu": 395.6},
    ),
}


@pytest.mark.parametrize("case", DOCTORED_FOREIGN)
def test_foreign_faults(tmp_path, case):
    fault, verdict, change = DOCTORED_FOREIGN[case]
    assert found(audited(tmp_path, {"a.json": tprimat(**change)}))[fault] == verdict


def test_a_strategy_that_is_not_told_is_unknown_and_no_fault(tmp_path):
    steps = {"raw_step_times": [], "training_config__sequence_length": 8192}
    told = audited(
        tmp_path, {"a.json": tprimat(parallelism_config={"strategy_name": "unknown"}, **steps)}
    )
    assert told.exit_code == 0
    assert "strategy recorded as unknown" in format_audit(told)


# --- our own


def own_run(strategy):
    """A published run file of this project."""
    file = next(
        f for f in result_files(PUBLISHED / "cpu-quickstart") if f".{strategy}-" in f.parent.name
    )
    return json.loads(file.read_text())


def test_our_published_runs_are_clean():
    told = audit_paths([PUBLISHED])
    assert told.exit_code == 0 and not told.problems, [f.evidence for f in told.faults]
    ours = audit_paths(
        [
            folder
            for folder in PUBLISHED.iterdir()
            if folder.name not in ("bench", "cpu-frameworks", "cpu-loader", "cpu-nemo")
        ]
    )
    assert set(coverage(ours).values()) == {"clean"}, (
        "of what another framework trained, less can be told"
    )


def put(run, path, value):
    *parents, last = path.split(".")
    at = run
    for key in parents:
        at = at[int(key)] if key.isdigit() else at[key]
    at[last] = value


def scaled(run, key, factor):
    return [v * factor for v in run["steps"][key]]


DOCTORED_RUN = {
    "a host clock on a GPU": (
        1,
        lambda r: {
            "env.platform": "cuda",
            "env.devices.0.name": "NVIDIA A10",
            "env.devices.1.name": "NVIDIA A10",
            "measurement": {"clock": "monotonic"},
        },
    ),
    "a micro step for a step": (
        2,
        lambda r: {"steps.tokens": [t // 2 for t in r["steps"]["tokens"]]},
    ),
    "float16": (3, lambda r: {"spec.precision.compute": "float16"}),
    "sequences given twice": (
        4,
        lambda r: {
            "events": [
                {"kind": "data_repeated", "text": "8 sequences were given to more than one rank"}
            ]
        },
    ),
    "a loss that no text has": (
        5,
        lambda r: {"steps.loss": [8.0 * 0.5**i for i in range(len(r["steps"]["loss"]))]},
    ),
    "a copy on a CPU": (6, lambda r: {"transfer.h2d_gb_s": 12.0}),
    "CUDA on an AMD card": (
        9,
        lambda r: {
            "env.platform": "cuda",
            "env.devices.0.name": "AMD Instinct MI300X",
            "measurement": {"clock": "device_events"},
        },
    ),
    "a rank on a host that is not there": (9, lambda r: {"ranks.1.host": "elsewhere"}),
    "a reader's packages in an import": (
        9,
        lambda r: {"source": {"kind": "import", "format": "log"}},
    ),
    "no warm-up": (
        10,
        lambda r: {
            "spec.warmup_steps": 0,
            "steps.time_s": [9.0, 5.0, *r["steps"]["time_s"][2:]],
            "ranks": [],
        },
    ),
    "a count of another model": (13, lambda r: {"spec.model.parameters": 117_000_000}),
    "a name of another size": (13, lambda r: {"spec.model.name": "gpt-117m"}),
    "times that no rank had": (None, lambda r: {"steps.time_s": scaled(r, "time_s", 0.9)}),
}


@pytest.mark.parametrize("case", DOCTORED_RUN)
def test_a_doctored_run_file_is_caught(tmp_path, case):
    fault, change = DOCTORED_RUN[case]
    run = own_run("zero2")
    assert audited(tmp_path, {"run.json": run}).exit_code == 0
    for path, value in change(run).items():
        put(run, path, value)
    told = audited(tmp_path, {"run.json": run})
    assert told.exit_code == 1 and fault in found(told), told.problems


@pytest.mark.parametrize(
    ("fault", "path", "value"),
    [
        (3, "spec.precision.compute", "bfloat16"),
        (4, "spec.data.fingerprint", "another"),
        (2, "spec.batch.global_tokens", 8192),
    ],
)
def test_strategies_of_one_study_that_were_not_asked_alike(tmp_path, fault, path, value):
    ddp, zero = own_run("ddp"), own_run("zero2")
    put(zero, path, value)
    if fault == 2:  # in itself consistent: four times as much accumulation
        put(zero, "spec.batch.accum", 8)
        put(zero, "steps.tokens", [8192] * len(zero["steps"]["tokens"]))
    told = audited(tmp_path, {"a/run.json": ddp, "b/run.json": zero})
    more = (
        {11: "likely"} if fault == 2 else {}
    )  # so many tokens in the same time are more than the processor can
    assert found(told) == {fault: "certain"} | more, format_audit(told)


def test_a_clock_that_is_not_recorded_is_unknown(tmp_path):
    run = own_run("ddp")
    put(run, "measurement.clock", None)
    put(run, "env.platform", "cuda")
    for rank in (0, 1):
        put(run, f"env.devices.{rank}.name", "NVIDIA A10")
    told = audited(tmp_path, {"run.json": run})
    assert told.exit_code == 0 and coverage(told)[1] == coverage(told)[6] == "cannot tell"


def test_a_run_that_was_refused_claims_nothing(tmp_path):
    told = audited(
        tmp_path,
        {"run.json": dump_run(empty_run("demo.1", {"world_size": 2}, "refused", "no GPU here"))},
    )
    assert told.exit_code == 0 and set(coverage(told).values()) == {"not claimed"}


# --- requests and rubbish


def test_wrong_requests_name_what_is_understood(tmp_path):
    (tmp_path / "notes.md").write_text("# nothing\n")
    for path in (tmp_path / "nowhere", tmp_path, tmp_path / "notes.md"):
        with pytest.raises(
            RequestError,
            match=r"audit reads run.json files of llmbench, JSON results .* CSV, Markdown tables",
        ):
            audit_paths([path])


def test_a_folder_may_hold_other_things(tmp_path):
    run = own_run("ddp")
    files = {
        "a/run.json": run,
        "copy/run.json": run,
        "a/rank-000.jsonl": "{}",
        "cut.json": '{"schema": "llmbench.run',
        "x.md": "text",
        "old.json": {"schema": "llmbench.run/1", "run_id": 3},
        ".partial/b/run.json": "{}",
    }
    told = audited(tmp_path, files)
    assert not told.faults and len(told.sources) == 3 and told.ignored == 2
    assert [file for file, _ in told.problems] == [f"{tmp_path.name}/old.json"]


def test_a_run_file_that_cannot_be_read_is_no_clean_audit(tmp_path, capsys):
    """By its name, or by the schema that it names; a file of another kind that is broken is none of
    ours.
    """
    told = audited(tmp_path, {"a/run.json": own_run("ddp"), "b.json": "{"})
    assert told.exit_code == 0 and told.ignored == 1 and not told.lost
    for name, content in {
        "b/run.json": "{",
        "old.json": {"schema": "llmbench.run/1", "run_id": 3},
    }.items():
        told = audited(tmp_path, {name: content})
        assert told.exit_code == 1 and f"{tmp_path.name}/{name}" in told.lost and not told.faults
        assert "no fault found in what could be read" in format_audit(
            told
        ) and "No fault found in what could be read." in format_audit(told, "markdown")
    assert (
        main(["audit", str(tmp_path)]) == 1 and main(["audit", str(tmp_path / "b/run.json")]) == 1
    )
    assert "no result in it" in capsys.readouterr().err


def rubbish(random_, depth=0):
    kinds = ["number", "text", "none", "list", "dict"] if depth < 4 else ["number", "text", "none"]
    kind = random_.choice(kinds)
    keys = [
        "tokens_per_sec",
        "step_time",
        "step_times",
        "gpus",
        "scaling_efficiency_pct",
        "strategy",
        "seq_len",
        "mfu",
        "tokens_per_usd",
        "h2d",
        "loss_values",
        "params",
        "model",
        "grad_accum",
        "batch",
        "x",
    ]
    numbers = [0, -1, 1e308, 1e-308, float("nan"), float("inf"), 10**400, True, 2.5]
    texts = [
        "",
        "–",
        "1,2,3",
        "$",
        "0",
        "e5",
        "-",
        "<",
        "12x",
        "1" * 400,
        "é\x00",
        "1e999",
        "GPT 117M",
        "..",
        "1.2.3",
    ]
    return {
        "number": lambda: random_.choice(numbers),
        "text": lambda: random_.choice(texts),
        "none": lambda: None,
        "list": lambda: [rubbish(random_, depth + 1) for _ in range(random_.randrange(4))],
        "dict": lambda: {
            random_.choice(keys): rubbish(random_, depth + 1) for _ in range(random_.randrange(8))
        },
    }[kind]()


def as_text(random_, number):
    value = rubbish(random_)
    if number % 3 == 0:
        return json.dumps(value, default=str)
    cells = [[str(rubbish(random_, 9)) for _ in range(5)] for _ in range(4)]
    head = [
        "strategy",
        "gpus",
        "tokens/s",
        "step time (s)",
        random_.choice(["scaling eff (%)", "tokens/$", "MFU", "params"]),
    ]
    if number % 3 == 1:
        return "\n".join(",".join(row) for row in [head, *cells])
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * 5, *cells])


def test_a_copy_and_a_log_count_once_and_another_run_of_that_name_is_asked(tmp_path):
    run, other = own_run("ddp"), own_run("ddp")
    put(other, "transfer.h2d_gb_s", 12.0)
    log = (
        f"BENCHMARK_RESULT_JSON_START\n{json.dumps(run | {'events': []})}\nBENCHMARK_RESULT_JSON_END"
        " sha256=0\n"
    )
    told = audited(
        tmp_path, {"a/run.json": run, "a/stdout.log": log, "b/run.json": run, "c/run.json": other}
    )
    assert found(told) == {6: "certain"} and told.faults[0].file.endswith("c/run.json")
    assert sum(f.fault == 1 for f in told.findings) == 2


def test_rubbish_is_answered_and_never_a_traceback(tmp_path):
    random_ = random.Random(0)
    for number in range(300):
        path = tmp_path / f"{number}.txt"
        path.write_text(as_text(random_, number))
        try:
            told = audit_paths([path])
        except RequestError:
            continue
        for style in ("table", "json", "markdown"):
            assert format_audit(told, style)


def test_formats():
    told = audit_paths([DATA / "eight-rows.md"])
    content = json.loads(format_audit(told, "json"))
    assert content["coverage"]["2"] == "found" and content["read"][0]["rows"] == 12
    assert {f["fault"] for f in content["findings"] if f["verdict"] == "certain"} == {2, 6, 7, 8}
    assert all(len(line) <= 100 for line in format_audit(told, width=100).splitlines())
    rows = [line for line in format_audit(told, "markdown").splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5 and len({line.count("|") for line in rows}) == 1
    with pytest.raises(RequestError, match="did you mean json"):
        format_audit(told, "jsn")


@pytest.mark.skipif("audit" not in VERBS, reason="the verb is not wired")
def test_the_command(tmp_path, capsys):
    assert main(
        ["audit", str(DATA / "eight-rows.md")]
    ) == 1 and "10.9 M tokens per dollar" in " ".join(capsys.readouterr().out.split())
    assert (
        main(["audit", str(PUBLISHED), "--format", "json"]) == 0
        and json.loads(capsys.readouterr().out)["coverage"]["1"] == "clean"
    )
    assert main(["audit", str(tmp_path)]) == 2 and capsys.readouterr().err.count("\n") == 1


def test_logs_that_were_imported_show_no_certain_fault(tmp_path):
    """What made six findings certain that were none: one rank's record, a batch ramp, data called
    synthetic, logs beside each other.
    """
    published = next(iter(sorted(PUBLISHED.rglob("run.json"))))
    base = json.loads(published.read_text())
    base["source"] = {
        "kind": "import",
        "format": "megatron-lm",
        "file": "a.log",
        "sha256": "0" * 64,
    }
    base["events"] = []
    base["env"] |= {
        "lock_hash": None,
        "git": {"commit": None, "dirty": None},
        "devices": [{"rank": i, "name": "NVIDIA H100 80GB HBM3"} for i in range(8)],
    }
    base["env"]["platform"], base["measurement"]["clock"] = "cuda", None
    base["spec"]["world_size"] = base["spec"]["strategy"]["dp"] = 8
    n = len(base["steps"]["step"])
    for at, (strategy, tokens, loss) in enumerate((("ddp", 1024, 2.0), ("fsdp", 4096, 1.0))):
        run = json.loads(json.dumps(base)) | {
            "run_id": f"imported.log-{at}.0.1",
            "study": "imported",
        }
        (
            run["spec"]["strategy"]["name"],
            run["spec"]["batch"]["global_tokens"],
            run["spec"]["data"]["kind"],
        ) = (strategy, tokens * 8, "synthetic")
        run["spec"]["batch"]["micro"] = run["spec"]["batch"]["accum"] = None
        run["steps"] |= {"tokens": [tokens] * n, "loss": [loss] * n}
        run["ranks"] = run["ranks"][:1]
        (tmp_path / str(at)).mkdir()
        (tmp_path / str(at) / "run.json").write_text(json.dumps(run))
    found = audit_paths([tmp_path])
    assert not found.problems and [f.evidence for f in found.faults if f.verdict == "certain"] == []
    lost = json.loads((tmp_path / "0/run.json").read_text())
    lost["steps"]["loss"] = [2.0] + [None] * (n - 1)
    lost["events"] = [
        {"kind": "nan_loss", "step": s, "text": "the loss is not a number"}
        for s in lost["steps"]["step"][1:]
    ]
    lost["logged"] = [{"name": "mfu_pct", "values": [131.5] * n}]
    (tmp_path / "0/run.json").write_text(json.dumps(lost))
    told = [f.evidence for f in audit_paths([tmp_path]).faults if f.verdict == "certain"]
    assert any("losses are no numbers" in t for t in told) and any("131.5 %" in t for t in told), (
        told
    )
