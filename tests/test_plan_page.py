"""The page Plan in a real browser, opened as a file: the numbers of Python, the answers of the
command, and a form that works with a keyboard, on a phone and with what is impossible.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from urllib.parse import urlparse

import numpy as np
import pytest
from browsers import Reader

from llmbench.core.numbers import significant
from llmbench.plan.goodput.checkpoint import Storage
from llmbench.plan.goodput.failures import FailureRate, Restart
from llmbench.plan.goodput.job import Cluster, GoodputPlan, goodput_of
from llmbench.plan.predicted.arrays import layout_arrays
from llmbench.plan.predicted.buffers import constants
from llmbench.plan.predicted.constants import time_values
from llmbench.plan.predicted.imputed import imputed
from llmbench.plan.predicted.machine import known_machine, machine_arrays
from llmbench.plan.predicted.memory import fits, largest_micro_batch, memory
from llmbench.plan.predicted.step import step_parts
from llmbench.report.planner.page import write_plan
from llmbench.report.site.renderer import render_site
from llmbench.report.studies.questions import PLAN_ADDRESS, layout_line
from llmbench.report.workbench import Workbench

ROOT = Path(__file__).resolve().parent.parent
UNKNOWN = float("nan")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The page alone, with the theme and the two pages that it leads to."""
    folder = tmp_path_factory.mktemp("plan")
    source = folder / "report"
    source.mkdir()
    shutil.copytree(ROOT / "reports" / "_theme", source / "_theme")
    shutil.copyfile(ROOT / "reports" / "plan.qmd", source / "plan.qmd")
    menu = "navbar: {left: [{href: plan.qmd, text: Plan}]}"
    (source / "_quarto.yml").write_text(f"website: {{title: x, {menu}}}\n")
    for name in ("index", "planned"):
        (source / f"{name}.qmd").write_text("---\ntitle: x\n---\n\nx\n")
    bench = Workbench(None, source)
    write_plan(bench)
    assert bench.problems == []
    return render_site(source, folder / "site", engine="pandoc")


@pytest.fixture
def reader(browser, site) -> Reader:
    found = Reader(browser, site)
    found.open("index.html")
    found.console(), found.requests()  # what earlier tests left in the logs
    return found


def opened(reader: Reader, address: str = "", width: int = 1280) -> Reader:
    reader.open(f"plan.html{address}", width)
    reader.wait("window.llmbenchPlan && (llmbenchPlan.best() !== null || document.querySelector"
                "('#plan.has-problem') !== null)")  # fmt: skip
    return reader


# ---- one model in two languages

ASKED = """const [requests, changed] = [arguments[0], arguments[1]], { M, K, known } = llmbenchPlan;
const kept = { time: { ...K.time }, memory: { ...K.memory } };
for (const name in changed) K[name in K.time ? "time" : "memory"][name] = changed[name];
const named = (terms) =>
  Object.fromEntries(Object.entries(terms).map(([n, v]) => ["memory " + n, v]));
const one = (r) => {
  const [a, unknown] = M.imputed(known(K.layout, r.layout));
  const m = M.known_machine(known(K.machine, r.machine)), memory = M.memory(a), c = r.cluster;
  const cluster = new M.Cluster(
    new M.FailureRate("x", c.rate, "", ""), new M.Restart("x", c.notice, c.start, 0, ""),
    new M.Storage("x", c.write, c.read, ""), undefined, c.asynchronous > 0);
  return { ...M.step_parts(a, m), ...named(memory.terms),
    moment: memory.moment, stage: memory.stage,
    fits: M.fits(a, memory, unknown), unknown, largest: M.largest_micro_batch(a),
    ...M.goodput_of(a.ranks, c.parameters, c.step, cluster) };
};
const found = requests.map(one), names = Object.keys(found[0]);
Object.assign(K.time, kept.time);
Object.assign(K.memory, kept.memory);
return JSON.stringify(Object.fromEntries(names.map((name) => [name, found.map((row) =>
  Number.isFinite(row[name]) ? +row[name] : String(row[name]))])));"""


def shapes(pick) -> dict[str, np.ndarray]:
    """Dense decoders and mixtures, with odd widths."""
    heads, width = pick(1, 8, 16, 20, 28, 32, 40, 64, 71, 128), pick(64, 80, 96, 100, 128)
    mixture = pick(0, 0, 1) > 0
    return {
        "n_layer": pick(1, 2, 7, 12, 24, 32, 61, 80, 126), "n_head": heads,
        "n_kv_head": np.minimum(heads, pick(1, 2, 8, 128)), "qk_dim": width,
        "v_dim": width * pick(1, 1, 0.5), "d_model": heads * width * pick(1, 1, 0.75),
        "vocab": pick(32_000, 50_257, 128_256), "matrices": pick(2, 3),
        "d_ff": np.where(mixture, pick(0, 18_432), pick(3072, 11_008, 28_672)),
        "n_expert": np.where(mixture, pick(8, 16, 64, 256, 384), 0),
        "experts_per_token": np.where(mixture, pick(1, 2, 8), 0),
        "moe_d_ff": np.where(mixture, pick(768, 2048, 14_336), 0),
        "shared_d_ff": np.where(mixture, pick(0, 2048), 0),
        "n_dense_layer": np.where(mixture, pick(0, 1), 0), "q_rank": pick(0, 0, 1536),
        "kv_rank": pick(0, 0, 0, 512), "mtp_layers": pick(0, 0, 0, 1), "tied": pick(UNKNOWN, 0, 1),
        "ep": np.where(mixture, pick(1, 2, 8, 64), 1),
    }  # fmt: skip


def layouts(pick) -> dict[str, np.ndarray]:
    """Every family, precision, policy, recomputation and split, also unstated ones."""
    tp, pp, cp, dp = (pick(1, 1, 2, 4, 8, 3), pick(1, 1, 2, 5, 16), pick(1, 1, 2, 8),
                      pick(1, 2, 3, 8, 64, 1024))  # fmt: skip
    maybe = {name: pick(UNKNOWN, 0, 1) for name in (
        "flash", "sequence_parallel", "chunked_loss", "compiled", "fused_update", "fused_backward",
        "fp8_transposed")}  # fmt: skip
    return maybe | {
        "ranks": tp * pp * cp * dp, "tp": tp, "pp": pp, "cp": cp, "dp": dp,
        "vpp": pick(UNKNOWN, 1, 2, 5), "shard_ranks": pick(UNKNOWN, UNKNOWN, 1, 8),
        "zero_stage": pick(UNKNOWN, 0, 1, 2, 3), "reshard": pick(0, 1), "gpipe": pick(0, 0, 1),
        "micro_batch": pick(UNKNOWN, 1, 2, 8, 32), "micro_steps": pick(UNKNOWN, 1, 2, 16, 64),
        "global_sequences": pick(UNKNOWN, 64, 1024, 6144), "reduce_each": pick(0, 1),
        "seq_len": pick(512, 1000, 2048, 4096, 8192, 131_072), "family": pick(*range(8)),
        "precision": pick(UNKNOWN, 0, 1, 2), "policy": pick(UNKNOWN, UNKNOWN, *range(5)),
        "optimizer_bits": pick(UNKNOWN, 8, 16, 32), "grad_bits": pick(UNKNOWN, 16, 32),
        "recompute": pick(UNKNOWN, 0, 0.5, 1), "offload": pick(0, 0, 1, 2),
        "offload_activations": pick(0, 0, 0, 1), "adapters": pick(0, 0, 0, 1, 2),
        "adapter_rank": pick(UNKNOWN, 8, 64), "trained_embeddings": pick(0, 1),
        "memory_gb": pick(16, 24, 40, 80, 141, 192, 288),
    }  # fmt: skip


def machines(pick) -> dict[str, np.ndarray]:
    return {
        "generation": pick(*range(8)), "peak_16": pick(125, 312, 989, 2250),
        "peak_8": pick(UNKNOWN, 1979, 4500), "peak_4": pick(UNKNOWN, 9000, 15_000),
        "measured_16": pick(UNKNOWN, 260, 800, 1700), "measured_8": pick(UNKNOWN, 1500, 3500),
        "memory_gbs": pick(600, 2039, 3350, 8000), "domain": pick(UNKNOWN, 1, 4, 8, 72),
        "link_gbs": pick(UNKNOWN, 32, 300, 900), "network_gbs": pick(UNKNOWN, 3.1, 12.5, 100),
        "release_year": pick(UNKNOWN, 2023, 2024.5, 2026),
    }  # fmt: skip


class Requests:
    """Random requests as columns, as the page's records, and as Python answers them."""

    def __init__(self, count: int, seed: int = 25):
        generator = np.random.default_rng(seed)

        def pick(*values: float) -> np.ndarray:
            return generator.choice(np.array(values, float), count)

        self.layout = shapes(pick) | layouts(pick)
        self.machine = machines(pick)
        kinds = [Requests.cluster(generator) for _ in range(40)]
        self.which = generator.integers(0, len(kinds), count)
        self.kinds = kinds
        self.jobs = {"parameters": pick(1e8, 8e9, 7e10, 1e12), "step": pick(0.1, 3, 20, 200)}

    @staticmethod
    def cluster(generator) -> dict[str, float]:
        limits = {"rate": (0.1, 50), "notice": (1, 600), "start": (30, 1000), "write": (0.1, 2000),
                  "read": (0.1, 2000)}  # fmt: skip
        made = {name: float(generator.uniform(*ends)) for name, ends in limits.items()}
        return made | {"asynchronous": float(generator.integers(0, 2))}

    def records(self) -> list[dict]:
        def at(columns: dict, i: int) -> dict:
            return {n: None if np.isnan(v[i]) else float(v[i]) for n, v in columns.items()}

        return [
            {"layout": at(self.layout, i), "machine": at(self.machine, i),
             "cluster": self.kinds[which] | at(self.jobs, i)}
            for i, which in enumerate(self.which)
        ]  # fmt: skip

    def goodput(self, ranks: np.ndarray) -> dict[str, np.ndarray]:
        found = {f.name: np.empty(len(ranks)) for f in fields(GoodputPlan)}
        for number, c in enumerate(self.kinds):
            mine = self.which == number
            cluster = Cluster(
                FailureRate("x", c["rate"], "", ""), Restart("x", c["notice"], c["start"], 0, ""),
                Storage("x", c["write"], c["read"], ""), asynchronous=c["asynchronous"] > 0,
            )  # fmt: skip
            plan = goodput_of(ranks[mine], *(v[mine] for v in self.jobs.values()), cluster)
            for name, values in found.items():
                values[mine] = getattr(plan, name)
        return found

    def answers(self) -> dict[str, np.ndarray]:
        a, unknown = imputed(layout_arrays(self.layout))
        found = memory(a)
        named = {f"memory {name}": v for name, v in found.terms.items()}
        every = step_parts(a, known_machine(machine_arrays(self.machine))) | named
        return every | self.goodput(a.ranks) | {
            "moment": found.moment, "stage": found.stage, "unknown": unknown,
            "fits": fits(a, found, unknown), "largest": largest_micro_batch(a),
        }  # fmt: skip


def off(ours: dict[str, np.ndarray], theirs: dict[str, list]) -> dict[str, float]:
    """The largest error of each figure: relative, or for a part of a sum of the sum."""
    assert set(ours) == set(theirs)
    parts = [name for name in ours if name in PARTS]
    sums = {"step": sum(ours[name] for name in parts),
            "memory": sum(v for name, v in ours.items() if name.startswith("memory "))}  # fmt: skip
    found = {}
    for name, mine in ours.items():
        yours = np.array([float(v) for v in theirs[name]])
        mine = np.broadcast_to(np.asarray(mine, float), yours.shape)
        assert (np.isfinite(mine) == np.isfinite(yours)).all(), name
        of = sums["step"] if name in parts else sums["memory"] if "memory " in name else 1e-3
        known = np.isfinite(mine)
        error = (
            np.abs(mine - yours)[known]
            / np.maximum(np.abs(mine), np.broadcast_to(of, mine.shape))[known]
        )
        found[name] = float(error.max())
    return found


PARTS = tuple(step_parts(
    imputed(layout_arrays({n: 1.0 for n in ("n_layer", "d_model", "n_head", "n_kv_head", "qk_dim",
                                            "v_dim", "vocab", "d_ff", "matrices")}))[0],
    known_machine(machine_arrays({"peak_16": 1.0, "memory_gbs": 1.0})),
))  # fmt: skip


def of_browser(reader: Reader, requests: Requests, **changed: float) -> dict[str, list]:
    return json.loads(reader.driver.execute_script(ASKED, requests.records(), changed))


def test_10000_random_requests_have_the_same_numbers_in_both_languages(reader):
    requests = Requests(10_000)
    opened(reader)
    errors = off(requests.answers(), of_browser(reader, requests))
    assert len(errors) > 40 and max(errors.values()) < 1e-9, errors


@pytest.mark.parametrize("name", ["few_rows", "network", "family_torch", "step_s", "gaps"])
def test_a_constant_that_differs_in_one_language_is_noticed(reader, name):
    """With a constant of the page off by a millionth; put back, all agree again."""
    requests = Requests(300, seed=4)
    opened(reader)
    ours = requests.answers()
    assert max(off(ours, of_browser(reader, requests)).values()) < 1e-9
    changed = off(
        ours,
        of_browser(reader, requests, **{name: (time_values() | constants())[name] * (1 + 1e-6)}),
    )
    assert max(changed.values()) > 1e-9


def test_the_page_opens_at_what_the_card_of_the_first_page_speaks_of(reader):
    said = layout_line()
    opened(reader, PLAN_ADDRESS)
    rate = significant(reader.js("llmbenchPlan.answer().rate"))
    assert f", {rate} (" in said
    opened(reader)
    assert f", {significant(reader.js('llmbenchPlan.answer().rate'))} (" not in said


# ---- the same answers as the command

ADDRESSES = [
    "",
    "#model=DeepSeek-V3&card=H100+SXM&precision=fp8&gpus=1024&tokens=64M&seq=4096&training=15T",
    "#model=llama3.1-8b&card=A100-80GB+SXM&framework=torch&gpus=16&tokens=1M&seq=4096&network=12.5",
    "#model=Llama-3.1-405B&card=GB200&precision=nvfp4&gpus=576&tokens=9437184&seq=8192",
    "#gpus=64&training=1T&price=2.10&mtbf=1000&restart=300&asynchronous=yes",
    "#gpus=64&power_w=520&power_price=0.25&write=5&read=40",
    "#gpus=64&write=5",  # and reads as fast, as the command takes it
    "#gpus=64&read=40",
]
COMMAND = "document.querySelector('[data-command={}] code').textContent"


def asked_of_command(command: str, *more: str) -> dict:
    typed = shlex.split(command)
    assert typed[0] == "llmbench"
    done = subprocess.run(
        [sys.executable, "-m", "llmbench.cli", *typed[1:], "--format", "json", *more],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, (command, done.stderr)
    return json.loads(done.stdout)


@pytest.mark.parametrize("address", ADDRESSES)
def test_the_command_of_the_page_gives_the_same(reader, address):
    opened(reader, address)
    reader.wait("document.querySelector('[data-command=layout] code') !== null")
    told = asked_of_command(reader.js(COMMAND.format("layout")))
    [layout] = told["layouts"]
    a = "llmbenchPlan.answer()"
    same = {
        "step_time_s": "step", "tokens_per_s_per_gpu": "rate", "goodput": "good.goodput",
        "checkpoint_every_s": "good.interval_s", "days": "days",
        "usd_per_1m_lasting_tokens": "usd_lasting", "power_usd_at_most": "power_usd",
        "training_kwh_at_most": "kwh", "restart_s": "good.restart_s",
        "ranks": "a.ranks", "micro_steps": "a.micro_steps",
    }  # fmt: skip
    for name, path in same.items():
        assert reader.js(f"{a}.{path}") == pytest.approx(layout[name], rel=1e-9), name
    assert reader.js(f"{a}.total / 2 ** 30") == pytest.approx(layout["peak_memory_gib"], rel=1e-9)
    assert reader.js(f"{a}.inside") == told["inside_calibration"]
    assert reader.js(f"{a}.factor90") == pytest.approx(told["interval_90_pct_factor"], abs=1e-3)
    assert reader.js(f"{a}.factor80") == pytest.approx(told["p90_factor"], abs=1e-3)
    assert told["p90_factor"] < told["interval_90_pct_factor"]
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length > 0")

    # and the command of the table the same twenty, in the same order
    told = asked_of_command(reader.js(COMMAND.format("table")))
    best = reader.js("llmbenchPlan.best().found")
    assert best["looked"] == told["layouts_looked_at"]
    rates = [row["tokens_per_s_per_gpu"] for row in told["layouts"]]
    assert [row["rate"] for row in best["best"]] == pytest.approx(rates, rel=1e-9)
    names = ("tp", "pp", "vpp", "cp", "ep", "micro_batch", "recompute", "zero_stage")
    for mine, theirs in zip(best["best"], told["layouts"], strict=True):
        twins = sum(abs(r / theirs["tokens_per_s_per_gpu"] - 1) < 1e-12 for r in rates) > 1
        assert twins or [mine["c"][n] for n in names] == [theirs[n] for n in names]
        words = mine["usd"], theirs["usd_per_1m_lasting_tokens"]
        assert twins or words[0] == pytest.approx(words[1], rel=1e-9), "one name, one definition"
        assert mine["worse"] == pytest.approx(theirs["chance_faster_than_first"], abs=1e-9)
        assert twins or mine["chance"] == pytest.approx(theirs["fit_chance"], abs=1e-6)


@pytest.mark.parametrize("address", ["#gpus=64", "#card=B200+SXM&precision=fp8&gpus=64"])
def test_chances_are_rounded_once(reader, address):
    """To two decimals, on the page and by the command: where the third digit is 5, too."""
    opened(reader, address)
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    told = asked_of_command(reader.js(COMMAND.format("table")))["layouts"]
    cells = "Array.from(document.querySelectorAll('[data-part=best] tbody tr'), row =>"
    shown = reader.js(cells + " [row.cells[5].textContent, row.cells[7].textContent])")
    chances = [(one["fit_chance"], one["chance_faster_than_first"]) for one in told]
    texts = [[f"{fit:.2f}", f"{faster:.2f}"] for fit, faster in chances]
    assert [row[0] for row in shown] == [row[0] for row in texts]
    assert [row[1] for row in shown[1:]] == [row[1] for row in texts[1:]]
    twice = [[f"{round(x, 3):.2f}" for x in pair] for pair in chances]
    assert twice != texts, "else nothing is tested"


def test_the_command_of_what_surely_fits_begins_with_the_layout_that_was_taken(reader):
    opened(reader, "#gpus=64")
    reader.wait("document.querySelector('.plan-sure') !== null")
    assert "--surely" not in reader.js(COMMAND.format("table"))
    reader.js("(() => { document.querySelector('.plan-sure').click(); return 1; })()")
    command = reader.js(COMMAND.format("table"))
    assert "--surely" in command and "--layout" not in command
    first = asked_of_command(command)["layouts"][0]
    assert first["layout"] == reader.js("document.querySelector('.plan-words b').textContent")


@pytest.mark.parametrize("name", ["llama3.1-70b", "Llama-3.1-70B", "LLAMA 3.1 70b"])
def test_a_model_is_known_in_every_spelling_and_named_once(reader, name):
    opened(reader, f"#model={name.replace(' ', '+')}&gpus=64")
    assert reader.js("document.querySelector('[data-field=model]').value") == "llama3.1-70b"
    names = reader.js("Array.from(document.querySelectorAll('[data-field=model] option'), one =>"
                      " one.value.toLowerCase().replace(/[^a-z0-9]/g, ''))")  # fmt: skip
    assert len(names) == len(set(names)) > 50
    opened(reader, "#model=llama3.1-405b&gpus=1024")
    assert reader.js("document.querySelector('[data-field=model]').value") == "Llama-3.1-405B"


def test_what_is_beyond_anything_published_is_said_as_the_command_says_it(reader):
    opened(reader, "#card=A100-80GB+SXM&gpus=64&power_w=5000")
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    told = asked_of_command(reader.js(COMMAND.format("layout")))
    most = told["highest_published_mfu_pct"]
    assert told["layouts"][0]["mfu_pct"] > most
    said = reader.js(TEXT)
    assert f"above the highest published MFU of this card ({most:.1f} %)" in said
    assert "above the TDP of 400 W" in said
    opened(reader, "#gpus=64")
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    assert "highest published MFU" not in reader.js(TEXT)


# ---- the page

TEXT = "document.querySelector('#plan').innerText"


def test_the_page_is_one_small_file_that_requests_nothing(reader, site):
    assert (site / "plan.html").stat().st_size <= 2_000_000
    opened(reader)
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    asked = {urlparse(url).scheme for url in reader.requests()}
    assert asked <= {"file", "data", "about"} and "file" in asked
    assert reader.console() == []
    said = reader.js(TEXT)
    assert "NaN" not in said and "undefined" not in said and "Infinity" not in said
    links = reader.js("Array.from(document.querySelectorAll('[data-part=near] a'), a => a.href)")
    assert len(links) == 8 and all(link.startswith("https://") for link in links)


def test_an_address_gives_the_same_page_again(reader):
    opened(reader, "#model=llama3.1-8b&gpus=64&price=2.5&mtbf=2000")
    reader.click("[data-part=best] tbody tr:nth-child(3) button")
    address, words = (
        reader.js("location.hash"),
        reader.js("document.querySelector('.plan-words').textContent"),
    )
    assert "tp=" in address and "price=2.5" in address
    step = reader.js("llmbenchPlan.answer().step")
    opened(reader, address)
    assert reader.js("document.querySelector('.plan-words').textContent") == words
    assert reader.js("llmbenchPlan.answer().step") == step
    assert reader.js("document.querySelector('[data-field=mtbf]').value") == "2000"


LAYOUT = "&pp=4&vpp=1&cp=1&ep=1&micro_batch=1&recompute=none&zero_stage=1"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (f"#tp=3{LAYOUT}&gpus=96", "tp 3 does not divide the 64 heads"),
        (f"#tp=8{LAYOUT}&gpus=100", "tp 8 x pp 4 x cp 1 = 32 does not divide 100 GPUs"),
        (f"#tp=16{LAYOUT}&gpus=256", "tp 16 is more than the 8 GPUs that share a scale-up link"),
        ("#gpus=0", "GPUs “0”: write a whole number from 1 to 1,000,000"),
        ("#tokens=many", "Tokens per step “many”: write a whole number"),
        ("#model=gpt-9", "model “gpt-9”: the page does not know it"),
        ("#card=Z9", "accelerator “Z9”: the page does not know it"),
        ("#network=-4", "Network (GB/s per GPU) “-4”: write a number from 0.01"),
        ("#precision=int3", "precision “int3”: allowed are bf16, fp16, fp8, nvfp4"),
        ("#card=A10&precision=fp8&gpus=8", "allowed with this card are bf16, fp16"),
        ("#card=V100+SXM2&precision=fp8&gpus=8", "allowed with this card are fp16"),
        ("#card=H200+SXM&precision=nvfp4", "no peak of H200 SXM in it is known"),
        ("#gpus=1&model=Kimi-K2", "layouts fits in 80 GB; take more GPUs"),
        ("#mtbf=0", "MTBF of a node (hours) “0”: write a number from 0.01"),
        ("#mtbf=2,5", "MTBF of a node (hours) “2,5”: write a number from 0.01"),
    ],
)
def test_what_is_impossible_is_said_in_words(reader, address, words):
    opened(reader, address)
    reader.wait(f"{TEXT}.includes({words!r})")
    assert "NaN" not in reader.js(TEXT) and reader.console() == []
    assert reader.js("getComputedStyle(document.querySelector('.plan-cards')).display") == "none"


def test_a_card_without_bf16_is_planned_by_its_peak_in_fp16_and_the_page_says_so(reader):
    cards = "document.querySelector('.plan-cards').textContent"
    address = "#model=llama-1b&gpus=8&tp=1&pp=1&vpp=1&cp=1&ep=1&micro_batch=1&recompute=full"
    for card, precision, said in (
        ("V100+SXM2", "bf16", True),
        ("V100+SXM2", "fp16", False),
        ("A100-80GB+SXM", "bf16", False),
    ):
        opened(reader, f"{address}&zero_stage=3&card={card}&precision={precision}")
        reader.wait(f"{cards}.includes('tokens/s per GPU')")
        assert ("this card has no bf16" in reader.js(cards)) is said, (card, precision)


OFFERED = "Array.from(document.querySelectorAll('[data-part=problem] p button'))"
SEARCHED = "llmbenchPlan.best() !== null"


def test_every_change_that_is_offered_makes_an_impossible_layout_possible_and_fits(reader):
    address = f"#tp=3{LAYOUT}&gpus=256"
    opened(reader, address).wait(f"{SEARCHED} && {OFFERED}.length > 1")
    offered = reader.js(f"{OFFERED}.map(b => b.textContent)")
    assert (
        offered[0] == "8"
        and len(offered) > 1
        and offered[-1] == "Take the fastest layout that fits"
    )
    assert "do not fit in the memory" in reader.js(TEXT), "tp 1, 2 and 4 break no rule"
    for place in range(len(offered)):
        opened(reader, address).wait(f"{SEARCHED} && {OFFERED}.length > {place}")
        reader.driver.execute_script(f"{OFFERED}[{place}].click()")
        assert reader.js("document.querySelector('#plan.has-problem')") is None, offered[place]
        assert reader.js("llmbenchPlan.answer().chance") >= 0.5, offered[place]


def test_micro_batches_that_do_not_fit_are_not_offered(reader):
    opened(reader, "#gpus=64&tp=8&pp=2&cp=1&ep=1&vpp=1&micro_batch=3&zero_stage=1").wait(SEARCHED)
    values = "Array.from(document.querySelectorAll('[data-part=problem] p')).filter("
    values += "p => p.textContent.startsWith('Micro batch'))"
    allowed = reader.js("llmbenchPlan.M.possible_values(llmbenchPlan.chosenLayout("
                        "llmbenchPlan.state()), llmbenchPlan.question().fixed, 64, 'micro_batch')")  # fmt: skip
    offered = reader.js(
        f"{values}.flatMap(p => [...p.querySelectorAll('button')].map(b => b.textContent))"
    )
    assert len(allowed) > 1 and set(offered) < {str(v) for v in allowed}


@pytest.mark.parametrize("layout", ["", f"&tp=1{LAYOUT.replace('pp=4', 'pp=1')}"])
def test_with_seven_gpus_only_numbers_that_work_are_offered(reader, layout):
    opened(reader, f"#gpus=7&model=llama3.1-8b{layout}").wait(SEARCHED)
    reader.wait(f"{OFFERED}.length > 0")
    said, offered = reader.js(TEXT), reader.js(f"{OFFERED}.map(b => b.textContent)")
    assert "no layout on 7 GPUs" in said and "No change of one setting" not in said
    assert "Take the fastest layout that fits" not in offered, "there is none"
    for place in range(len(offered)):
        opened(reader, f"#gpus=7&model=llama3.1-8b{layout}").wait(f"{OFFERED}.length > 0")
        reader.driver.execute_script(f"{OFFERED}[{place}].click()")
        reader.wait("llmbenchPlan.answer() !== null && document.querySelector('#plan.has-problem')"
                    " === null")  # fmt: skip
        assert reader.js("llmbenchPlan.answer().chance") >= 0.5, offered[place]


def test_a_number_of_gpus_on_which_nothing_fits_is_not_offered(reader):
    """Four cards have layouts of a 70B model, but no memory for any."""
    opened(reader, "#gpus=7").wait(f"{SEARCHED} && {OFFERED}.length > 0")
    offered = reader.js(f"{OFFERED}.map(b => b.textContent)")
    assert "4" not in offered and len(offered) >= 1, offered


def test_a_search_for_changes_that_is_stopped_says_so(reader):
    opened(reader, "#gpus=7").wait(SEARCHED)
    said = "llmbenchPlan.stoppedWords(llmbenchPlan.changesThatWork(llmbenchPlan.question(){0}){0})"
    stopped = reader.js(said.format(", 0"))
    assert re.fullmatch(
        r"The search for changes was stopped after 0 s: 0 of \d+ changes tried\.", stopped
    )
    assert reader.js(said.format(", 1e6")) == "", "a search that ended says nothing"


@pytest.mark.parametrize("address", ["#gpus=0", "#gpus=1&model=Kimi-K2"])
def test_the_fastest_that_fits_is_not_offered_where_there_is_none(reader, address):
    opened(reader, address)
    reader.wait(f"{TEXT}.includes('Not possible')")
    assert "Take the fastest layout that fits" not in reader.js(TEXT)


def test_fits_has_one_meaning_on_the_page(reader):
    opened(reader, "#gpus=128").wait(SEARCHED)
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    found = reader.js("llmbenchPlan.best().found.best.map(row => row.chance)")
    unsure = sum(chance < 0.9 for chance in found)
    said = reader.js(TEXT)
    assert min(found) >= 0.5 and unsure > 0, "else nothing is tested"
    assert f"from a chance of 0.5 on; {unsure} of these are below 0.9" in said
    badges = reader.js("document.querySelectorAll('[data-part=best] tbody .badge').length")
    assert badges == unsure
    place = next(i for i, chance in enumerate(found) if chance < 0.9)
    reader.driver.execute_script(f"document.querySelectorAll('.plan-take')[{place}].click()")
    assert "probably fits (chance 0." in reader.js(TEXT)


def test_paper_has_what_was_asked(reader):
    opened(reader, "#gpus=128&price=2.5").wait(SEARCHED)
    asked = "getComputedStyle(document.querySelector('.plan-asked')).display"
    assert reader.js(asked) == "none"
    reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        assert reader.js(asked) == "block"
        said = reader.js(TEXT)
    finally:
        reader.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    for words in ("What was asked", "GPUs: 128;", "Model: llama3.1-70b;", "per GPU hour): 2.5;",
                  "Micro batch: ", "MTBF of a node (hours): 6,335 (usual)"):  # fmt: skip
        assert words in said, words


def test_a_training_that_never_ends_is_called_so(reader):
    opened(reader, "#mtbf=0.01&restart=1000000")
    reader.wait(f"{TEXT}.includes('failures take all the time')")
    said = reader.js(TEXT)
    assert "no end" in said and "Infinity" not in said and "NaN" not in said


def test_own_integers_of_a_preset_give_the_preset(reader):
    opened(reader, "#model=llama3.1-8b&gpus=8&tokens=1M")
    step = reader.js("llmbenchPlan.answer().step")
    reader.js("(() => { const box = document.querySelector('[data-field=model]');"
        " box.value = 'own';"
              " box.dispatchEvent(new Event('change')); return 1; })()")  # fmt: skip
    reader.wait("llmbenchPlan.best() !== null && llmbenchPlan.answer() !== null")
    assert reader.js("llmbenchPlan.answer().step") == pytest.approx(step, rel=1e-12)
    assert "own integers have none" in reader.js(TEXT)
    assert "n_layer=32" in reader.js("location.hash")


def test_a_slider_moves_with_the_keyboard_and_the_answer_follows(reader):
    from selenium.webdriver.common.keys import Keys

    opened(reader)
    slider = reader.driver.find_element("css selector", "[data-slider=gpus]")
    assert (
        reader.js("document.querySelector('[data-slider=gpus]').getAttribute('aria-valuetext')")
        == "256"
    )
    slider.send_keys(Keys.ARROW_RIGHT)
    assert reader.js("document.querySelector('[data-field=gpus]').value") == "384"
    reader.wait("llmbenchPlan.best() !== null && llmbenchPlan.answer()?.a.ranks === 384")
    assert "gpus=384" in reader.js("location.hash")


def test_every_field_has_a_name_and_every_id_is_its_own(reader):
    opened(reader)
    boxes = "Array.from(document.querySelectorAll('#plan :is(input, select, button)'))"
    named = "box.labels?.length || box.getAttribute('aria-label') || box.textContent.trim()"
    unnamed = reader.js(f"{boxes}.filter(box => !({named})).length")
    assert unnamed == 0
    ids = reader.js("Array.from(document.querySelectorAll('[id]'), e => e.id)")
    assert len(ids) == len(set(ids)) > 20


@pytest.mark.parametrize("width", [400, 768, 1100, 1700])
def test_the_page_is_no_wider_than_the_screen(reader, width):
    opened(reader, "", width)
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    assert reader.js("document.documentElement.scrollWidth") <= width
    now = reader.js("getComputedStyle(document.querySelector('.plan-now')).display")
    assert (now != "none") == (width < 900)


def test_a_layout_is_taken_with_the_keyboard_and_the_focus_stays(reader):
    from selenium.webdriver.common.keys import Keys

    opened(reader)
    reader.wait("document.querySelectorAll('[data-part=best] tbody tr').length === 20")
    words = reader.js("document.querySelectorAll('.plan-take')[4].textContent")
    reader.driver.execute_script("document.querySelectorAll('.plan-take')[4].focus()")
    reader.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert reader.js("document.querySelector('.plan-words b').textContent") == words
    assert reader.js("document.activeElement.textContent") == words
    assert reader.js("document.activeElement.getAttribute('aria-pressed')") == "true"
