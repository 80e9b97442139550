"""A run restarts by itself: after a kill it goes on from its last checkpoint, and at a notice it
writes one, ends as interrupted and is taken up by the next start. Steps are neither lost nor
repeated, and the losses are those of a run that nobody disturbed.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from test_checkpoint import REQUEST, ROOT, kept_steps
from test_faults import at_step, rank_process
from waiting import until

from llmbench.core.numbers import test_near
from llmbench.core.records import read_run
from llmbench.launch.local import run_local
from llmbench.spec.notice import INTERRUPTED_CODE, give_notice, notice_file
from llmbench.spec.request import run_id
from llmbench.spec.resolve import resolve_run

SMALL = {"name": "llama-tiny", "n_layers": 2, "d_model": 64, "d_ff": 128, "vocab_size": 256}
PP = {"name": "pp", "dp": 1, "pp": 2}
ENGINES = {"ddp": "ddp", "fsdp": "fsdp", "zero2": "zero2", "zero3": "zero3", "pp": PP}
STEPS, EVERY = 240, 12
# of each engine; 20 over all of them
KILLS = int(os.environ.get("LLMBENCH_KILLS", "4"))


def asked(strategy="ddp", **more):
    """A request whose steps take milliseconds, and of which there are many."""
    small = {"model": SMALL, "steps": STEPS, "checkpoint": {"every": EVERY}, "world_size": 2}
    return REQUEST | small | {"strategy": strategy} | more


def same_curve(run, whole) -> None:
    """Every step once, with its own data, and the losses of the undisturbed run."""
    assert run.status == "ok", run.reason
    assert run.steps.step == whole.steps.step == list(range(run.spec.steps))
    assert run.spec.data.fingerprint == whole.spec.data.fingerprint
    assert not [e for e in run.events if e.kind == "data_repeated"]
    test_near(run.steps.loss, whole.steps.loss, rel=1e-6)
    for rank in run.ranks:
        assert len(rank.time_s) == run.spec.steps and None not in rank.time_s


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody disturbs, trained once."""
    return run_local(resolve_run(asked(checkpoint=None)), tmp_path_factory.mktemp("whole"))


def test_a_killed_rank_costs_no_step(whole, tmp_path):
    kill = at_step(20, lambda: os.kill(rank_process(tmp_path, 1), signal.SIGKILL))
    run = run_local(resolve_run(asked()), tmp_path, on_step=kill, restarts=2)
    same_curve(run, whole)
    assert kill.reached and run.goodput.starts == 2 and run.goodput.interruptions == 0
    (again,) = [e for e in run.events if e.kind == "restarted"]
    (resumed,) = [e for e in run.events if e.kind == "resumed"]
    assert "rank 1" in again.text and resumed.step % EVERY == 0 < resumed.step
    # none, where the kill came between a checkpoint and the next step
    assert 0 <= resumed.lost_steps == run.goodput.lost_steps < 6 * EVERY
    assert resumed.step + resumed.lost_steps > 20


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_notice_costs_no_step(engine, tmp_path):
    """No checkpoint but that of the notice, whose step all ranks agree on."""
    spec = resolve_run(asked(ENGINES[engine], checkpoint={"every": 10_000}))
    whole = run_local(spec.model_copy(update={"checkpoint": None}), tmp_path / "whole")
    out = tmp_path / "cut"
    notice = at_step(20, lambda: give_notice(notice_file(out)))
    cut = run_local(spec, out, on_step=notice)
    assert cut.status == "interrupted" and "notice" in cut.reason, (cut.status, cut.reason)
    (saved,) = [e.step for e in cut.events if e.kind == "interrupted"]
    assert kept_steps(out) == [saved] == [len(cut.steps.step)] and 20 < saved < STEPS
    assert cut.goodput.starts == cut.goodput.interruptions == 1
    run = run_local(spec, out, resume=out)
    same_curve(run, whole)
    assert run.goodput.starts == 2 and run.goodput.lost_steps == 0 == len(
        [e for e in run.events if e.kind == "restarted"]
    )


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "llmbench.cli", *words]


@pytest.mark.slow
@pytest.mark.parametrize("way", ["notebook", "direct"])
def test_sigterm_interrupts_a_command_and_the_same_command_continues(whole, way, tmp_path):
    """SIGTERM to `llmbench run` or `sweep` alone, as a service manager or a spot machine sends."""
    given = asked(checkpoint={"every": 10_000})
    file = tmp_path / "ask.yaml"
    study = {"study": "restarts", "base": {**given}, "matrix": [{"name": "ddp-w2"}]}
    del study["base"]["study"]
    file.write_text(json.dumps(given if way == "notebook" else study))
    verb = ["run", str(file)] if way == "notebook" else ["sweep", str(file), "--direct"]
    results = tmp_path / "results"
    words = command(*verb, "--results", str(results))
    out = results / "restarts/.partial" / run_id(resolve_run(given))
    first = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    rows = lambda: (out / "rank-000.jsonl").read_text().count('"kind":"step"')
    until(lambda: (out / "rank-000.jsonl").exists() and rows() > 20, 200, process=first)
    first.send_signal(signal.SIGTERM)
    told = first.communicate(timeout=100)[0]
    assert first.returncode == INTERRUPTED_CODE and "1 interrupted" in told, told
    cut = read_run(results / "restarts" / out.name)
    assert cut.status == "interrupted" and 20 < len(cut.steps.step) < STEPS, cut.reason
    second = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert second.returncode == 0, second.stderr
    run = read_run(results / "restarts" / out.name)
    same_curve(run, whole)
    assert run.goodput.starts == 2 and run.goodput.interruptions == 1
    assert run.goodput.lost_steps == 0


@pytest.mark.slow
def test_a_run_without_checkpoints_ends_at_once_and_starts_anew(whole, tmp_path):
    spec = resolve_run(asked(checkpoint=None))
    notice = at_step(5, lambda: give_notice(notice_file(tmp_path)))
    cut = run_local(spec, tmp_path, on_step=notice)
    assert cut.status == "interrupted" and len(cut.steps.step) >= 5 and cut.goodput is None
    same_curve(run_local(spec, tmp_path), whole)


class Killer(threading.Thread):
    """SIGKILL to one rank after the other, at moments that a seed has drawn: some steps after the
    last kill, or, each fourth time, while the ranks start and load.
    """

    def __init__(self, out: Path, kills: int, seed: int):
        super().__init__(daemon=True)
        self.out, self.drawn, self.over = out, random.Random(seed), threading.Event()
        self.killed, part, self.began = [], STEPS / kills, set()
        self.targets = [int(part * (i + self.drawn.uniform(0.1, 0.7))) for i in range(kills)]

    def done(self) -> int:
        """The last step that rank 0 has written in its present start, or -1."""
        try:
            text = (self.out / "rank-000.jsonl").read_text().rpartition('"kind":"start"')[2]
        except OSError:
            return -1
        rows = [json.loads(li) for li in text.splitlines()[1:] if li.endswith("}")]
        return max((r["step"] for r in rows if r["kind"] == "step"), default=-1)

    def starts(self) -> int:
        """The starts in which rank 0 has come so far that it wrote."""
        try:
            return (self.out / "rank-000.jsonl").read_text().count('"kind":"start"')
        except OSError:
            return 0

    def living(self, rank: int) -> int | None:
        try:
            return rank_process(self.out, rank)
        except LookupError:
            return None

    def ready(self, rank: int, before: set[int | None], target: int) -> bool:
        """Whether a rank of a new start has come so far, or the run is over."""
        there = self.done() >= target and self.living(rank) not in {None, *before}
        return self.over.is_set() or there

    def run(self) -> None:
        before: set[int | None] = set()
        for i, target in enumerate(self.targets):
            rank, early = self.drawn.randrange(2), i % 4 == 3
            wait_s = self.drawn.uniform(0.0, 4.0 if early else 0.05)
            while not self.kill(rank, before, -1 if early else target, wait_s):
                if self.over.is_set():
                    return

    def kill(self, rank: int, before: set[int | None], target: int, wait_s: float) -> bool:
        """Kill a rank of the next start; False if it has ended by itself before."""
        until(partial(self.ready, rank, before, target), 3000, every_s=0.02)
        pid = self.living(rank)
        if self.over.wait(wait_s) or pid is None:
            return False
        at = self.done()
        self.began.add(self.starts())
        before |= {self.living(0), self.living(1)}
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        self.killed.append((rank, at))
        return True


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_kills_at_random_moments_lose_and_repeat_no_step(engine, tmp_path):
    """Real ranks, SIGKILL, `restarts`; LLMBENCH_KILLS=20 for twenty under each engine."""
    spec = resolve_run(asked(ENGINES[engine], timeouts={"run_s": 3000}))
    whole = run_local(spec.model_copy(update={"checkpoint": None}), tmp_path / "whole")
    out = tmp_path / "cut"
    killer = Killer(out, KILLS, seed=len(engine))
    killer.start()
    began = time.monotonic()
    try:
        run = run_local(spec, out, restarts=KILLS)
    finally:
        killer.over.set()
        killer.join()
    took_s = time.monotonic() - began
    same_curve(run, whole)
    restarted = [e for e in run.events if e.kind == "restarted"]
    assert len(killer.killed) == KILLS == len(restarted), killer.killed
    # a rank that dies while it imports ends a start that has written nothing
    assert len(killer.began - {0}) + 1 <= run.goodput.starts <= 1 + KILLS
    assert run.goodput.interruptions == 0 and run.goodput.lost_steps < KILLS * 3 * EVERY
    sys.stderr.write(
        f"\n{engine}: {KILLS} kills at (rank, step) {killer.killed}; {run.goodput.lost_steps} steps"
        f" done again, {len(run.steps.step)} of {STEPS} steps, each once; {took_s:.0f} s\n"
    )
