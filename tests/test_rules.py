"""Every field of the run file, changed one at a time: the verdict is what the table of rules
says.
"""

import copy
import json
from pathlib import Path

import pytest

from llmbench.analysis.fairness import DEFAULT_VARIES
from llmbench.analysis.rules.kinds import KINDS, schema_fields
from llmbench.analysis.rules.table import rule_of
from llmbench.compare.compare import fair
from llmbench.compare.select import RepeatSet
from llmbench.compare.verb import compare_command, compare_words
from llmbench.compare.words import notes
from llmbench.core.records import write_run
from llmbench.core.schema import SCHEMA, dump_run, validate_run
from llmbench.plan.flops import parameter_count
from llmbench.report.build import build_report
from llmbench.spec.request import run_id, spec_record
from llmbench.spec.resolve import resolve_run

ROOT = Path(__file__).resolve().parents[1]
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV18\t0-31\nGPU1\tNV18\t X \t0-31\n"
STEPS = 14


def host(name):
    "What a host says of itself."
    return {
        "hostname": name,
        "driver": "550.54.15",
        "cuda": "12.8",
        "rocm": None,
        "nccl": "2.27.3",
        "topology": MATRIX,
        "kernel": "6.1.0",
        "cpu": {"name": "Example CPU", "logical_cores": 32, "memory_gib": 512.0},
        "python": "3.11.7",
        "versions": {"torch": "2.13.0", "triton": "3.5.0", "deepspeed": "0.19.8", "numpy": "2.4.6"},
        "git": {"commit": "0a1b2c3d", "dirty": False, "diff_sha256": "0d1f" * 16},
        "nics": ["eth0: mlx5_core, 100 Gb/s, up"],
        "firmware": {"bios": "American Megatrends 1.2"},
        "reasons": {"rocm": "the platform is cuda"},
        "container_digest": "sha256:0a",
        "lock_hash": "da04c0b3",
        "variables": {
            "NCCL_P2P_DISABLE": "0",
            "PYTORCH_ALLOC_CONF": "expandable_segments:True",
            "MALLOC_ARENA_MAX": "2",
            "OMP_NUM_THREADS": "8",
        },
    }


def samples(host, rank):
    "The series of a host, or of a card of it."
    ends = {"window_start_s": 0.5, "window_end_s": 9.5, "cost_s": 1e-4, "time_s": [0.0, 10.0]}
    card = {"temperature_c": [50.0, 60.0], "clock_mhz": [1980.0] * 2, "lowered": ["", ""]}
    source = {"source": "proc", "network_gb_s": [None, 0.1]}
    more = source if rank is None else {"source": "nvml", "busy_pct": [0.0, 99.0]} | card
    known = {"memory_gib": [1.0, 2.0], "power_w": [100.0, 600.0]}
    return {"host": host, "rank": rank} | ends | known | more


def made_run(strategy="zero2", attempt=1, step_s=0.5, platform="cuda", hosts=1):
    "A run file in which every field has a value, invented, and in agreement with itself."
    spec = resolve_run(
        {
            "study": "small",
            "model": "llama-tiny",
            "strategy": strategy,
            "world_size": 2,
            "seq_len": 128,
            "steps": STEPS,
            "batch": {"micro": 2, "global_tokens": 2048},
            "warmup_steps": 2,
            "optimizer": {"lr_warmup_steps": 5},
        }
    )
    record = spec_record(spec).model_dump() | {
        "data": {
            "kind": "synthetic",
            "fingerprint": "51c0ffee00000000",
            "fingerprint_first": "c0ffee00",
        }
    }
    record["model"]["parameters"] = parameter_count(spec.model)
    rate = spec.optimizer.lr
    steps = {
        "step": list(range(STEPS)),
        "time_s": [step_s * (1 + 0.001 * ((7 * k + attempt) % 5)) for k in range(STEPS)],
        "tokens": [2048] * STEPS,
        "loss": [8.4 - k / 10 for k in range(STEPS)],
        "grad_norm": [2.0 - k / 20 for k in range(STEPS)],
        "lr": [rate * min(1.0, (k + 1) / 5) for k in range(STEPS)],
    }
    names = ["here"] if hosts == 1 else ["here", "there"]
    ranks = [
        {
            "rank": r,
            "host": names[r % hosts],
            "device": f"cuda:{r}",
            "time_s": steps["time_s"],
            "data_time_s": [0.001] * STEPS,
            "peak_allocated_bytes": 2**29,
            "peak_reserved_bytes": 2**30,
            "memory_source": "device_allocator",
            "param_norm_before": 31.0,
            "param_norm_after": 32.0,
        }
        for r in range(2)
    ]
    cards = [
        {
            "rank": r,
            "name": "NVIDIA H100 80GB HBM3",
            "uuid_hash": f"0{r}ab",
            "memory_gib": 79.1,
            "power_limit_w": 700.0,
            "clock_mhz": 1980.0,
        }
        for r in range(2)
    ]
    first = host("here")
    env = {k: v for k, v in first.items() if k != "hostname"} | {
        "platform": platform,
        "backend": "nccl",
        "hostnames": names,
        "devices": cards,
        "threads_per_rank": 8,
        "framework": "llmbench",
        "command": "llmbench run small.yaml",
        "hosts": [host(name) for name in names] if hosts > 1 else [],
    }
    if platform == "cpu":
        env |= {
            "backend": "gloo",
            "driver": None,
            "cuda": None,
            "nccl": None,
            "topology": "1 socket, 1 NUMA node, 32 cores, 1 thread per core",
        }
        env["devices"] = [
            {"rank": r, "name": "Example CPU", "memory_gib": 512.0, "matmul_tflops": 0.2}
            for r in range(2)
        ]
        env["hosts"] = []
    clock = "device_events" if platform == "cuda" else "monotonic"
    return dump_run(
        validate_run(
            {
                "schema": SCHEMA,
                "run_id": run_id(spec, attempt),
                "study": "small",
                "attempt": attempt,
                "status": "ok",
                "started_at": f"2026-11-21T10:{attempt:02d}:00.000Z",
                "ended_at": f"2026-11-21T10:{attempt:02d}:30.000Z",
                "spec": record,
                "steps": steps,
                "ranks": ranks,
                "env": env,
                "energy_j": 100.0,
                "transfer": {"h2d_gb_s": 50.0, "all_reduce_bus_gb_s": 300.0, "link_gb_s": 40.0},
                "measurement": {"clock": clock, "clock_cost_s": 1e-7, "energy_source": "nvml"},
                "skipped_steps": 0,
                "collectives": [
                    {
                        "kind": "all_reduce",
                        "calls": 2,
                        "bytes": 100,
                        "time_s": 0.1,
                        "exposed_s": 0.05,
                        "alone_s": 0.05,
                    }
                ],
                "window": {"steps": 2, "time_s": 1.0, "exposed_s": 0.1},
                "events": [{"kind": "warning", "text": "nothing"}],
                "goodput": {"starts": 1, "wall_s": 30.0},
                "telemetry": [samples(names[0], r) for r in (None, 0)],
                "memory_timeline": [{"rank": 0, "time_ms": [0.0], "allocated_bytes": [1]}],
                "logged": [{"name": "mfu_pct", "values": [1.0] * STEPS}],
            }
        )
    )


def among(*runs):
    return RepeatSet("a", runs, tuple({"run_id": r["run_id"]} for r in runs), {})


def verdict(one, other, varies=DEFAULT_VARIES):
    return fair(among(one), among(other), varies)


OTHER = {  # values that a plain change of a number or a text would not give
    "status": "crash",
    "schema": None,
    "env.platform": "cpu",
    "env.topology": MATRIX.replace("NV18", "PHB"),
    "env.hosts[].topology": MATRIX.replace("NV18", "PHB"),
    "env.devices[].uuid_hash": "00ab",
    "env.devices[].matmul_tflops": 2.0,
    "ranks[].memory_source": "device_used",
    "measurement.clock": "monotonic",
    "measurement.energy_source": "rapl",
    "measurement.turns": "ab12",
    "events[].kind": "oversubscribed",
    "goodput.starts": 2,
    "started_at": "2026-12-21T10:00:00.000Z",
    "source.kind": "import",
    "env.hostnames": ["here", "there"],
    "ranks[].host": "there",
    "ranks[].param_norm_before": 32.0,
    "ranks[].param_norm_after": 31.0,
    "steps.mean_of": [10] * STEPS,
    "env.python": "3.13.1",
    "env.hosts[].python": "3.13.1",
    "spec.strategy.name": "fsdp",
    "spec.precision.compute": "bfloat16",
    "steps.loss_scale": [1024.0] * STEPS,
    "steps.grad_norm": [20.0 - k / 2 for k in range(STEPS)],
    "steps.lr": [1e-9] * STEPS,
    "steps.loss": [8.0 - k / 10 for k in range(STEPS)],
    "steps.tokens": [1024] * STEPS,
    "spec.precision.param": "bfloat16",
    "source.supplied": ["model"],
    "spec.strategy.quantize": "weights",
    "transfer.link_gb_s": 4.0,
    "transfer.all_reduce_bus_gb_s": 30.0,
    "transfer.h2d_gb_s": 5.0,
    "transfer.input_path": "in_place",
    "spec.data.paths": ["other"],
    "spec.strategy.layers_per_stage": [1, 3],
    "spec.optimizer.betas": [0.5, 0.6],
    "logged[].values": [2.0] * STEPS,
    "telemetry[].source": "amdgpu",
    "telemetry[].network_gb_s": [0.5, 0.5],
    "telemetry[].lowered": ["", "temperature"],
}
NEEDS = {  # what has to hold so that a field means anything
    "spec.strategy.bucket_mib": {"spec.strategy.name": "ddp"},
    "spec.strategy.compression": {"spec.strategy.name": "ddp"},
    "spec.strategy.reshard_after_forward": {"spec.strategy.name": "fsdp"},
    "spec.strategy.dp_replicate": {"spec.strategy.name": "hsdp"},
    "spec.strategy.quantize": {"spec.strategy.name": "zero3"},
    "spec.strategy.hpz": {"spec.strategy.name": "zero3"},
    "spec.strategy.max_live_parameters": {"spec.strategy.name": "zero3"},
    "spec.strategy.schedule": {"spec.strategy.pp": 2},
    "spec.strategy.stages_per_rank": {"spec.strategy.pp": 2},
    "spec.strategy.layers_per_stage": {"spec.strategy.pp": 2},
    "spec.precision.loss_scale": {"spec.precision.compute": "float16"},
    "spec.precision.float8_by": {"spec.precision.compute": "float8"},
    "spec.optimizer.freeze_after_steps": {
        "spec.optimizer.name": "onebit_adamw",
        "spec.optimizer.freeze_after_steps": 4,
    },
    "env.rocm": {"env.platform": "rocm", "env.rocm": "6.4"},
    "measurement.energy_source": {},
    "env.hosts[].rocm": {"env.platform": "rocm", "env.hosts[].rocm": "6.4"},
}
for part in ("factor", "low_freq_factor", "high_freq_factor", "original_max_seq_len"):
    NEEDS[f"spec.model.rope_scaling.{part}"] = {
        "spec.model.rope_scaling": {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_seq_len": 512,
        }
    }
NAMES = {
    "variables": (
        "NCCL_P2P_DISABLE",
        "NCCL_ALGO",
        "PYTORCH_ALLOC_CONF",
        "MALLOC_ARENA_MAX",
        "OMP_NUM_THREADS",
        "CUDA_VISIBLE_DEVICES",
        "DS_ACCELERATOR",
    ),
    "versions": ("torch", "triton", "deepspeed", "numpy", "llmbench"),
    "firmware": ("bios",),
    "reasons": ("rocm",),
}


def leaves():
    "Every field, with names for those that are mappings."
    for field in schema_fields():
        if field.endswith(".*"):
            yield from (f"{field[:-1]}{name}" for name in NAMES[field.split(".")[-2]])
        else:
            yield field


def changed_value(path, value):
    if path in OTHER:
        return OTHER[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 2 or 0.5
    if isinstance(value, list):
        return [changed_value("", v) for v in value] or [1.0] * STEPS
    return f"{value}x" if isinstance(value, str) else 2


def put(run, path, change, every=False):
    """Set a field, in the last record of a list or in every one, to what `change` makes of it;
    names of a mapping may be new.
    """
    head, _, rest = path.partition(".")
    if head in NAMES:
        run[head][rest] = change(run[head].get(rest))
    elif not rest:
        run[head] = change(run[head])
    elif head.endswith("[]"):
        for record in run[head[:-2]][0 if every else -1 :]:
            put(record, rest, change, every)
    else:
        put(run[head], rest, change, every)


def pair_for(path):
    "Two equal runs in which the field means something."
    cpu = path in ("env.devices[].matmul_tflops", "env.threads_per_rank")
    base = made_run(platform="cpu" if cpu else "cuda", hosts=2 if "hosts[]" in path else 1)
    for where, value in NEEDS.get(path, {}).items():
        put(base, where, lambda _, value=value: value, every=True)
    return base, copy.deepcopy(base)


def changed_pair(path):
    one, other = pair_for(path)
    put(other, path, lambda value: changed_value(path, value), every="param_norm" in path)
    if path.startswith("steps.") and path == "steps.step":
        for name in ("time_s", "tokens", "loss", "grad_norm", "lr"):
            other["steps"][name] = other["steps"][name][:-4]
        other["steps"]["step"] = other["steps"]["step"][:-4]
    return one, other


@pytest.mark.parametrize("path", list(leaves()))
def test_the_verdict_over_one_changed_field_is_its_rule(path):
    one, other = changed_pair(path)
    assert str(verdict(*pair_for(path))) == "yes", "equal runs are comparable"
    assert one != other or path == "schema"
    if path in (
        "schema",
        "source.kind",
    ):  # other values are no run file, or decide what a null means
        return
    rule, found = rule_of(path), verdict(other, one, ())
    if rule.kind in ("varied", "no", "run", "curve"):
        assert found.verdict in ("no", "unknown") and (
            found.verdict == "no" or "not" in str(found) or path == "env.platform"
        ), (rule, str(found))
    elif rule.kind == "limits":
        assert found.verdict == ("yes" if path == "started_at" else "no") and (
            found.remarks or found.differences
        ), (rule, str(found))
    elif rule.kind == "remark":
        assert found.verdict == "yes" and [
            r for r in found.remarks if r.name.startswith(rule.fact.rstrip("*"))
        ], (rule, str(found))
    else:
        assert found.verdict == "yes" and not found.remarks, (rule, str(found), found.remarks)


@pytest.mark.parametrize(
    "path", [p for p in leaves() if rule_of(p).kind == "varied" and rule_of(p).fact]
)
def test_what_a_study_varies_is_allowed(path):
    one, other = changed_pair(path)
    name = rule_of(path).fact
    fact = path.removeprefix("env.").removeprefix("hosts[].") if name.endswith("*") else name
    heads = {
        "hardware.hosts": ["hardware"],
        "hardware.ranks_per_host": ["hardware"],
        "hardware.platform": ["hardware", "software", "measurement"],
    }
    varies = heads.get(fact, [fact])
    if path in (
        "env.platform",
        "steps.tokens",
    ):  # a card without its clock, a request that was not followed
        return
    found = verdict(other, one, varies)
    assert not [d for d in found.differences if d.name == fact], str(found)


def test_every_rule_says_what_it_means():
    ruled = [rule_of(field) for field in schema_fields()]
    assert all(rule.kind in KINDS and len(rule.why) > 5 for rule in ruled)


UNLIKE = {  # field by field what a sceptic changed without being noticed
    "env.devices[].power_limit_w": 350.0,
    "env.devices[].clock_mhz": 990.0,
    "env.driver": "535.1",
    "env.cuda": "12.1",
    "env.nccl": "2.10.3",
    "env.topology": MATRIX.replace("NV18", "PHB"),
    "env.variables.NCCL_P2P_DISABLE": "1",
    "env.variables.PYTORCH_ALLOC_CONF": "max_split_size_mb:32",
    "env.versions.triton": "3.0.0",
    "transfer.link_gb_s": 4.0,
    "env.devices[].uuid_hash": "00ab",
    "env.versions.deepspeed": "0.14.0",
    "env.git.commit": "ffffffff",
    "env.git.dirty": True,
    "env.lock_hash": "00000000",
    "env.variables.MALLOC_ARENA_MAX": "8",
    "env.cpu.logical_cores": 4,
    "started_at": "2026-12-21T10:00:00.000Z",
    "ended_at": "2026-12-21T10:00:30.000Z",
    "measurement.turns": "ab12",
    "events[].kind": "oversubscribed",
    "goodput.starts": 3,
    "steps.tokens": [1024] * STEPS,
    "steps.lr": [1e-9] * STEPS,
    "steps.grad_norm": [10 * (2.0 - k / 20) for k in range(STEPS)],
    "skipped_steps": 4,
    "env.hostnames": ["there", "yonder"],
}
NAMED = (
    "hardware.power_limit_w",
    "hardware.clock_mhz",
    "hardware.driver",
    "software.toolkit",
    "software.nccl",
    "hardware.topology",
    "variables.NCCL_P2P_DISABLE",
    "variables.PYTORCH_ALLOC_CONF",
    "software.triton",
    "transfer.link_gb_s",
    "used the same card",
    "software.deepspeed",
    "variables.MALLOC_ARENA_MAX",
    "hardware.host_cores",
    "measurement.turns",
    "events.oversubscribed",
    "events.restarts",
    "tokens, where the request has",
    "the learning rate is at most",
    "the gradient norms are",
    "precision.skipped_steps",
    "hardware.hosts",
)


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Three repeats of two strategies on equal machines, and of one that differs in everything that
    is no question.
    """
    folder = tmp_path_factory.mktemp("rules") / "results"
    for attempt in range(1, 4):
        runs = [
            made_run("zero1", attempt, 0.75),
            made_run("zero2", attempt, 0.74),
            made_run("zero3", attempt, 0.5),
        ]
        for path, value in UNLIKE.items():
            put(runs[2], path, lambda _, value=value: value, every="uuid" not in path)
        for run in runs:
            write_run(folder / "small" / run["run_id"], validate_run(run))
    (folder / "small" / "study.json").write_text(
        json.dumps(
            {
                "study": "small",
                "title": "Small",
                "question": "Which?",
                "varies": ["strategy"],
                "baseline": {"strategy": "zero1"},
                "repeats": 3,
            }
        )
    )
    return folder


def test_runs_that_differ_in_everything_are_refused_by_name(unlike):
    said, _ = compare_command("strategy=zero3", "strategy=zero1", unlike)
    assert (
        said.startswith("no winner between zero3 and zero1")
        and "faster" not in said.splitlines()[0]
    )
    assert not [name for name in NAMED if name not in said], said
    remarks = "\n".join(notes(compare_words("strategy=zero3", "strategy=zero1", unlike)))
    for name in ("git.commit", "git.dirty", "lock_hash", "started_at", "hardware.hostnames"):
        assert name in remarks, remarks
    like, _ = compare_command("strategy=zero2", "strategy=zero1", unlike)
    assert "comparable: yes" in like.splitlines()[0], like


def test_the_site_names_them_too(unlike, tmp_path):
    build_report(unlike, tmp_path / "site", engine="pandoc", source=ROOT / "reports")
    page = (tmp_path / "site" / "study-small.html").read_text()
    assert "Not all of these runs are comparable" in page or "These runs are not comparable" in page
    missing = [
        name for name in NAMED if name not in page and name not in page.replace("\u00a0", " ")
    ]
    assert not missing, missing
    assert "zero3 trains" not in page
