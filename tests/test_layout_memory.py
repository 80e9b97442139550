"""What split models, dealt experts, gradients sent as factors and DeepSpeed's offload hold:
predicted for every rank, and allocated by real ranks.
"""

import json
import subprocess
import sys

import pytest

from llmbench.core.numbers import relative_difference
from llmbench.plan.layout_memory import SPLIT, layout_memory, memory_of
from llmbench.spec.resolve import resolve_run
from llmbench.train.mesh import place_of

pytestmark = pytest.mark.slow  # the notebook bench/memory_check trains two ranks in the quick set

PROGRAM = """
import gc, json, os, sys
from llmbench.train.loop import join_for
from llmbench.bench.memory_check import measured_memory
from llmbench.spec.resolve import resolve_run

found, ranks = [], None
for request in json.loads(sys.argv[1]):
    spec = resolve_run(request)
    ranks = ranks or join_for(spec)
    # PowerSGD's third step is the first with factors, 1-bit Adam's here the first without gradients
    steps = 4 if spec.strategy.compression == "powersgd" or spec.optimizer.one_bit else 2
    found.append(measured_memory(spec, ranks, steps))
    gc.collect()
with open(f"{sys.argv[2]}/{ranks.rank}.json", "w") as f:
    json.dump(found, f)
os._exit(0)
"""


def request(strategy, model="llama-tiny", micro=4, accum=2, seq_len=128, **more):
    """512 tokens a micro step: activations weigh as much as state."""
    return {
        "model": model,
        "strategy": strategy,
        "seq_len": seq_len,
        "batch": {"micro": micro, "accum": accum},
    } | more


def measure(requests, world_size, folder):
    """What each rank held, for each request."""
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(world_size),
        "--no-python",
    ]
    given = [r | {"world_size": world_size} for r in requests]
    command = [*start, sys.executable, "-c", PROGRAM, json.dumps(given), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    files = [folder / f"{rank}.json" for rank in range(world_size)]
    assert all(f.exists() for f in files), done.stderr[-3000:]
    return list(zip(*(json.loads(f.read_text()) for f in files), strict=True))


def compare(given, world_size, held):
    """The worst difference of each kind over the ranks, each rank against its stage's
    prediction.
    """
    spec, off = resolve_run(given | {"world_size": world_size}), {}
    for rank, found in enumerate(held):
        split = (
            spec.strategy.ep == 1
            and spec.strategy.name in SPLIT
            or spec.strategy.tp * spec.strategy.pp * spec.strategy.cp > 1
        )
        expected = (
            layout_memory(spec, pp_rank=place_of(rank, spec.strategy).pp)
            if split
            else memory_of(spec)
        )
        for kind in ("param_bytes", "grad_bytes", "optimizer_bytes", "peak_bytes"):
            if found[kind] is not None:  # DeepSpeed's offload does not show its gradients
                off[kind] = max(off.get(kind, 0), relative_difference(expected[kind], found[kind]))
    return off


TP, PP, CP, EP = (
    dict(name="tp", tp=2),
    dict(name="pp", pp=2),
    dict(name="cp", cp=2),
    dict(name="ep", ep=2),
)
ZERO2, ZERO3 = (dict(name=n, offload="optimizer") for n in ("zero2", "zero3"))
FSDP_PP, FSDP_CP2 = dict(name="fsdp", pp=2), dict(name="fsdp", cp=2)
FSDP_EP2, FSDP_EP4, KEPT = (
    dict(name="fsdp", ep=2),
    dict(name="fsdp", ep=4),
    dict(name="fsdp", reshard_after_forward=False),
)
FACTORS = dict(name="ddp", compression="powersgd")
ONEBIT = {
    "optimizer": {"name": "onebit_adamw", "freeze_after_steps": 2, "clip_norm": None},
    "warmup_steps": 2,
}
GPT, BF16, FEW = {"model": "gpt-tiny"}, {"precision": "bf16"}, {"micro": 1, "seq_len": 32}
TWO = {
    "tp": [
        request(TP),
        request(TP, **GPT),
        request(TP, accum=1, **BF16),
        request(TP, **GPT, **BF16),
        request(TP, recompute="full"),
        request(TP, recompute="selective"),
        request(TP, micro=1, seq_len=32),
    ],
    "pp": [
        request(PP),
        request(PP, **GPT),
        request(PP, accum=4),
        request(PP | {"schedule": "gpipe"}, accum=4),
        request(PP, **BF16),
        request(PP | {"schedule": "interleaved", "stages_per_rank": 2}, accum=4),
        request(PP, recompute="full"),
    ],
    "cp": [
        request(CP),
        request(CP, **GPT),
        request(CP, accum=1, **BF16),
        request(CP, recompute="full"),
        request(CP, accum=1),
    ],
    "fsdp1-cp2": [
        request(FSDP_CP2, **m, **more)
        for m, more in (
            ({}, {}),
            (GPT, {}),
            ({}, BF16 | {"accum": 1}),
            ({}, {"recompute": "full"}),
            ({}, FEW),
        )
    ],
    "ep": [
        request(EP, "mixtral-tiny", **more)
        for more in ({}, {"accum": 1}, BF16, {"recompute": "full"})
    ],
    "fsdp-ep": [
        request(FSDP_EP2, "mixtral-tiny", **more)
        for more in (
            {},
            {"accum": 1},
            BF16,
            BF16 | {"accum": 1},
            {"recompute": "full"},
            {"recompute": "selective"},
            FEW,
            FEW | {"accum": 1},
        )
    ],
    "fsdp-ep-kept": [request(KEPT | FSDP_EP2, "mixtral-tiny", **more) for more in ({}, BF16, FEW)],
    "fsdp-kept": [
        request(KEPT, **m, **more)
        for m in ({}, GPT)
        for more in ({}, BF16 | {"accum": 1}, FEW, FEW | {"accum": 1})
    ],
    "powersgd": [
        request(FACTORS, **m, **more)
        for m in ({}, GPT)
        for more in ({}, {"accum": 1}, BF16, FEW, FEW | BF16 | {"accum": 1}, {"recompute": "full"})
    ],
    "onebit": [
        request("ddp", **m, **more, **ONEBIT)
        for m in ({}, GPT)
        for more in ({}, {"accum": 1}, BF16, FEW, FEW | BF16 | {"accum": 1}, {"recompute": "full"})
    ],
    "powersgd-buckets": (
        [
            request(FACTORS | {"bucket_mib": mib}, **m, micro=1, accum=accum)
            for m in ({}, GPT)
            for mib, accum in ((1.0, 1), (4.0, 2))
        ]
        + [request(FACTORS, "mixtral-tiny")]
    ),
    "offload": [
        request(z, **m, **more)
        for z in (ZERO2, ZERO3)
        for m, more in (({}, {}), (GPT, BF16), ({}, {"accum": 1}))
    ],
}
FOUR = {
    "tp2-dp2": [request(TP), request(TP, **GPT), request(TP, accum=1, **BF16)],
    "tp2-pp2": [
        request(dict(name="mixed", tp=2, pp=2)),
        request(dict(name="mixed", tp=2, pp=2), **GPT),
    ],
    "cp2-tp2": [request(dict(name="mixed", tp=2, cp=2))],
    "cp4": [
        request(dict(name="cp", cp=4), accum=1, **BF16),
        request(dict(name="cp", cp=4), accum=1),
    ],
    "pp2-dp2": [request(PP), request(PP, accum=4, **GPT)],
    "sharded": [
        request(dict(name="fsdp", tp=2)),
        request(dict(name="fsdp", cp=2)),
        request(dict(name="hsdp", dp_replicate=2)),
        request(dict(name="fsdp", tp=2), accum=1, **BF16),
    ],
    "fsdp1-cp4": [
        request(dict(name="fsdp", cp=4)),
        request(dict(name="fsdp", cp=4), accum=1, **BF16),
        request(dict(name="fsdp", cp=4), accum=1),
        request(FSDP_CP2 | {"tp": 2}),
        request(FSDP_CP2 | {"pp": 2}),
        request(dict(name="hsdp", dp_replicate=2, cp=2)),
    ],
    "fsdp2-pp2": [
        request(FSDP_PP),
        request(FSDP_PP, accum=4, **GPT),
        request(FSDP_PP, **BF16),
        request(FSDP_PP | {"schedule": "gpipe"}, accum=4),
        request(FSDP_PP, micro=1, seq_len=32),
        request(FSDP_PP, accum=4, recompute="full", model={"name": "llama-tiny", "n_layers": 8}),
        request(FSDP_PP | {"schedule": "interleaved", "stages_per_rank": 2}, accum=4),
    ],
    "tp4-shared-heads": [request(dict(name="tp", tp=4))],
    "ep2-dp4": [request(EP, "mixtral-tiny")],
    "fsdp4-ep2": [
        request(FSDP_EP2, "mixtral-tiny", **more)
        for more in ({}, BF16 | {"accum": 1}, {"recompute": "full"}, FEW)
    ],
    # not ep 4 in float32: one rank's expert gets 23 % more rows than an even share, and the
    # prediction counts even ones (4.9 %)
    "fsdp4-ep4": [
        request(FSDP_EP4, "mixtral-tiny", **more)
        for more in (BF16 | {"accum": 1}, {"recompute": "full"}, FEW)
    ],
    "hsdp2x2-ep2": [
        request(dict(name="hsdp", dp_replicate=2, ep=2), "mixtral-tiny", **more)
        for more in ({}, {"accum": 1}, FEW)
    ],
    "onebit-dp4": [request("ddp", **ONEBIT), request("ddp", **GPT, **FEW, **ONEBIT)],
    "powersgd-dp4": [request(FACTORS), request(FACTORS, **GPT, **FEW)],
}
EIGHT = {
    "hsdp2x2-tp2": [
        request(dict(name="hsdp", dp_replicate=2, tp=2)),
        request(dict(name="hsdp", dp_replicate=2, tp=2), accum=1, **BF16),
    ],
    "hsdp2x2-cp2": [request(dict(name="hsdp", dp_replicate=2, cp=2))],
    "fsdp2-tp2-pp2": [
        request(dict(name="fsdp", tp=2, pp=2)),
        request(dict(name="fsdp", tp=2, pp=2), **GPT),
    ],
}
RANKS = {2: TWO, 4: FOUR, 8: EIGHT}


@pytest.mark.parametrize(
    ("world_size", "layout"), [(n, layout) for n, layouts in RANKS.items() for layout in layouts]
)
def test_real_ranks_hold_what_is_predicted(world_size, layout, tmp_path):
    requests = RANKS[world_size][layout]
    for given, held in zip(requests, measure(requests, world_size, tmp_path), strict=True):
        off = compare(given, world_size, held)
        assert max(off.values()) <= 0.05, (given, off)
