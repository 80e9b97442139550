"""Real trackers beside a real run: they have its steps before it ends, and its run file after."""

import io
import json
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from waiting import until

from llmbench.core.files import project_root
from llmbench.core.records import read_run
from llmbench.importers.eventfile import Records
from llmbench.importers.eventfile import points as read_points

pytestmark = pytest.mark.slow
STEPS = 30


def llmbench(*words, **more):
    return subprocess.Popen(
        [sys.executable, "-m", "llmbench.cli", *map(str, words)], cwd=project_root(), **more
    )


def needs(package):
    if find_spec(package) is None:
        pytest.skip(f"no {package}: pip install 'llmbench[export]'")


def board_steps(folder: Path) -> list[tuple[int, float]]:
    "Step and loss in the event files of a folder."
    files = sorted(folder.rglob("events.out.tfevents.*"))
    found = [p for f in files for p in read_points(io.BytesIO(f.read_bytes()), Records())]
    return [(p.step, p.value) for p in found if p.tag == "llmbench/loss"]


def mlflow_steps(folder: Path) -> list[tuple[int, float]]:
    files = [f for f in folder.rglob("metrics/loss") if f.is_file()]
    lines = [line.split() for f in files for line in f.read_text().splitlines()]
    return [(int(line[2]), float(line[1])) for line in lines]


def wandb_records(folder: Path):
    """The records of an offline run. Its file has a head of 7 bytes and blocks of 32 KiB, of pieces
    with a checksum, a length and a type: whole, first, middle or last (the log format of LevelDB).
    """
    from wandb.proto import wandb_internal_pb2

    for file in sorted(folder.rglob("run-*.wandb")):
        data, at, whole = file.read_bytes(), 7, b""
        while at + 7 <= len(data):
            if 32768 - at % 32768 < 7:  # no room for the head of a piece: the block is filled up
                at += 32768 - at % 32768
                continue
            size, kind = struct.unpack_from("<HB", data, at + 4)
            whole += data[at + 7 : at + 7 + size]
            at += 7 + size
            if kind in (1, 4):
                record = wandb_internal_pb2.Record()
                record.ParseFromString(whole)
                whole = b""
                yield record


def wandb_steps(folder: Path) -> list[tuple[int, float]]:
    found = []
    for record in wandb_records(folder):
        items = {i.key or ".".join(i.nested_key): i.value_json for i in record.history.item}
        if "loss" in items:
            found.append((record.history.step.num, json.loads(items["loss"])))
    return found


SEEN = {"tensorboard": board_steps, "mlflow": mlflow_steps, "wandb": wandb_steps}


@pytest.mark.parametrize("tracker", list(SEEN))
def test_a_tracker_has_the_steps_while_the_run_trains_and_all_of_them_after(tracker, tmp_path):
    if tracker != "tensorboard":
        needs(tracker)
    results, out, steps = tmp_path / "results", tmp_path / tracker, SEEN[tracker]
    quick = ("-o", f"steps={STEPS}", "-o", "warmup_steps=2", "-o", "checkpoint.every=20")
    watch = llmbench("follow", results, "--to", tracker, "--out", out, "--idle-s", 60)
    train = llmbench("run", "params/cpu/single.yaml", *quick, "--results", results)
    try:
        ended = lambda: list(results.glob("*/*/run.json"))
        if tracker != "wandb":  # its file is written in blocks
            until(lambda: steps(out) or ended(), 300)
            assert steps(out) and not ended(), "steps are there before the run file"
        assert train.wait(timeout=600) == 0
        assert watch.wait(timeout=300) == 0
    finally:
        for process in (train, watch):
            process.kill()
    (file,) = ended()
    run = read_run(file)
    assert [step for step, _ in steps(out)] == run.steps.step
    assert [loss for _, loss in steps(out)] == pytest.approx(run.steps.loss, rel=1e-6)


def test_wandb_keeps_versions_of_the_run_file_and_of_the_checkpoint(tmp_path):
    needs("wandb")
    results, out = tmp_path / "results", tmp_path / "wandb"
    quick = ("-o", "steps=4", "-o", "warmup_steps=1", "-o", "checkpoint.every=4")
    watch = llmbench("follow", results, "--to", "wandb", "--out", out, "--idle-s", 60)
    assert llmbench("run", "params/cpu/single.yaml", *quick, "--results", results).wait(600) == 0
    assert watch.wait(timeout=300) == 0
    asked = [r.request.log_artifact.artifact for r in wandb_records(out) if r.HasField("request")]
    kept = [r.artifact for r in wandb_records(out) if r.HasField("artifact")] + asked
    kinds = {a.type for a in kept if a.type}
    assert kinds == {"run", "checkpoint"}, kinds


def test_a_study_is_one_export(tmp_path):
    "All 30 runs of the published study in one table, and each in a folder of its own."
    study = project_root() / "reports/published/cpu-quickstart"
    table, board = tmp_path / "all.csv", tmp_path / "board"
    assert llmbench("export", study, "--to", "csv", "--out", table).wait(120) == 0
    assert llmbench("export", study, "--to", "tensorboard", "--out", board).wait(120) == 0
    runs = sorted(p.parent.name for p in study.glob("*/run.json"))
    rows = [line.split(",")[0] for line in table.read_text().splitlines()[1:]]
    assert sorted(set(rows)) == runs == sorted(p.name for p in board.iterdir())
