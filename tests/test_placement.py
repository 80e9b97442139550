"""What goes to a device before the first step: under a split, never the whole model, which may be
larger than the device.
"""

import json
import subprocess
import sys

import pytest

# One process that is told to be rank 0 of four; Decoder.to(device) moves all parameters that the
# decoder still has.
SIMULATED = """
import json, sys
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from llmbench.train.mesh import Ranks
from llmbench.model.decoder import Decoder, build_model
from llmbench.spec.resolve import resolve_run
from llmbench.train.strategies.base import tensor_bytes
from llmbench.train.worker import load_strategy

moved, to = [], Decoder.to


def watched(decoder, *args):
    moved.append(tensor_bytes(decoder.parameters()))
    return to(decoder, *args)


Decoder.to, seen = watched, {}
for name, request in json.loads(sys.argv[1]).items():
    spec = resolve_run(request)
    dist.init_process_group("fake", rank=0, world_size=spec.world_size, store=FakeStore())
    model, moved[:] = build_model(spec.model, spec.seed), [0]
    whole = tensor_bytes(model.parameters())
    ranks = Ranks(0, spec.world_size, 0, torch.device("cpu"), "fake")
    strategy = load_strategy(spec.strategy, ranks.device)(model, spec, ranks)
    seen[name] = {"moved": max(moved), "held": strategy.state_bytes()["param_bytes"], "whole": whole}
    dist.destroy_process_group()
print(json.dumps(seen))
"""
SPLIT = {
    "fsdp": ("fsdp", "llama-tiny"),
    "hsdp": ({"name": "hsdp", "dp_replicate": 2}, "llama-tiny"),
    "tp": ({"name": "tp", "tp": 4}, "llama-tiny"),
    "pp": ({"name": "pp", "pp": 4}, "llama-tiny"),
    "fsdp-tp": ({"name": "fsdp", "tp": 2}, "llama-tiny"),
    "tp-pp": ({"name": "mixed", "tp": 2, "pp": 2}, "gpt-tiny"),
    "fsdp-ep": ({"name": "fsdp", "ep": 2}, "mixtral-tiny"),
    "ep": ({"name": "ep", "ep": 4}, "mixtral-tiny"),
}


@pytest.fixture(scope="module")
def placed() -> dict[str, dict[str, int]]:
    """Bytes of the largest move, of what the rank holds then, and of the whole model, for each
    layout.
    """
    common = {"world_size": 4, "seq_len": 64, "batch": {"micro": 1, "accum": 4}}
    layouts = SPLIT | {"ddp": ("ddp", "llama-tiny")}
    requests = {
        name: common | {"strategy": strategy, "model": model}
        for name, (strategy, model) in layouts.items()
    }
    done = subprocess.run(
        [sys.executable, "-c", SIMULATED, json.dumps(requests)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("layout", SPLIT)
def test_a_split_model_goes_to_the_device_in_pieces(placed, layout):
    seen = placed[layout]
    assert seen["held"] < 0.7 * seen["whole"]
    assert seen["moved"] <= seen["held"], "more was moved at once than is kept"


def test_replicas_go_there_whole(placed):
    seen = placed["ddp"]
    assert seen["moved"] == seen["held"] == seen["whole"]
