"""A run that is killed continues from its last checkpoint, and has the losses of one that was not
killed.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from test_faults import at_step
from waiting import until

from llmbench.core.errors import RequestError
from llmbench.core.numbers import test_near
from llmbench.core.records import read_run
from llmbench.launch.local import run_local
from llmbench.spec.request import run_id
from llmbench.spec.resolve import resolve_run
from llmbench.spec.restarts import checkpoint_folder, checkpoints, mismatch, read_about

ROOT = Path(__file__).parents[1]
STEPS, EVERY = 18, 3
REQUEST = {
    "study": "restarts",
    "model": "gpt-tiny",
    "seq_len": 32,
    "batch": {"micro": 2, "global_tokens": 128},
    "steps": STEPS,
    "warmup_steps": 1,
    "collective_steps": 0,
    "optimizer": {"lr": 1.0e-3, "weight_decay": 0.01, "lr_warmup_steps": 8},
    "checkpoint": {"every": EVERY},
}
TP = {"name": "tp", "dp": 1, "tp": 2}
LAYOUTS = {
    "ddp": ("ddp", "gpt-tiny"),
    "fsdp": ("fsdp", "llama-tiny"),
    "zero2": ("zero2", "gpt-tiny"),
    "zero3": ("zero3", "llama-tiny"),
    "tp": (TP, "llama-tiny"),
}
EP = {"name": "ep", "dp": 2, "ep": 2}
FSDP_EP = {"name": "fsdp", "dp": 2, "ep": 2}
ALL = LAYOUTS | {"ep": (EP, "mixtral-tiny"), "fsdp-ep": (FSDP_EP, "mixtral-tiny")}
# Five steps, drawn once: the same every time. After the last of them a rank still has seven to do,
# if the kill comes late.
KILLS = sorted(random.Random(4).sample(range(EVERY, 11), 5))


def spec_of(strategy, model="gpt-tiny", world_size=2, **more):
    return resolve_run(REQUEST | dict(strategy=strategy, model=model, world_size=world_size) | more)


def ranks_in(out: Path) -> list[int]:
    """Process ids of the ranks, and of the process that started them, which train into `out`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if b"llmbench.train" in command and str(out).encode() in command.split(b"\0"):
            found.append(int(entry.name))
    return found


def kill_all(out: Path) -> None:
    """SIGKILL to the agent and to every rank: none can write a last line."""
    for pid in ranks_in(out):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def kept_steps(out: Path) -> list[int]:
    return [int(f.name.removeprefix("step-")) for f in checkpoints(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run of a layout, trained once."""
    done = {}

    def run(name):
        if name not in done:
            folder = tmp_path_factory.mktemp(name)
            done[name] = folder, run_local(spec_of(*ALL[name]), folder)
            assert done[name][1].status == "ok", done[name][1].reason
        return done[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("step", KILLS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_killed_run_goes_on_with_the_same_losses(whole, tmp_path, name, step):
    _, reference = whole(name)
    spec = spec_of(*LAYOUTS[name])
    killed = run_local(spec, tmp_path, on_step=at_step(step, lambda: kill_all(tmp_path)))
    assert killed.status == "crash" and len(killed.steps.step) < STEPS, killed.reason
    safe = kept_steps(tmp_path)[-1]
    assert safe % EVERY == 0 and safe <= len(killed.steps.step)

    seen = []
    run = run_local(spec, tmp_path, on_step=lambda row: seen.append(row["step"]), resume=tmp_path)
    assert run.status == "ok" and run.run_id == killed.run_id, run.reason
    assert seen == list(range(safe, STEPS)), "what was done before the checkpoint is not done again"
    assert (
        run.steps.step == list(range(STEPS))
        and run.spec.data.fingerprint == reference.spec.data.fingerprint
    )
    test_near(run.steps.loss, reference.steps.loss, rel=1e-6)
    assert not [e for e in run.events if e.kind == "data_repeated"]

    (resumed,) = [e for e in run.events if e.kind == "resumed"]
    assert resumed.step == safe and resumed.time_s > 0 and resumed.lost_time_s >= 0
    # a step that only one of the ranks has written is lost to that rank
    whole_steps = sum(t is not None for t in killed.steps.time_s)
    assert whole_steps - safe <= resumed.lost_steps <= len(killed.steps.step) - safe
    assert resumed.lost_steps == run.goodput.lost_steps
    saved = [e for e in run.events if e.kind == "checkpoint_saved"]
    assert [e.step for e in saved] == [*range(EVERY, STEPS + 1, EVERY)] and all(
        e.time_s > 0 and e.bytes > 1e6 for e in saved
    )
    assert run.goodput.starts == 2 and 0 < run.goodput.share < 1
    assert run.goodput.productive_s + run.goodput.lost_s + run.goodput.down_s < run.goodput.wall_s


@pytest.mark.slow
@pytest.mark.parametrize(("name", "to", "ranks"), [
    ("ddp", "ddp", 1), ("ddp", "single", 1), ("fsdp", "fsdp", 1), ("fsdp", "ddp", 2), ("tp", "fsdp", 2), ("fsdp", TP, 2),
    ("tp", {"name": "pp", "dp": 1, "pp": 2}, 2), ("tp", {"name": "fsdp", "dp": 2, "tp": 2}, 4), ("fsdp", {"name": "fsdp", "dp": 2, "pp": 2}, 4), ("ep", EP, 2), ("ep", "ddp", 2),
    ("ep", FSDP_EP, 2), ("fsdp-ep", FSDP_EP, 2), ("fsdp-ep", "ddp", 2),
])  # fmt: skip
def test_other_ranks_take_it_up_with_the_same_losses(whole, tmp_path, name, to, ranks):
    """The same global batch; micro batches are shared out anew, but for experts, whose load is
    balanced in each of them.
    """
    folder, reference = whole(name)
    spec = spec_of(
        to,
        ALL[name][1],
        ranks,
        batch={"micro": 2 if "ep" in name else 1, "global_tokens": 128},
        steps=STEPS + 4,
    )
    run = run_local(spec, tmp_path, resume=folder)
    assert run.status == "ok", run.reason
    assert run.steps.step == list(range(STEPS, STEPS + 4)) and [
        e.step for e in run.events if e.kind == "resumed"
    ] == [STEPS]
    longer = run_local(spec_of(*ALL[name], steps=STEPS + 4, checkpoint=None), tmp_path / "whole")
    test_near(longer.steps.loss[:STEPS], reference.steps.loss, rel=1e-6)
    test_near(run.steps.loss, longer.steps.loss[STEPS:], rel=1e-5)


@pytest.mark.slow
def test_1_bit_adam_goes_on_with_equal_losses(tmp_path):
    """From a checkpoint of its warm-up, of its end, and with the errors of both ranks; another
    number of ranks has no use for these errors.
    """
    optimizer = REQUEST["optimizer"] | {"name": "onebit_adamw", "clip_norm": None}
    more = {"optimizer": optimizer | {"freeze_after_steps": 6}, "warmup_steps": 6}
    kept = {"checkpoint": {"every": EVERY, "keep": STEPS}}
    spec = spec_of("ddp", **more, **kept)
    reference = run_local(spec, tmp_path / "whole")
    assert reference.status == "ok", reference.reason
    for done in (3, 6, 12):
        source = checkpoint_folder(tmp_path / "whole", done)
        shutil.copytree(source, checkpoint_folder(tmp_path / f"from-{done}", done))
        run = run_local(spec, tmp_path / f"on-{done}", resume=tmp_path / f"from-{done}")
        assert run.status == "ok" and run.steps.step == list(range(done, STEPS)), run.reason
        assert run.steps.loss == reference.steps.loss[done:]
    one = spec_of("ddp", world_size=1, batch={"micro": 1, "global_tokens": 128}, **more)
    assert mismatch(read_about(checkpoint_folder(tmp_path / "whole", 3)), one) is None
    assert mismatch(read_about(source), one).endswith("2 ranks; write world_size: 2")


@pytest.mark.slow
def test_a_cut_checkpoint_is_not_taken_and_the_one_before_it_is(tmp_path):
    """The kill comes while the second checkpoint is being written: its folder has another name
    until it is complete.
    """
    spec = spec_of("single", world_size=1, checkpoint={"every": 2})
    run_local(spec, tmp_path, on_step=at_step(4, lambda: kill_all(tmp_path)))
    last = checkpoints(tmp_path)[-1]
    writing = checkpoint_folder(tmp_path, 8).with_name("step-00000008.writing")
    writing.mkdir()
    (writing / "__0_0.distcp").write_bytes(b"half")
    run = run_local(spec, tmp_path, resume=tmp_path)
    assert [e.step for e in run.events if e.kind == "resumed"] == [
        int(last.name[-8:])
    ] and not writing.exists()
    assert run.status == "ok" and len(kept_steps(tmp_path)) == 2


@pytest.mark.slow
def test_what_does_not_fit_is_answered_in_one_line(whole, tmp_path):
    folder, _ = whole("ddp")
    answers = []
    for spec in (
        spec_of("ddp", "llama-tiny"),
        spec_of("ddp", seed=7),
        spec_of("zero2"),
        spec_of("ddp", steps=5),
    ):
        with pytest.raises(RequestError) as e:
            run_local(spec, tmp_path, resume=folder)
        answers.append(str(e.value))
    with pytest.raises(RequestError, match="has restarts.ddp-w2"):
        run_local(spec_of("fsdp"), folder, resume=folder)
    with pytest.raises(RequestError, match="no complete checkpoint"):
        run_local(spec_of("fsdp"), tmp_path, resume=tmp_path / "empty")
    assert all("\n" not in a and ";" in a for a in answers) and "llama-tiny here" in answers[0]
    zero, _ = whole("zero2")
    with pytest.raises(RequestError, match="needs the same ranks"):
        run_local(spec_of("zero2", world_size=1), tmp_path, resume=zero)


@pytest.mark.slow
def test_the_commands_go_on_after_a_kill(tmp_path):
    """`python -m llmbench.train --resume` after SIGKILL, and `llmbench run --resume`, which ends
    what was left.
    """
    spec = REQUEST | dict(strategy="single", world_size=1, checkpoint={"every": 2})
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    out = tmp_path / "results/restarts/.partial" / run_id(resolve_run(spec))
    train = [sys.executable, "-m", "llmbench.train", "--spec", tmp_path / "spec.yaml", "--out", out]
    for more in ([], ["--resume"]):
        before = kept_steps(out)
        process = subprocess.Popen(
            [*train, *more], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until(
            lambda p=process, b=before: p.poll() is not None or kept_steps(out) != b,
            120,
            every_s=0.01,
        )
        process.kill()
        assert process.wait() == -signal.SIGKILL and not (out / "run.json").exists()
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "run",
        tmp_path / "spec.yaml",
        "--results",
        tmp_path / "results",
        "--resume",
    ]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    run = read_run(tmp_path / "results/restarts" / out.name)
    whole = run_local(resolve_run(spec | {"checkpoint": None}), tmp_path / "whole")
    assert run.status == "ok" and run.goodput.starts == 3 and not out.exists()
    test_near(run.steps.loss, whole.steps.loss, rel=1e-6)
    assert whole.goodput is None and whole.spec.hash == run.spec.hash, (
        "to keep checkpoints is no other training"
    )


def test_a_folder_without_a_checkpoint_is_answered_in_one_line(tmp_path):
    (tmp_path / "spec.json").write_text(json.dumps(REQUEST | dict(strategy="single", world_size=1)))
    command = [
        sys.executable,
        "-m",
        "llmbench.train",
        "--spec",
        tmp_path / "spec.json",
        "--out",
        tmp_path / "run",
        "--resume",
        tmp_path / "none",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and not (tmp_path / "run").exists()
    assert done.stderr.count("\n") == 1 and "no complete checkpoint" in done.stderr, done.stderr
