"""A machine of one's own: calibrated with its runs, and asked for runs that it never saw."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from llmbench.core.records import write_run
from llmbench.core.schema import validate_run
from llmbench.plan.examples import demo_run

ROOT = Path(__file__).resolve().parent.parent
STUDY = ROOT / "data/planner/cpu-plan"


def llmbench(*typed: str | Path, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "llmbench.cli", *map(str, typed)],
        cwd=cwd, capture_output=True, text=True,
    )  # fmt: skip


def written(folder: Path, *asked: tuple[str, int, float], **changed: object) -> Path:
    """Invented runs of a machine; changed: facts of the run file's environment."""
    for name, ranks, seconds in asked:
        for attempt in (1, 2, 3):
            facts = demo_run(name, ranks, seconds, attempt).model_dump(mode="json", by_alias=True)
            facts["transfer"] |= {"all_reduce_bus_gb_s": 1.5} if ranks > 1 else {}
            for device in facts["env"]["devices"]:
                device |= changed
            write_run(folder / facts["study"] / facts["run_id"], validate_run(facts))
    return folder


SIX = (("single", 1, 0.9), ("ddp", 2, 0.55), ("fsdp", 2, 0.7), ("ddp", 4, 0.62))


def test_a_machine_file_predicts_what_the_calibration_predicted(tmp_path):
    results, machine = written(tmp_path / "results", *SIX), tmp_path / "machine.json"
    done = llmbench("plan", "--calibrate", results, "--machine", machine, "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=pytest.fail)
    after = {r["request"]: r["after_s"] for r in told["requests"]}
    request = tmp_path / "ddp.yaml"
    request.write_text(
        "model: gpt-tiny\nstrategy: ddp\nworld_size: 4\nhardware: cpu\nseq_len: 128\n"
        "batch: {micro: 2, global_tokens: 2048}\n"
    )
    asked = llmbench("plan", request, "--machine", machine, "--format", "json")
    assert asked.returncode == 0, asked.stderr
    found = json.loads(asked.stdout, parse_constant=pytest.fail)[0]
    # the file has four digits of the measured rates
    assert found["step_time_s"] == pytest.approx(after["demo.ddp-w4"], rel=1e-3)
    assert found["step_time_s"] == pytest.approx(sum(found["parts_s"].values()), rel=1e-12)
    first = machine.read_bytes()
    assert llmbench("plan", "--calibrate", results, "--machine", machine).returncode == 0
    assert machine.read_bytes() == first


def test_runs_of_another_machine_are_named_and_not_used(tmp_path):
    alone = llmbench("plan", "--calibrate", written(tmp_path / "a", *SIX), "--format", "json")
    mixed = written(tmp_path / "b", *SIX)
    written(mixed, ("zero2", 2, 0.1), ("tp", 2, 5.0), name="Another CPU")
    found = llmbench("plan", "--calibrate", mixed, "--format", "json")
    first, second = (json.loads(done.stdout) for done in (alone, found))
    assert second["constants"] == first["constants"] and second["runs"] == first["runs"]
    assert not first["apart"]
    assert [("Another CPU" in why, n) for why, n in second["apart"].items()] == [(True, 6)]


@pytest.mark.parametrize(
    ("asked", "changed", "words"),
    [
        ((), {}, "llmbench sweep"),
        ((("single", 1, 0.9), ("ddp", 2, 0.5)), {"matmul_tflops": None}, "measured products"),
        ((("ddp", 2, 0.5), ("fsdp", 2, 0.7)), {}, "world_size 1"),
        ((("single", 1, 0.9),), {}, "world_size 2"),
    ],
)
def test_a_folder_that_cannot_be_calibrated_is_refused(tmp_path, asked, changed, words):
    (tmp_path / "results").mkdir()
    done = llmbench("plan", "--calibrate", written(tmp_path / "results", *asked, **changed))
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--calibrate", "nothing-here"], "no such folder"),
        (["--machine", "nothing-here.json"], "which requests"),
        (["params/cpu/ddp.yaml"], "--machine FILE"),
        (["params/cpu/ddp.yaml", "--machine", "nothing-here.json"], "--calibrate"),
        (["params/cpu/ddp.yaml", "--machine", "params/cpu/ddp.yaml"], "--calibrate"),
        (["params/cpu/ddp.yaml", "--ranks-per-node", "1"], "--machine FILE"),
        (["params/cpu/ddp.yaml", "--calibrate", "results"], "first llmbench plan"),
    ],
)
def test_a_wrong_question_is_refused(typed, words):
    done = llmbench("plan", *typed)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_the_published_study_gives_the_published_constants_and_errors(tmp_path):
    """Fitted again from the files: the same machine file, and the errors that stand beside it."""
    shutil.copytree(STUDY, tmp_path / "study", ignore=shutil.ignore_patterns("machine.json"))
    machine = tmp_path / "machine.json"
    done = llmbench(
        "plan", "--calibrate", tmp_path / "study", "--machine", machine, "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    published, found = (json.loads(p.read_text()) for p in (STUDY / "machine.json", machine))
    assert found["runs_sha256"] == published["runs_sha256"]
    for name, constant in published["constants"].items():
        assert found["constants"][name]["value"] == pytest.approx(constant["value"], rel=0.02), name
    told, errors = json.loads(done.stdout), json.loads((STUDY / "errors.json").read_text())
    for name, error in errors.items():
        assert told["errors"][name]["n"] == error["n"]
        for figure in ("median_pct", "worst_pct"):
            assert told["errors"][name][figure] == pytest.approx(error[figure], abs=0.3), name


@pytest.mark.slow
def test_a_machine_is_calibrated_with_real_runs_and_predicts_others(tmp_path):
    """One rank and two ranks are trained and fitted; three and four ranks are
    trained, too, and never fitted.
    """
    results, machine = tmp_path / "results", tmp_path / "machine.json"
    study = tmp_path / "own.yaml"
    base = (ROOT / "params/studies/cpu-plan.yaml").read_text()
    head, _ = base.split("matrix:")
    head = head.replace("repeats: 5", "repeats: 1").replace("study: cpu-plan", "study: own")
    study.write_text(
        head.replace("steps: 14", "steps: 8").replace("  warmup_steps: 4", "  warmup_steps: 3")
        + "matrix:\n"
        "  - {strategy: single, world_size: 1, batch.micro: 12}\n"
        "  - {strategy: [ddp, fsdp], world_size: 2, batch.micro: 6}\n"
        "  - {strategy: ddp, world_size: 3, batch.micro: 4}\n"
        "  - {strategy: {name: mixed, tp: 2, pp: 2}, world_size: 4, batch.micro: 3}\n"
    )
    trained = llmbench("sweep", study, "--direct", "--results", results)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    done = llmbench("plan", "--calibrate", results, "--machine", machine, "--format", "json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout, parse_constant=pytest.fail)
    fitted = {r["request"]: r["fitted"] for r in told["requests"]}
    assert fitted == {
        "own.single-w1": True, "own.ddp-w2": True, "own.fsdp-w2": True,
        "own.ddp-w3": False, "own.mixed-w4": False,
    }  # fmt: skip
    assert told["rates"]["product_tflops"]["value"] > 0 and told["rates"]["link_gb_s"]["value"] > 0
    for request in told["requests"]:
        assert abs(request["memory_error_pct"]) < 5, request
        assert sum(request["parts_s"].values()) == pytest.approx(request["after_s"], rel=1e-9)
    asked = llmbench("plan", study, "--machine", machine, "--format", "json")
    assert {f["request"] for f in json.loads(asked.stdout)} == set(fitted)
