"""Run files that the reading door lets through and no training would write: columns that are
missing, too short, zero or huge, ranks of no host, pipelines without sizes. What says why a run is
slow says something of each of them, or that it cannot; none ends in an exception.
"""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from llmbench.analysis.ranks.late import slow_links, straggling
from llmbench.analysis.window import data_wait, mean_clock_mhz, time_shares
from llmbench.compare.explained.causes import explain_runs
from llmbench.compare.explained.parts import step_time
from llmbench.compare.hosts.late_words import RANK_STYLES, ranks_answer
from llmbench.core.errors import LlmbenchError
from llmbench.core.schema import dump_run, validate_run
from llmbench.plan.examples import demo_run

COLUMNS = (
    "time_s", "data_time_s", "bookkeeping_s", "cpu_time_s", "core_wait_s", "optimizer_time_s",
    "optimizer_cpu_s",
)  # fmt: skip
WINDOW = ("window_time_s", "next_link_gb_s", "measured_wall_s")
VALUES = (0.0, 1e-9, 0.1, 0.5, 3.0, 1e6, None)


def odd_column(chance: random.Random, steps: int, zero: bool) -> list[float | None] | None:
    """A column of a rank; None: as it was."""
    kind = chance.random()
    if kind < 0.5:
        return [chance.choice((0.1, 0.2, 0.5)) for _ in range(steps)]
    if kind < 0.7:
        long = chance.choice((steps, steps, steps - 1, steps + 2, 0))
        return [chance.choice(VALUES if zero else VALUES[1:]) for _ in range(long)]
    return [0.0] * steps if kind < 0.75 and zero else None


def odd_rank(chance: random.Random, rank: dict[str, Any], steps: int) -> None:
    for name in COLUMNS:
        column = odd_column(chance, steps, zero=name != "time_s")
        rank[name] = rank[name] if column is None else column
    for name in WINDOW:
        rank[name] = chance.choice((None, 0.0, 1e-9, 0.3, 1e5))
    whole = rank["window_time_s"]
    for name in ("window_exposed_s", "window_idle_s"):
        rank[name] = None if whole is None else chance.choice((None, 0.0, whole / 2, whole))
    rank["host"] = chance.choice((None, "a", "b"))


def odd_run(seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    steps, ranks = chance.choice((3, 4, 5, 9, 20)), chance.choice((2, 4))
    run = dump_run(demo_run("ddp", ranks, 0.5, steps=steps))
    for rank in run["ranks"]:
        odd_rank(chance, rank, steps)
    if chance.random() < 0.2:
        run["ranks"] = run["ranks"][: chance.randrange(ranks + 1)]
    run["spec"]["batch"] = dict.fromkeys(run["spec"]["batch"])
    run["measurement"]["clock"] = chance.choice(("monotonic", "device_events", None))
    run["spec"]["warmup_steps"] = chance.choice((None, 0, 1, 2, 50))
    sizes = ({}, {}, {"dp": None, "pp": 2}, {"dp": ranks // 2, "pp": 2}, {"dp": None, "pp": None})
    run["spec"]["strategy"] |= chance.choice(sizes)
    if chance.random() < 0.3:
        run["window"] = {"steps": chance.choice((1, 2)), "time_s": chance.choice((1e-9, 1.0))}
    if chance.random() < 0.2:
        saved = {"step": chance.choice((None, 3)), "time_s": chance.choice((None, 1.0))}
        run["events"] = [{"kind": "checkpoint_saved", **saved}]
    return run


def admitted(seed: int) -> dict[str, Any] | None:
    try:
        return dump_run(validate_run(odd_run(seed)))
    except LlmbenchError:  # refused at the door, which is as good
        return None


def questions(run: dict[str, Any]) -> list[Callable[[], object]]:
    other = dump_run(demo_run("ddp", 2, 0.6, steps=9))
    whole = (data_wait, time_shares, mean_clock_mhz, step_time)
    asked = [partial(question, run) for question in whole]
    asked += [partial(f, runs) for f in (straggling, slow_links) for runs in ([run], [run, other])]
    asked += [partial(explain_runs, [run, run], [other, other])]
    return [*asked, *(partial(told_of_ranks, run, style) for style in RANK_STYLES)]


def told_of_ranks(run: dict[str, Any], style: str) -> str:
    return RANK_STYLES[style](ranks_answer([run], "odd"))


@pytest.mark.parametrize("first", range(0, 2000, 500))
def test_an_odd_run_is_answered_or_refused_in_words(first):
    runs = [run for seed in range(first, first + 500) if (run := admitted(seed))]
    assert len(runs) > 40, "the door refused nearly all: nothing was asked"
    answered = 0
    for run in runs:
        for question in questions(run):
            try:
                question()
                answered += 1
            except LlmbenchError as error:
                assert str(error)
    assert answered > 5 * len(runs)
