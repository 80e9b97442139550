"""Runs that fail: each ends as the right status, soon, with every step that was measured before."""

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import becomes_true, until

from llmbench.launch.local import run_local
from llmbench.spec.resolve import resolve_run

REQUEST = {
    "study": "faults",
    "model": "gpt-tiny",
    "strategy": "ddp",
    "world_size": 2,
    "seq_len": 128,
    "batch": {"micro": 4, "accum": 1},
    "steps": 400,
    "warmup_steps": 2,
    "timeouts": {"run_s": 600, "collective_s": 60},
}  # of a busy machine; a rank that ends is noticed at once
DEADLINE_S = 60


def rank_process(out: Path, rank: int) -> int:
    """Process id of a rank that trains into `out`."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if (
            f"RANK={rank}".encode() in variables
            and b"llmbench.train" in command.split(b"\0")  # not the process that samples it
            and str(out).encode() in command
        ):
            return int(entry.name)
    raise LookupError(f"no process of rank {rank}")


def state_of(pid: int) -> str:
    """The kernel's letter for a process: R runs, S sleeps, T is stopped, Z has ended and was not
    reaped.
    """
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def ended(pid: int, within_s: float = 10) -> bool:
    """Whether a killed process is gone: the kernel takes a moment to give back its memory, its
    parent to notice.
    """

    def gone() -> bool:
        try:
            return state_of(pid) == "Z"
        except OSError:
            return True

    return becomes_true(gone, within_s)


def at_step(number, act):
    """An on_step callback that does something once, when a step is reached."""
    reached = {}

    def on_step(row):
        if row["step"] >= number and not reached:
            reached["at"] = time.monotonic()
            act()

    on_step.reached = reached
    return on_step


def test_a_rank_killed_at_step_10_is_a_crash_with_its_steps(tmp_path):
    # rank 0 has ended step 10, so rank 1 took part in it and has written step 9
    on_step = at_step(10, lambda: os.kill(rank_process(tmp_path, 1), signal.SIGKILL))
    run = run_local(resolve_run(REQUEST), tmp_path, on_step=on_step)
    assert on_step.reached, run.reason
    assert time.monotonic() - on_step.reached["at"] < DEADLINE_S
    assert run.status == "crash" and "rank 1" in run.reason, run.reason
    measured = [t for t in run.steps.time_s if t is not None]
    assert 10 <= len(measured) < 400 and all(run.steps.loss[: len(measured)])


def test_memory_that_runs_out_is_an_oom_with_its_steps(tmp_path, monkeypatch):
    """The address space of a running rank is closed at step 5: the next large tensor cannot be
    allocated.
    """
    own_mapping = {
        "MALLOC_MMAP_THRESHOLD_": "65536"
    }  # of each tensor; the launcher's settings would serve it from what was freed before
    monkeypatch.setattr("llmbench.launch.command._KEEP_MEMORY", own_mapping)

    def close_address_space():
        pid = rank_process(tmp_path, 0)
        resource.prlimit(pid, resource.RLIMIT_AS, (2**20, 2**20))

    on_step = at_step(5, close_address_space)
    run = run_local(resolve_run(REQUEST), tmp_path, on_step=on_step)
    assert on_step.reached, run.reason
    assert time.monotonic() - on_step.reached["at"] < DEADLINE_S
    assert run.status == "oom", (run.status, run.reason)
    # rank 0 has ended step 5, so rank 1 took part in it and has written step 4
    assert len([t for t in run.steps.time_s if t is not None]) >= 5


def test_a_loss_that_is_no_number_is_diverged_with_its_steps(tmp_path):
    """Adam moves each weight by about the rate; a rate that rises to 1e12 takes some steps to
    overflow.
    """
    wild = REQUEST | {
        "optimizer": {"lr": 1e12, "lr_warmup_steps": 100, "clip_norm": None},
        "batch": {"micro": 2, "accum": 1},
    }
    started = time.monotonic()
    run = run_local(resolve_run(wild), tmp_path)
    assert time.monotonic() - started < DEADLINE_S
    assert run.status == "diverged" and "gradient norm" in run.reason
    assert (
        run.steps.loss[0] is not None
        and run.steps.grad_norm[-1] is None
        and len(run.steps.step) < 400
    )


def test_a_run_past_its_deadline_is_a_timeout_with_its_steps(tmp_path):
    """Both ranks are stopped in mid-run, then the launcher's clock moves past the deadline: a busy
    machine and an idle one have measured the same by then.
    """

    def stop_both():
        for rank in (0, 1):
            os.kill(rank_process(tmp_path, rank), signal.SIGSTOP)

    on_step = at_step(2, stop_both)
    clock = lambda: time.monotonic() + 601 * bool(on_step.reached)
    run = run_local(resolve_run(REQUEST), tmp_path, on_step=on_step, clock=clock)
    assert run.status == "timeout" and "600 s" in run.reason, run.reason
    assert on_step.reached and 2 <= len(run.steps.time_s) < 400


SPLIT = {
    "ddp": {},
    "fsdp": {},
    "zero1": {},
    "zero2": {},
    "zero3": {},
    "tp": {},
    "pp": {"batch": {"micro": 2, "accum": 2}},
}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SPLIT)
def test_a_frozen_rank_is_noticed_by_the_collective_deadline(strategy, tmp_path):
    """SIGSTOP: the process is there, and never answers. DeepSpeed and device meshes make groups of
    their own.
    """
    pids = []

    def freeze():
        pids.append(rank_process(tmp_path, 1))
        os.kill(pids[0], signal.SIGSTOP)

    on_step = at_step(3, freeze)
    asked = (
        REQUEST
        | {"strategy": strategy, "timeouts": {"run_s": 300, "collective_s": 40}}
        | SPLIT[strategy]
    )  # also of the first one, on a busy machine
    run = run_local(resolve_run(asked), tmp_path, on_step=on_step)
    assert on_step.reached, run.reason
    assert time.monotonic() - on_step.reached["at"] < 40 + DEADLINE_S
    assert run.status in ("timeout", "crash"), run.reason
    assert len([t for t in run.steps.time_s if t is not None]) >= 4
    assert ended(pids[0]), "a frozen process was left behind"


WATCHED = """
import sys
from llmbench.launch import local, processes
from llmbench.launch.command import Launch
processes._GUARD_S = 1.0
asleep = "import time; time.sleep(600)"
ranks = (sys.executable, "-m", "llmbench.launch.ranks", "2", "-c", asleep, sys.argv[1])
local.supervise(Launch(ranks), sys.argv[1], deadline_s=600)
"""


def processes_with(word: str) -> dict[int, bytes]:
    """Command lines by process id."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found[int(entry.name)] = line
    return found


@pytest.mark.parametrize("frozen", ["launcher", "rank", "both"])
def test_nothing_is_left_of_a_run_whose_sweep_is_killed_while_it_is_frozen(frozen, tmp_path):
    """Real processes of the launcher and its ranks: SIGSTOP to them, then SIGKILL to who watches;
    SIGTERM would not reach them.
    """
    sweep = subprocess.Popen([sys.executable, "-c", WATCHED, str(tmp_path)])
    started = lambda: {
        p: line
        for p, line in processes_with(str(tmp_path)).items()
        if p != sweep.pid and b"sleep(600)" in line
    }
    try:
        until(lambda: len(started()) == 3)
        until(
            lambda: sum(b"llmbench.launch.ranks" in line for line in started().values()) == 1
        )  # a fork bears its parent's words at first
        launcher = [p for p, line in started().items() if b"llmbench.launch.ranks" in line]
        ranks = [p for p in started() if p not in launcher]
        stopped = {"launcher": launcher, "rank": ranks[:1], "both": launcher + ranks}[frozen]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        until(
            lambda: all(state_of(pid) == "T" for pid in stopped)
        )  # SIGTERM waits there until SIGCONT
        sweep.kill()
        sweep.wait()
        until(lambda: not started(), 40)
    finally:
        for pid in started():
            os.kill(pid, signal.SIGKILL)
