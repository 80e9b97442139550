"""A mixture whose experts are dealt out to ranks trains like the single process: every gradient,
and twenty steps of loss.
"""

import json
import subprocess
import sys

import pytest
import torch

from llmbench.core.numbers import relative_difference, test_near
from llmbench.model.data import micro_batch, rank_sequences, source_for
from llmbench.model.decoder import build_model, next_token_loss
from llmbench.plan.flops import model_state_bytes
from llmbench.plan.traffic import predicted_collectives
from llmbench.spec.request import RunSpec
from llmbench.spec.resolve import resolve_run
from llmbench.train.loop import trial
from llmbench.train.mesh import Ranks
from llmbench.train.strategies import single
from llmbench.train.strategies.base import prepare_model

STEPS = 20
REQUEST = {
    "model": "mixtral-tiny",
    "seq_len": 32,
    "batch": {"micro": 2, "global_tokens": 512},
    "steps": STEPS,
    "warmup_steps": 2,
    "optimizer": {"lr": 1.0e-3, "weight_decay": 0.01, "lr_warmup_steps": 5},
    "data": {"kind": "text"},
    "collective_steps": 0,
}
PROGRAM = """
import json, os, sys
import torch
from llmbench.train.loop import trial
from llmbench.spec.request import RunSpec
from llmbench.train.strategies import experts

first = {}


def build(model, spec, ranks):
    strategy = experts.build(model, spec, ranks)
    average, names = strategy.gradients, [name.removeprefix("module.") for name, _ in strategy.model.named_parameters()]

    def gradients():
        found = average()
        if not first:
            first.update((name, g.clone()) for name, g in zip(names, found, strict=True))
        return found

    strategy.gradients = gradients
    return strategy


rows = trial(build, RunSpec.model_validate_json(sys.argv[1]))
torch.save((rows, first), f"{sys.argv[2]}/{os.environ['RANK']}.pt")
os._exit(0)
"""


def request(dp: int, ep: int, name: str = "ep", dp_replicate: int = 1, **changes) -> RunSpec:
    """The same global batch for every layout."""
    strategy = {"name": name, "ep": ep, "dp_replicate": dp_replicate} if dp > 1 else "single"
    return resolve_run(REQUEST | {"strategy": strategy, "world_size": dp} | changes)


def ranks_of(spec: RunSpec, folder) -> list:
    """Each rank's facts of every step, and its gradients in the first."""
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(spec.world_size),
        "--no-python",
    ]
    command = [
        *start,
        sys.executable,
        "-c",
        PROGRAM,
        json.dumps(spec.model_dump(mode="json")),
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    files = [folder / f"{rank}.pt" for rank in range(spec.world_size)]
    assert all(f.exists() for f in files), done.stderr[-3000:]
    return [torch.load(f) for f in files]


@pytest.fixture(scope="module")
def reference():
    """The single process: its steps, and the gradient of the first global batch."""
    spec = request(1, 1)
    model = prepare_model(
        build_model(spec.model, spec.seed), spec, Ranks(0, 1, 0, torch.device("cpu"), None)
    )
    numbers, source = (
        rank_sequences(0, micro=2, accum=spec.batch.accum, dp=1, dp_rank=0),
        source_for(spec),
    )
    for some in numbers:
        (
            next_token_loss(model, torch.from_numpy(micro_batch(source, some))) / spec.batch.accum
        ).backward()
    return trial(single.build, spec), {name: p.grad for name, p in model.named_parameters()}


LAYOUTS = [
    (2, 2, {}),
    (4, 2, {}),
    (4, 4, {}),
    (2, 2, {"recompute": "full"}),
    (2, 2, {"compile": True}),
]
SHARDED = [
    (2, 2, {"name": "fsdp"}),
    (4, 2, {"name": "fsdp"}),
    (4, 2, {"name": "hsdp", "dp_replicate": 2}),
]  # the rest sharded over all ranks, or half of them


@pytest.mark.slow
@pytest.mark.parametrize(("dp", "ep", "changes"), LAYOUTS + SHARDED, ids=str)
def test_dealt_experts_follow_the_single_process(reference, tmp_path, dp, ep, changes):
    rows, gradients = reference
    found = ranks_of(request(dp, ep, **changes), tmp_path)
    losses = [
        sum(r["loss"] for r in step) / dp
        for step in zip(*(ranks for ranks, _ in found), strict=True)
    ]
    test_near(losses, [r["loss"] for r in rows], rel=1e-5)
    assert losses[-1] < 0.75 * losses[0], "it does not learn"
    for rank, (steps, mine) in enumerate(found):
        test_near([s["grad_norm"] for s in steps], [r["grad_norm"] for r in rows], rel=1e-3)
        assert set(mine) == set(gradients)
        for name, gradient in mine.items():
            whole = gradients[name].chunk(ep)[rank % ep] if ".experts." in name else gradients[name]
            if "name" in changes and ".experts." not in name:
                shards = dp // changes.get("dp_replicate", 1)
                whole = whole.chunk(shards)[rank % shards]
            off, size = (
                (
                    gradient - whole
                    # a shard of the embedding without a token that was seen: both are 0
                ).norm(),
                whole.norm(),
            )
            assert off <= 1e-5 * size, (
                f"rank {rank}, {name}: {off:.1e} of {size:.1e} away from the single process"
            )


TRACE = """
import json, os, sys
from llmbench.train.collectives import profiled_window
from llmbench.train.loop import Trainer, join_for
from llmbench.train.measure import CpuMemory
from llmbench.model.decoder import build_model
from llmbench.spec.request import RunSpec
from llmbench.train.strategies.experts import build

spec = RunSpec.model_validate_json(sys.argv[1])
ranks = join_for(spec)
trainer = Trainer(build(build_model(spec.model, spec.seed), spec, ranks), spec, ranks, CpuMemory())
trainer.step(0)
trainer.step(1)
window = profiled_window(lambda: trainer.step(2), 1, ranks)
held = trainer.strategy.state_bytes()
if ranks.is_main:
    with open(f"{sys.argv[2]}/0.json", "w") as f:
        json.dump({"collectives": window["collectives"], **held}, f)
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dp", "ep", "recompute"),
    [("ep", 2, 2, "none"), ("ep", 4, 2, "none"), ("ep", 2, 2, "full"), ("fsdp", 4, 2, "none")],
)
def test_dealt_experts_send_and_hold_what_is_predicted(tmp_path, name, dp, ep, recompute):
    """Calls exactly but for two of the norm; rows that arrive are the router's choice, so
    all-to-all within 10 %.
    """
    spec = request(dp, ep, name, recompute=recompute)
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(dp),
        "--no-python",
    ]
    command = [
        *start,
        sys.executable,
        "-c",
        TRACE,
        json.dumps(spec.model_dump(mode="json")),
        str(tmp_path),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (tmp_path / "0.json").exists(), done.stderr[-3000:]
    found = json.loads((tmp_path / "0.json").read_text())
    tokens = spec.batch.micro * spec.seq_len
    expected = predicted_collectives(
        spec.model, name, dp, spec.batch.accum, ep=ep, tokens=tokens, recompute=recompute
    )
    for row in found["collectives"]:
        calls, bytes_ = (
            sum(getattr(c, part) for c in expected if c.kind == row["kind"])
            for part in ("calls", "bytes")
        )
        assert calls <= row["calls"] <= calls + 2, (row, calls)
        assert relative_difference(row["bytes"], bytes_) <= (
            0.1 if row["kind"] == "all_to_all" else 0.001
        ), (row, bytes_)
    if name == "fsdp":
        return
    state = model_state_bytes(spec.model, "ep", dp, ep=ep)
    assert (
        found["param_bytes"] == state["param_bytes"]
        and 0 <= found["optimizer_bytes"] - state["optimizer_bytes"] < 1000
    )
