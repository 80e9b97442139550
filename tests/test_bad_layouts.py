"Wrong layouts: one line with the factors, and the nearest layouts, which are all valid."

import random
import re

import pytest

from llmbench.core.errors import RequestError
from llmbench.spec.layout_rules import broken_rules
from llmbench.spec.layouts import valid_layouts
from llmbench.spec.presets import PRESETS, preset
from llmbench.spec.request import STRATEGIES
from llmbench.spec.resolve import resolve_run
from llmbench.spec.strategies import STRATEGY_TABLE

BIG = {"world_size": 8, "seq_len": 2048, "batch": {"micro": 1, "global_tokens": 128 * 2048}}
LLAMA, QWEN, TINY = (
    BIG | {"model": "llama3.1-8b"},
    BIG | {"model": "qwen2.5-7b"},
    BIG | {"model": "gpt-tiny", "seq_len": 512},
)
ROUTED = BIG | {"model": {"name": "llama3.1-8b", "n_experts": 8, "experts_per_token": 2}}
MIXTRAL = BIG | {"model": "mixtral-8x7b"}
WIDE = BIG | {"model": {"name": "llama3.1-8b", "d_ff": 14340}}


def split(name, **degrees):
    return {"strategy": {"name": name} | degrees}


# name: (the request, texts that the line must hold)
LAYOUTS = {
    "tp 8 for Qwen's 28 heads": (QWEN | split("tp", tp=8), ("tp 8", "28 heads", "3.5")),
    "tp alone for Qwen": (QWEN | {"strategy": "tp"}, ("tp 8", "28 heads")),
    "tp 7 with 4 key/value heads": (
        QWEN | {"world_size": 7} | split("tp"),
        ("tp 7", "4 key/value heads"),
    ),
    "tp 14 with 4 key/value heads": (
        QWEN | {"world_size": 14} | split("tp"),
        ("tp 14", "4 key/value heads"),
    ),
    "tp 28 and d_ff": (QWEN | {"world_size": 28} | split("tp"), ("tp 28", "d_ff 18944")),
    "tp 8 and an odd d_ff": (WIDE | split("tp"), ("tp 8", "d_ff 14340")),
    "tp 64 for 32 heads": (LLAMA | {"world_size": 64} | split("tp"), ("tp 64", "32 heads")),
    "tp that does not divide the sequence": (
        LLAMA | {"seq_len": 2046, "batch": {"micro": 1}} | split("tp", tp=4),
        ("seq_len 2046", "tp 4", "write seq_len: 2044"),
    ),
    "tp 3 × dp 2 on 8": (LLAMA | split("tp", tp=3), ("dp 2 × tp 3", "6 ranks", "world_size 8")),
    "tp × pp × dp over 8": (
        LLAMA | split("mixed", tp=4, pp=2, dp=2),
        ("dp 2 × tp 4 × pp 2", "16 ranks", "write world_size: 16, or leave dp out"),
    ),
    "tp × pp × dp under 8": (
        LLAMA | split("mixed", tp=2, pp=2, dp=1),
        ("dp 1 × tp 2 × pp 2", "4 ranks", "world_size 8"),
    ),
    "cp and the product": (LLAMA | split("cp", cp=2, dp=2), ("cp 2", "4 ranks")),
    "tp of 1": (LLAMA | split("tp", tp=1), ("tp is 1", "dp 8", "write name: ddp")),
    "pp on one rank": (LLAMA | {"world_size": 1} | split("pp"), ("pp is 1", "write name: single")),
    "ddp with tp": (LLAMA | split("ddp", tp=2), ("tp 2", "must be 1", "write name: tp")),
    "zero3 with pp": (LLAMA | split("zero3", pp=2), ("pp 2", "must be 1", "write name: pp")),
    "zero2 with cp": (LLAMA | split("zero2", cp=2), ("cp 2", "must be 1", "write name: cp")),
    "fsdp with nothing to shard": (LLAMA | split("fsdp", tp=8), ("dp 1 × tp 8", "write name: tp")),
    "hsdp with nothing to shard": (
        LLAMA | split("hsdp", tp=4, dp_replicate=2),
        ("dp 2 / dp_replicate 2 = 1", "at least 2"),
    ),
    "experts over stages": (
        ROUTED | split("fsdp", pp=2, ep=2),
        ("pp 2 × ep 2", "8 experts", "write pp: 1, or write ep: 1"),
    ),
    "tp that is mixed": (LLAMA | split("tp", pp=2), ("tp 4 × pp 2", "write name: mixed, tp: 4;")),
    "mixed without degrees": (
        LLAMA | {"strategy": "mixed"},
        ("tp 1 × pp 1 × cp 1", "at least two"),
    ),
    "mixed with one degree": (
        LLAMA | split("mixed", tp=4),
        ("tp 4", "write name: tp", "at least two"),
    ),
    "single on 8": (
        LLAMA | {"strategy": "single"},
        ("world_size 8", "write world_size: 1, or write name: ddp"),
    ),
    "hsdp without copies": (
        LLAMA | {"strategy": "hsdp"},
        ("dp_replicate 1", "8 ranks", "write dp_replicate: 2, or write name: fsdp"),
    ),
    "hsdp of copies only": (LLAMA | split("hsdp", dp_replicate=8), ("dp 8 / dp_replicate 8 = 1",)),
    "hsdp that does not divide": (
        LLAMA | split("hsdp", dp_replicate=3),
        ("dp 8 / dp_replicate 3 = 2.66667",),
    ),
    "copies for fsdp": (
        LLAMA | split("fsdp", dp_replicate=2),
        ("dp_replicate 2", "leave dp_replicate out, or write name: hsdp"),
    ),
    "pp 8 for 28 layers": (QWEN | {"strategy": "pp"}, ("pp 8", "28 layers")),
    "more stages than layers": (TINY | {"strategy": "pp"}, ("pp 8", "8 stages", "4 layers")),
    "stages a rank over the layers": (
        TINY | split("pp", pp=4, schedule="interleaved", stages_per_rank=2),
        ("pp 4 × stages_per_rank 2 = 8", "4 layers"),
    ),
    "a split of too few stages": (
        LLAMA | split("pp", pp=4, layers_per_stage=[16, 16]),
        ("[16, 16]", "2 stages", "pp 4"),
    ),
    "a split of too few layers": (
        LLAMA | split("pp", pp=2, layers_per_stage=[16, 15]),
        ("31 layers", "32"),
    ),
    "a split without a pipeline": (
        LLAMA | split("ddp", layers_per_stage=[32]),
        ("pp 1 is no pipeline", "layers_per_stage"),
    ),
    "interleaved with one stage a rank": (
        LLAMA | split("pp", pp=4, schedule="interleaved"),
        ("pp 4 × stages_per_rank 1", "at least 2"),
    ),
    "gpipe with two stages a rank": (
        LLAMA | split("pp", pp=4, schedule="gpipe", stages_per_rank=2),
        ("gpipe", "stages_per_rank 2"),
    ),
    "fewer micro batches than stages": (
        LLAMA | {"batch": {"micro": 1, "accum": 2}} | split("pp", pp=4),
        ("accum 2", "pp 4", "write batch.accum: 4"),
    ),
    "interleaved with an odd accum": (
        LLAMA
        | {"batch": {"micro": 1, "accum": 6}}
        | split("pp", pp=4, schedule="interleaved", stages_per_rank=2),
        ("accum 6", "pp 4", "write batch.accum: 4"),
    ),
    "a batch written to the last number": (
        LLAMA | {"batch": {"micro": 1, "accum": 1, "global_tokens": 2048}} | split("pp"),
        ("accum 1", "pp 8"),
    ),
    "cp that does not divide the sequence": (
        LLAMA | {"seq_len": 2044} | split("cp", cp=4),
        ("seq_len 2044", "2 × cp 4 = 8"),
    ),
    "cp × tp and the sequence": (
        LLAMA | {"seq_len": 2056} | split("mixed", cp=2, tp=4),
        ("2 × cp 2 × tp 4 = 16", "seq_len 2056"),
    ),
    "ep without experts": (
        LLAMA | {"strategy": "ep"},
        ("ep 8", "no experts", "n_experts 1", "write name: ddp"),
    ),
    "ep that does not divide the experts": (
        ROUTED | {"world_size": 6, "batch": {"micro": 1}} | split("ep", ep=3),
        ("ep 3", "8 experts"),
    ),
    "ep that does not divide dp": (
        ROUTED | {"world_size": 6, "batch": {"micro": 1}} | split("ep", ep=4),
        ("ep 4", "dp 6"),
    ),
    "ep for fsdp without experts": (
        LLAMA | split("fsdp", ep=4),
        ("ep 4", "no experts", "; leave ep out;"),
    ),
    "ep of 1": (ROUTED | split("ep", ep=1), ("ep is 1", "dp 8")),
    "tp with experts": (ROUTED | split("tp", tp=2), ("tp 2", "8 experts", "use ep")),
    "cp with dealt experts": (ROUTED | split("fsdp", cp=2, ep=2), ("cp 2", "8 experts", "ep 2")),
    "mixed with dealt experts": (
        MIXTRAL | split("mixed", pp=2, ep=2),
        ("pp 2 × ep 2", "(dp 4); valid"),
    ),
    "ep with tp": (MIXTRAL | split("ep", tp=2), ("tp 2 × ep 4", "(dp 4); valid")),
    "tp 7 of 8": (QWEN | split("tp", tp=7), ("dp 1 × tp 7", "not world_size 8; valid")),
    "a world that is too large to search": (
        LLAMA | {"world_size": 10**9 + 7} | split("tp", tp=2),
        ("world_size 1000000007",),
    ),
}
_OFFER = re.compile(r"((?:\w+ \d+ × )+\w+ \d+) \(name: (\w+)((?:, \w+ \d+)*)\)")


def refused(request):
    with pytest.raises(RequestError) as caught:
        resolve_run(request)
    return str(caught.value)


def offers(line):
    "The strategies that a line offers, as someone would type them."
    for factors, name, inside in _OFFER.findall(line):
        yield {"name": name} | {k: int(v) for k, v in re.findall(r"(\w+) (\d+)", factors + inside)}


def mends(line):
    """The changes that a line names before its offers: keys with their values, None where a key is
    to be left out.
    """
    said = [
        part
        for part in re.split(r"; |, or (?=write |leave )", line.partition("; valid on")[0])
        if part.startswith(("write ", "leave "))
    ]
    for text in said:
        written, _, left = text.partition("leave ")
        keys = re.findall(r"\w+", left.removesuffix(" out").replace(" and ", ", "))
        yield dict.fromkeys(keys) | {
            k: int(v) if v.isdecimal() else v for k, v in re.findall(r"([\w.]+): (\w+)", written)
        }


def types(request, change):
    "Type a change into the refused request; RequestError where the next answer is a refusal, too."
    strategy = (
        {"name": request["strategy"]}
        if isinstance(request["strategy"], str)
        else request["strategy"]
    )
    top = {k: v for k, v in change.items() if k in ("world_size", "seq_len")}
    batch = request["batch"] | {
        k.removeprefix("batch."): v for k, v in change.items() if k.startswith("batch.")
    }
    strategy = strategy | {
        k: v for k, v in change.items() if k not in top and not k.startswith("batch.")
    }
    resolve_run(
        request
        | top
        | {
            "batch": batch,
            "strategy": {k: v for k, v in strategy.items() if v is not None},
        }
    )


def accepts(request, line, strategy):
    "Type the offered strategy into the refused request, with what the line says of the rest."
    kept = (
        {
            k: v
            for k, v in request["strategy"].items()
            if k in ("schedule", "stages_per_rank", "layers_per_stage")
        }
        if isinstance(request["strategy"], dict)
        else {}
    )
    batch = request["batch"]
    if "even 1f1b" in line or "accum: pp}" in line:
        kept = {}
    if "accum: pp}" in line:
        batch = {"micro": 1, "accum": strategy["pp"]}
    spec = resolve_run(request | {"strategy": strategy | kept, "batch": batch})
    assert spec.strategy.dp == strategy["dp"] and spec.world_size == request["world_size"]


@pytest.mark.parametrize("name", LAYOUTS)
def test_wrong_layout(name):
    request, needed = LAYOUTS[name]
    line = refused(request)
    assert "\n" not in line and all(text in line for text in needed), line
    for strategy in offers(line):
        accepts(request, line, strategy)
    for change in mends(line):
        types(request, change)


def test_all_but_one_have_a_valid_layout_nearby():
    alone = [name for name, (request, _) in LAYOUTS.items() if not list(offers(refused(request)))]
    assert len(LAYOUTS) >= 40 and alone == ["a world that is too large to search"]


def test_everything_listed_resolves_and_nothing_else():
    "valid_layouts against the request's own check, over every factorization of small worlds."
    for model in ("llama3.1-8b", "qwen2.5-7b", "gpt-tiny"):
        for world in (1, 2, 6, 8):
            valid = valid_layouts(preset(model), world, cp=True, seq_len=512, accum=8)
            for a in valid:
                degrees = {"name": a.name, "dp": a.dp, "tp": a.tp, "pp": a.pp, "cp": a.cp}
                resolve_run(
                    {
                        "model": model,
                        "world_size": world,
                        "seq_len": 512,
                        "batch": {"accum": 8},
                        "strategy": degrees,
                    }
                )
            found = {(a.dp, a.tp, a.pp, a.cp) for a in valid}
            every = {
                (d, t, p, c)
                for d in range(1, 9)
                for t in range(1, 9)
                for p in range(1, 9)
                for c in range(1, 9)
                if d * t * p * c == world
            }
            for d, t, p, c in every - found:
                with pytest.raises(RequestError):
                    name = (
                        "mixed"
                        if sum(x > 1 for x in (t, p, c)) > 1
                        else "tp"
                        if t > 1
                        else "pp"
                        if p > 1
                        else "cp"
                        if c > 1
                        else "ddp"
                    )
                    degrees = {"name": name, "dp": d, "tp": t, "pp": p, "cp": c}
                    resolve_run(
                        {
                            "model": model,
                            "world_size": world,
                            "seq_len": 512,
                            "batch": {"accum": 8},
                            "strategy": degrees,
                        }
                    )


def test_everything_listed_for_experts_resolves():
    found = valid_layouts(preset("mixtral-tiny"), 8, names=("fsdp", "hsdp"), seq_len=512, accum=8)
    for a in found:
        degrees = {
            "name": a.name,
            "dp": a.dp,
            "pp": a.pp,
            "ep": a.ep,
            "dp_replicate": a.dp_replicate,
        }
        resolve_run(
            {
                "model": "mixtral-tiny",
                "world_size": 8,
                "seq_len": 512,
                "batch": {"accum": 8},
                "strategy": degrees,
            }
        )
    assert {(a.ep, a.dp_replicate) for a in found if a.name == "hsdp" and a.ep > 1} == {
        (ep, r) for ep in (2, 4) for r in (2, 4)
    }


def test_every_preset_has_a_plain_layout():
    for shape in PRESETS.values():
        assert any(a.name == "ddp" for a in valid_layouts(shape, 8))
        assert all(
            not list(broken_rules(shape, a, 8))
            for a in valid_layouts(shape, 8, names=("fsdp", "hsdp", "zero3"), cp=True)
        )


def test_offers_hold_for_any_slip():
    """Random degrees, worlds and batches: accepted, or refused in one line whose offers are all
    accepted.
    """
    dice, refused_ones, typed = random.Random(7), 0, 0
    # a variant of another strategy has its rules, and would only make these draws fewer
    own = [name for name in STRATEGIES if not STRATEGY_TABLE[name].like]
    for _ in range(400):
        name = dice.choice(own)
        degrees = {
            d: dice.choice([1, 2, 3, 4, 7, 8])
            for d in ("dp", "tp", "pp", "cp", "ep", "dp_replicate")
            if dice.random() < 0.4
        }
        model = dice.choice(
            [
                *PRESETS,
                {"name": "llama-tiny", "n_experts": dice.choice([2, 4, 6]), "experts_per_token": 2},
            ]
        )
        batch = dice.choice(
            [
                {"micro": 1, "accum": dice.choice([1, 2, 3, 8])},
                {"micro": 2, "global_tokens": 128 * dice.choice([8, 24, 64])},
            ]
        )
        request = {
            "model": model,
            "strategy": {"name": name} | degrees,
            "world_size": dice.choice([1, 2, 3, 4, 6, 8, 12, 16]),
            "seq_len": 128,
            "batch": batch,
        }
        try:
            resolve_run(request)
        except RequestError as e:
            line, refused_ones = str(e), refused_ones + 1
            assert "\n" not in line
            for strategy in offers(line):
                accepts(request, line, strategy)
            for change in mends(line) if not line.startswith("batch: ") else ():
                types(request, change)
                typed += 1
    assert 100 < refused_ones < 400 and typed > 50, (refused_ones, typed)
