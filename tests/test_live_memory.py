"""The bytes of tensors that a run counts in one more step, beside what its request predicts."""

import json
import os
import subprocess

import pytest

from llmbench.core.numbers import relative_difference
from llmbench.launch.command import render
from llmbench.plan.layout_memory import memory_of
from llmbench.spec.resolve import resolve_run

STRATEGIES = ("single", "ddp", "fsdp", "zero1", "zero2", "zero3")
SHAPES = {
    "gpt-tiny": {"seq_len": 128, "micro": 4},
    "gpt-124m": {"seq_len": 64, "micro": 1},
}  # 4 and 124 million parameters


def asked(strategy, model="gpt-tiny", **more):
    """The same tokens an optimizer step on one rank or two."""
    ranks, shape = 1 if strategy == "single" else 2, SHAPES[model]
    batch = {"micro": shape["micro"], "accum": 4 // ranks}
    given = {
        "model": model,
        "strategy": strategy,
        "world_size": ranks,
        "seq_len": shape["seq_len"],
        "batch": batch,
    }
    return resolve_run(given | {"steps": 3, "warmup_steps": 1, "collective_steps": 1} | more)


def trained(spec, folder):
    """The run file of a run in processes of its own."""
    folder.mkdir()
    launch = render(spec, folder, cores=2)
    for name, text in launch.files.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        launch.command,
        env=os.environ | launch.env,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    run = json.loads((folder / "run.json").read_text())
    assert run["status"] == "ok", (run["reason"], done.stderr[-3000:])
    return run


def fullest(run):
    return max(rank["live_tensor_peak_bytes"] for rank in run["ranks"])


def check(strategies, model, tmp_path):
    """Each within a tenth of the prediction, and all in its order, but for those that are predicted
    to be equal.
    """
    predicted = {s: memory_of(asked(s, model))["peak_bytes"] for s in strategies}
    live = {s: fullest(trained(asked(s, model), tmp_path / s)) for s in strategies}
    for s in strategies:
        assert relative_difference(live[s], predicted[s]) <= 0.10, (
            f"{s}: {live[s]:,} bytes live, {predicted[s]:,} predicted"
        )
    for a in strategies:
        for b in strategies:
            if predicted[a] < 0.95 * predicted[b]:
                assert live[a] < live[b], (a, b, live, predicted)


def test_a_run_counts_its_tensors_after_the_timed_steps(tmp_path):
    check(("fsdp",), "gpt-tiny", tmp_path)
    run = json.loads((tmp_path / "fsdp" / "run.json").read_text())
    assert run["steps"]["step"] == [0, 1, 2] and all(
        len(rank["time_s"]) == 3 for rank in run["ranks"]
    )
    assert all(
        rank["peak_allocated_bytes"] != rank["live_tensor_peak_bytes"] for rank in run["ranks"]
    )


def test_what_cannot_be_watched_is_unknown(tmp_path):
    compiled = asked(
        "single",
        compile=True,
        optimizer={"fused": False},
        seq_len=32,
        batch={"micro": 1, "accum": 1},
        collective_steps=0,
    )
    assert [
        rank["live_tensor_peak_bytes"] for rank in trained(compiled, tmp_path / "compiled")["ranks"]
    ] == [None]


@pytest.mark.slow
@pytest.mark.parametrize("model", SHAPES)
def test_six_strategies_hold_what_is_predicted_in_its_order(model, tmp_path):
    check(STRATEGIES, model, tmp_path)
