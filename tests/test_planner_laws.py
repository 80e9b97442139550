"""Laws that every prediction of the planner obeys, whatever the model, the layout, the machine and
the constants are."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmbench.plan.goodput.failures import FailureRate
from llmbench.plan.goodput.job import Cluster, goodput_of
from llmbench.plan.predicted.arrays import FAMILIES, layout_arrays
from llmbench.plan.predicted.constants import time_constants
from llmbench.plan.predicted.imputed import imputed
from llmbench.plan.predicted.machine import GENERATIONS, known_machine, machine_arrays
from llmbench.plan.predicted.memory import fits, memory, settled
from llmbench.plan.predicted.products import fastest_seconds
from llmbench.plan.predicted.step import step_parts, step_seconds, tokens_of_layouts

CASES = settings(max_examples=60, deadline=None, derandomize=True)
SIZES = st.sampled_from([1, 2, 4, 8])


@st.composite
def asked(draw, **fixed):
    "A request with every setting known, as columns."
    heads, width = draw(st.sampled_from([(8, 64), (32, 128), (96, 128), (40, 96)]))
    experts = draw(st.sampled_from([0, 0, 8, 64]))
    model = {
        "n_layer": draw(st.integers(2, 96)), "d_model": heads * width, "n_head": heads,
        "n_kv_head": draw(st.sampled_from([heads, heads // 4])), "qk_dim": width, "v_dim": width,
        "vocab": draw(st.sampled_from([32000, 50304, 151936])), "matrices": draw(st.sampled_from([2, 3])),
        "d_ff": 4 * heads * width, "tied": draw(st.sampled_from([0, 1])), "n_expert": experts,
        "experts_per_token": min(experts, 4), "moe_d_ff": 1024 if experts else 0,
    }  # fmt: skip
    tp, cp, dp, ep = draw(SIZES), draw(SIZES), draw(SIZES), draw(SIZES) if experts else 1
    pp = draw(st.sampled_from([p for p in (1, 2, 4, 8) if p <= model["n_layer"]]))
    split = {"tp": tp, "pp": pp, "cp": cp, "dp": dp, "ep": min(ep, dp * cp)} | fixed
    split["ranks"] = split["tp"] * split["pp"] * split["cp"] * split["dp"]
    batch = {"micro_batch": draw(SIZES), "micro_steps": draw(st.sampled_from([1, 4, 32, 256])),
             "seq_len": draw(st.sampled_from([512, 2048, 8192, 65536]))}  # fmt: skip
    kinds = {
        "family": draw(st.integers(0, len(FAMILIES) - 1)), "precision": draw(st.integers(0, 2)),
        "recompute": draw(st.sampled_from([0.0, 0.5, 1.0])), "flash": draw(st.sampled_from([0, 1])),
        "zero_stage": draw(st.sampled_from([0, 1, 3] if split["pp"] == 1 else [0, 1])),
        "memory_gb": draw(st.sampled_from([16, 80, 288])),
    }  # fmt: skip
    return model | split | batch | kinds | {
        n: v for n, v in fixed.items() if n not in split
    }  # fmt: skip


MACHINES = st.fixed_dictionaries({
    "generation": st.integers(0, len(GENERATIONS) - 1), "peak_16": st.floats(50, 5000),
    "memory_gbs": st.floats(300, 10000), "domain": st.sampled_from([1, 4, 8, 72]),
    "link_gbs": st.floats(5, 1000), "network_gbs": st.floats(0.1, 200),
    "release_year": st.floats(2021, 2027),
})  # fmt: skip
CONSTANTS = st.fixed_dictionaries({c.name: st.floats(c.low, c.high) for c in time_constants()})


def requests(columns):
    return imputed(layout_arrays(columns))[0]


def machine(columns):
    m = dict(columns)
    m |= {
        "measured_16": 0.8 * m["peak_16"],
        "peak_8": 2 * m["peak_16"],
        "measured_8": 1.5 * m["peak_16"],
    }
    return known_machine(machine_arrays(m))


@CASES
@given(asked(), MACHINES, CONSTANTS)
def test_the_parts_add_up_and_none_is_negative(columns, card, k):
    a, m = requests(columns), machine(card)
    parts = {n: float(s) for n, s in step_parts(a, m, k).items()}
    assert all(np.isfinite(s) and s >= -1e-12 for s in parts.values()), parts
    assert sum(parts.values()) == pytest.approx(float(step_seconds(a, m, k)), rel=1e-12)


@CASES
@given(asked(), MACHINES, CONSTANTS, st.sampled_from(["memory_gbs", "link_gbs", "network_gbs"]))
def test_more_bandwidth_is_never_slower(columns, card, k, what):
    better = machine(card | {what: 3 * card[what]})
    a = requests(columns)
    assert step_seconds(a, better, k) <= step_seconds(a, machine(card), k) * (1 + 1e-12)


@CASES
@given(asked(), MACHINES, CONSTANTS)
def test_a_faster_product_is_never_slower(columns, card, k):
    better = machine(card | {"peak_16": 3 * card["peak_16"]})
    a = requests(columns)
    assert step_seconds(a, better, k) <= step_seconds(a, machine(card), k) * (1 + 1e-12)


def fastest_constants(a, m):
    "Each constant at the bound that makes a request faster."
    k = {c.name: c.value for c in time_constants()}
    for c in time_constants():
        ends = [k | {c.name: end} for end in (c.low, c.high)]
        k = min(ends, key=lambda values: float(step_seconds(a, m, values)))
    return k


@CASES
@given(asked(), MACHINES)
def test_no_prediction_is_above_the_fastest_measured_product(columns, card):
    "Not even with every constant at its fastest bound."
    a, m = requests(columns), machine(card)
    least = a.micro_steps * fastest_seconds(a, m) * a.n_layer / a.pp / np.ceil(a.n_layer / a.pp)
    reached = float(step_seconds(a, m, fastest_constants(a, m)))
    assert reached >= float(least) * (1 - 1e-12)


@CASES
@given(asked(pp=1, vpp=1), MACHINES, CONSTANTS)
def test_one_stage_has_no_bubble(columns, card, k):
    parts = step_parts(requests(columns), machine(card), k)
    assert float(parts["bubble"]) == 0 and float(parts["pipeline sends"]) == 0


@CASES
@given(asked(), MACHINES, CONSTANTS)
def test_very_many_micro_batches_have_no_bubble(columns, card, k):
    parts = step_parts(requests(columns | {"micro_steps": 1e7}), machine(card), k)
    assert float(parts["bubble"]) <= 1e-5 * float(sum(parts.values()))


@CASES
@given(asked(tp=1, cp=1, ep=1), MACHINES, CONSTANTS)
def test_what_is_not_split_sends_nothing(columns, card, k):
    parts = step_parts(requests(columns), machine(card), k)
    assert [float(parts[n]) for n in ("tensor parallel", "context parallel", "experts")] == [
        0,
        0,
        0,
    ]


@CASES
@given(asked(tp=1, pp=1, cp=1, dp=1, ep=1, zero_stage=0), MACHINES, CONSTANTS)
def test_one_rank_is_the_same_on_any_network(columns, card, k):
    other = machine(card | {"link_gbs": 1e9, "network_gbs": 1e9})
    a = requests(columns)
    assert float(step_seconds(a, other, k)) == pytest.approx(
        float(step_seconds(a, machine(card), k))
    )


@CASES
@given(asked(), MACHINES, CONSTANTS)
def test_infinite_links_leave_compute_bubble_and_messages(columns, card, k):
    "With infinite links and messages that take no time, only what one rank does is left."
    fast = machine(card | {"link_gbs": 1e30, "network_gbs": 1e30})
    parts = step_parts(requests(columns), fast, k | {"message_s": 0.0})
    exchange = ("tensor parallel", "context parallel", "experts", "gathering", "pipeline sends",
                "gradients")  # fmt: skip
    assert sum(float(parts[n]) for n in exchange) <= 1e-9 * float(sum(parts.values()))


@CASES
@given(asked(), st.sampled_from([2, 3]))
def test_memory_grows_with_the_micro_batch(columns, times):
    less = memory(settled(layout_arrays(columns))[0])
    more = memory(
        settled(layout_arrays(columns | {"micro_batch": times * columns["micro_batch"]}))[0]
    )
    assert float(more.total_bytes) > float(less.total_bytes)


@CASES
@given(asked(), st.floats(1.05, 4))
def test_a_larger_card_fits_no_worse(columns, times):
    a = settled(layout_arrays(columns))[0]
    b = settled(layout_arrays(columns | {"memory_gb": times * columns["memory_gb"]}))[0]
    assert float(fits(b, memory(a))) >= float(fits(a, memory(a)))


@CASES
@given(asked(), MACHINES)
def test_more_micro_steps_are_more_tokens_per_second(columns, card):
    "What happens once per step is shared by more tokens."
    a, m = requests(columns), machine(card)
    b = requests(columns | {"micro_steps": 2 * columns["micro_steps"]})
    rate = [float(tokens_of_layouts(x) / step_seconds(x, m)) for x in (a, b)]
    assert rate[1] >= rate[0] * (1 - 1e-12)


@CASES
@given(st.sampled_from([8, 256, 16384]), st.floats(1e9, 1e12), st.floats(1, 60), st.floats(1.1, 20))
def test_goodput_falls_with_failures(gpus, parameters, step_s, times):
    def of(node_mtbf_h):
        rate = FailureRate("made up", 24000 / node_mtbf_h, "any", "none")
        return goodput_of(gpus, parameters, step_s, Cluster(failures=rate)).goodput

    assert 0 <= of(5000.0) <= of(5000.0 * times) <= 1
