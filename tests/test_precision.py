"""float16 with its loss scale, and float8: the same training on two ranks as on one, and every
skipped step counted.
"""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from llmbench.analysis.training import training_is_real
from llmbench.core.numbers import test_near
from llmbench.core.schema import dump_run
from llmbench.launch.command import profile_of, visible_gpus
from llmbench.launch.local import run_local
from llmbench.spec.resolve import resolve_run

# a CPU multiplies in float16 one number at a time: the smallest model that still has everything
SMALL = {"name": "llama-tiny", "n_layers": 2, "d_model": 32, "d_ff": 64, "vocab_size": 256}
REQUEST = {
    "study": "precision",
    "seq_len": 16,
    "batch": {"micro": 1, "global_tokens": 64},
    "steps": 12,
    "warmup_steps": 2,
    "model": SMALL,
    "optimizer": {"lr": 1.0e-3, "lr_warmup_steps": 2},
    "data": {"kind": "text"},
    "collective_steps": 0,
}
STRATEGIES = (
    "ddp",
    "fsdp",
    "zero1",
    "zero2",
    "zero3",
    {"name": "tp", "tp": 2},
    {"name": "pp", "pp": 2},
)


def _request(strategy, precision, **changes):
    world_size = 1 if strategy == "single" else 2
    return REQUEST | dict(strategy=strategy, world_size=world_size, precision=precision) | changes


def _name(strategy):
    return strategy if isinstance(strategy, str) else strategy["name"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs by strategy, start of the loss scale and steps, each trained once."""
    done = {}

    # two ranks have half the micro steps, so each gradient is twice as large: at 65536 one of these
    # steps overflows there
    def run(strategy, loss_scale=16384.0, steps=12):
        key = (_name(strategy), loss_scale, steps)
        if key not in done:
            fp16 = {"compute": "float16", "loss_scale": loss_scale}
            done[key] = run_local(
                resolve_run(_request(strategy, fp16, steps=steps)),
                tmp_path_factory.mktemp(_name(strategy)),
            )
            assert done[key].status == "ok", done[key].reason
        return done[key]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES, ids=_name)
def test_float16_follows_the_single_process(trained, strategy):
    reference, run = trained("single"), trained(strategy)
    test_near(run.steps.loss, reference.steps.loss, rel=2e-2)
    test_near(run.steps.grad_norm, reference.steps.grad_norm, rel=2e-2)
    assert run.steps.loss[-1] < run.steps.loss[0], "it does not learn"
    assert (
        run.skipped_steps == reference.skipped_steps == 0 and run.steps.loss_scale == [16384.0] * 12
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ("single", "ddp", "fsdp", "zero2", "zero3", {"name": "pp", "pp": 2}), ids=_name
)
def test_a_step_that_overflows_is_skipped_and_counted(trained, strategy):
    run = trained(strategy, 2.0**28, 20)
    first = next(i for i, norm in enumerate(run.steps.grad_norm) if norm is not None)
    assert first >= 2 and run.steps.loss_scale[: first + 1] == [
        2.0 ** (28 - n) for n in range(first + 1)
    ], "the scale that fits is found by halving"
    assert run.skipped_steps == run.steps.grad_norm.count(None) < 18
    assert all(loss is not None for loss in run.steps.loss), "losses stay finite"
    assert run.steps.loss[-1] < run.steps.loss[first], "it learns from there on"
    assert not training_is_real(dump_run(run)), "a skipped step is no fault"
    assert abs(run.skipped_steps - trained("single", 2.0**28, 20).skipped_steps) <= 1, (
        "ranks skip together, and what one process skips"
    )


def test_float8_is_refused_where_there_is_none_before_a_rank_starts(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(_request("single", "fp8")))
    command = [
        sys.executable,
        "-m",
        "llmbench.cli",
        "run",
        str(file),
        "--results",
        str(tmp_path / "results"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and "write precision: bf16" in done.stderr, done.stderr
    assert not list(tmp_path.rglob("rank-*.jsonl")), "a rank was started"


@pytest.mark.skipif("h100" in map(profile_of, visible_gpus()), reason="here is an H100")
def test_float8_for_a_card_that_is_not_here_starts_nothing(tmp_path):
    run = run_local(resolve_run(_request("single", "fp8", hardware="h100")), tmp_path)
    assert (
        run.status == "refused"
        and "-o hardware=cpu alone is not enough: precision float8" in run.reason
    ), run.reason
    assert not list(tmp_path.rglob("rank-*.jsonl")), "a rank was started"


EMULATED = """
import json, os, sys
import torch
import llmbench.train.strategies.base as base
from llmbench.train.loop import trial
from llmbench.model.precision import to_float8
from llmbench.spec.resolve import resolve_run
from llmbench.train.worker import load_strategy
base.with_precision = lambda model, precision, device: to_float8(model, emulate=True)
spec = resolve_run(json.loads(sys.argv[1])).model_copy(update={"hardware": "cpu"})  # as a request for a CPU it is refused
rows = trial(load_strategy(spec.strategy, torch.device("cpu")), spec)
with open(f"{sys.argv[2]}/{os.environ.get('RANK', 0)}.json", "w") as f:
    json.dump([[r["loss"], r["grad_norm"]] for r in rows], f)
os._exit(0)
"""


def _emulated(strategy, folder):
    request = json.dumps(
        _request(
            strategy,
            "fp8",
            hardware="h100",
            batch={"micro": 2, "global_tokens": 256},
            seq_len=32,
            steps=6,
        )
    )
    torchrun = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "--no-python",
        sys.executable,
    ]
    command = [
        sys.executable,
        *([] if strategy == "single" else torchrun),
        "-c",
        EMULATED,
        request,
        str(folder),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env=dict(os.environ)
    )
    ranks = [json.loads(f.read_text()) for f in sorted(folder.glob("*.json"))]
    assert ranks, done.stderr[-2000:]
    losses = [[loss for loss, _ in step if loss is not None] for step in zip(*ranks, strict=True)]
    return [sum(each) / len(each) for each in losses], [norm for _, norm in ranks[0]]


@pytest.mark.slow
@pytest.mark.skipif(not importlib.util.find_spec("torchao"), reason="torchao is not installed")
@pytest.mark.parametrize(
    "strategy",
    ("ddp", "fsdp", "zero2", {"name": "tp", "tp": 2}, {"name": "pp", "pp": 2}),
    ids=_name,
)
def test_float8_arithmetic_follows_the_single_process(tmp_path, strategy):
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    losses, norms = _emulated(strategy, tmp_path / "two")
    one_loss, one_norm = _emulated("single", tmp_path / "one")
    test_near(losses, one_loss, rel=2e-2)
    test_near(norms, one_norm, rel=5e-2)
