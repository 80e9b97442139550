"""Split models send what is predicted: on real ranks, and on a simulated mesh of eight GPUs for the
named strategies.
"""

import json
import subprocess
import sys

import pytest

from llmbench.core.numbers import relative_difference
from llmbench.launch.local import run_local
from llmbench.plan.split_traffic import added_up, part_of, split_collectives
from llmbench.spec.named import named_request
from llmbench.spec.resolve import resolve_run

LAYOUTS = {
    "tp2": dict(name="tp", tp=2),
    "pp2": dict(name="pp", pp=2),
    "cp2": dict(name="cp", cp=2),
    "hsdp": dict(name="hsdp", dp_replicate=2),
    "tp2-dp2": dict(name="tp", tp=2, dp=2),
    "tp2-pp2": dict(name="mixed", tp=2, pp=2),
    "fsdp-tp2": dict(name="fsdp", tp=2, dp=2),
    "cp2-tp2": dict(name="mixed", tp=2, cp=2),
    "pp2-dp2": dict(name="pp", pp=2, dp=2),
    "tp4": dict(name="tp", tp=4),
    "fsdp-pp2": dict(name="fsdp", pp=2, dp=2),
    "fsdp-pp2-gpipe": dict(name="fsdp", pp=2, dp=2, schedule="gpipe"),
    "fsdp-pp2-interleaved": dict(
        name="fsdp", pp=2, dp=2, schedule="interleaved", stages_per_rank=2
    ),
    "fsdp1-cp2": dict(name="fsdp", cp=2),
    "fsdp1-cp4": dict(name="fsdp", cp=4),
    "hsdp2x1-cp2": dict(name="hsdp", dp_replicate=2, cp=2),
}


def _predicted(spec, pp_rank):
    step = dict(micro=spec.batch.micro, seq_len=spec.seq_len, accum=spec.batch.accum)
    precision = dict(compute=spec.precision.compute, reduce=spec.precision.reduce)
    return added_up(
        split_collectives(spec.model, spec.strategy, pp_rank=pp_rank, **step, **precision)
    )


def _check(expected, seen, what, scalars=2):
    """Bytes within 1 %, calls exactly but for the scalars of a step (norm, votes)."""
    assert set(seen) == set(expected), f"{what}: {seen}"
    for kind, (calls, size) in expected.items():
        assert relative_difference(seen[kind][1], size) <= 0.01, (
            f"{what} {kind}: {size:,} bytes predicted, {seen[kind][1]:,} seen"
        )
        assert calls <= seen[kind][0] <= calls + scalars, (
            f"{what} {kind}: {calls} calls predicted, {seen[kind][0]} seen"
        )


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-tiny", "gpt-tiny"])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_real_ranks_send_what_is_predicted(layout, model, tmp_path):
    world_size = 2 if layout in ("tp2", "pp2", "cp2", "fsdp1-cp2") else 4
    given = dict(
        model=model,
        strategy=LAYOUTS[layout],
        world_size=world_size,
        seq_len=64,
        batch={"micro": 2, "accum": 2},
        steps=3,
    )
    spec = resolve_run(
        given | dict(warmup_steps=1, precision="bf16" if layout == "tp2-dp2" else "fp32")
    )
    run = run_local(spec, tmp_path)
    assert run.status == "ok", run.reason
    seen = {
        c.kind: (c.calls / run.window.steps, c.bytes / run.window.steps)
        for c in run.collectives
        if c.bytes > 100
    }
    candidates = [
        _predicted(spec, rank) for rank in range(spec.strategy.pp)
    ]  # the busiest rank is kept
    volume = sum(size for _, size in seen.values())
    expected = min(candidates, key=lambda c: abs(sum(size for _, size in c.values()) - volume))
    _check({k: v for k, v in expected.items() if v[1]}, seen, layout)


# --- eight simulated ranks: one process that is told to be rank R, collectives that return at once

SIMULATED = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from collections import Counter
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from llmbench.train import mesh
from llmbench.model.decoder import Decoder, build_model
from llmbench.spec.resolve import resolve_run
from llmbench.train.strategies import mixed
from llmbench.model.precision import DTYPES
from llmbench.train.strategies.pipeline import stage_layers, stages_of, take_stage
from llmbench.train.strategies.tensor import split_tensors

KINDS = {
    "allreduce_": "all_reduce", "all_reduce": "all_reduce", "all_reduce_": "all_reduce", "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather", "_reduce_scatter_base_": "reduce_scatter", "reduce_scatter_tensor": "reduce_scatter",
    "send": "send", "recv_": "recv",
}
PARTS = {"all_gather_into_tensor"}  # calls that are given a rank's part of the whole


class Watch(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls, self.bytes = Counter(), Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:
            return NotImplemented  # look at what it does to its local tensors instead
        name = func.__name__.split(".")[0]
        if func.namespace in ("c10d", "_c10d_functional") and name in KINDS:
            whole = args[1] if name == "_reduce_scatter_base_" else args[0]
            size = sum(t.numel() * t.element_size() for t in tree_leaves(whole) if isinstance(t, torch.Tensor))
            ranks = args[1] if name in PARTS else 1
            self.calls[KINDS[name]] += 1
            self.bytes[KINDS[name]] += size * ranks
        return func(*args, **(kwargs or {}))


request, narrow, rank = json.loads(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])
spec = resolve_run(request)
dist.init_process_group("fake", rank=rank, world_size=spec.world_size, store=FakeStore())
dist.recv = lambda tensor, **_: tensor.fill_(1)  # the stages' vote: all shapes are known
ranks = mesh.Ranks(rank, spec.world_size, rank, torch.device("cpu"), "fake")

with torch.device("meta"):  # true sizes, without memory
    whole = Decoder(spec.model)
grid, place = mesh.device_mesh(ranks, spec.strategy), mesh.place_of(rank, spec.strategy)
layers = stage_layers(spec.model.n_layers, spec.strategy)
stage = take_stage(whole, stages_of(place.pp, spec.strategy)[0], layers)
if spec.strategy.tp > 1:
    split_tensors(stage, grid["tp"])
shapes = {n: list(p.to_local().shape if isinstance(p, DTensor) else p.shape) for n, p in stage.named_parameters()}

small = spec.model_copy(update={"model": spec.model.model_copy(update=narrow)})  # as many layers and heads, narrower
strategy = mixed.build(build_model(small.model, 0, DTYPES[small.precision.compute]), small, ranks)
batch = [torch.randint(0, 100, (small.batch.micro, small.seq_len + 1)) for _ in range(small.batch.accum)]
strategy.forward_backward(batch)
strategy.optimizer_step(0.0)
with Watch() as watch:
    strategy.forward_backward(batch)
    strategy.optimizer_step(0.0)
print(json.dumps({"shapes": shapes, "calls": watch.calls, "bytes": watch.bytes}))
"""
NARROW = {
    "llama3.1-8b": {"d_model": 128, "d_ff": 448, "vocab_size": 4008, "n_layers": 8},
    "qwen2.5-7b": {"d_model": 112, "d_ff": 592, "vocab_size": 4752, "n_layers": 8},
}
NAMES = (
    "maximum_performance",
    "truly_identical",
    "memory_optimized",
    "minimal_communication",
    "balanced",
)


def simulate(request, narrow, rank):
    command = [sys.executable, "-c", SIMULATED, json.dumps(request), json.dumps(narrow), str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("model", list(NARROW))
def test_the_named_layouts_of_eight_gpus(model, name):
    request = named_request(name, model, "h100") | {
        "seq_len": 64,
        "precision": "bf16",
        "steps": 3,
        "warmup_steps": 1,
    }
    request["batch"] = {"micro": 1, "accum": 2}
    request = {k: v for k, v in request.items() if k != "runs"}
    spec = resolve_run(request)
    small = spec.model_copy(update={"model": spec.model.model_copy(update=NARROW[model])})
    for rank in (0, 7):
        seen = simulate(request, NARROW[model], rank)
        part = part_of(spec.model, spec.strategy, rank // (8 // spec.strategy.pp))
        assert {k: tuple(v) for k, v in seen["shapes"].items()} == part.pieces(), (
            f"{name}: shapes of rank {rank}"
        )
        expected = _predicted(small, rank // (8 // spec.strategy.pp))
        counted = {kind: (calls, seen["bytes"][kind]) for kind, calls in seen["calls"].items()}
        _check(
            {k: v for k, v in expected.items() if v[1]},
            {k: v for k, v in counted.items() if v[1] > 100},
            f"{name} rank {rank}",
        )
