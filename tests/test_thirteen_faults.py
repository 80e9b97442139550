"""The thirteen faults of the ancestors: one test each, over the real code, that fails when the
fault is put back.

`test_faults_put_back.py` shows that each of them can fail. What needs a GPU is skipped without one.
"""

import gc
import json
import os
import queue
import re
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from llmbench.analysis.rates import run_rates
from llmbench.compare.audit.origins import size_agrees
from llmbench.core.errors import RequestError
from llmbench.core.hardware import peak_tflops
from llmbench.core.numbers import test_near
from llmbench.core.records import assemble, empty_run, marked_result, read_ranks, write_run
from llmbench.core.schema import SCHEMA, dump_run, json_schema, validate_run
from llmbench.launch.cluster.collect import find_results
from llmbench.launch.local import run_local
from llmbench.model.decoder import Block, Decoder, build_model, next_token_loss
from llmbench.model.precision import DTYPES
from llmbench.plan.flops import parameter_count
from llmbench.spec.presets import PRESETS
from llmbench.spec.request import spec_hash, spec_record
from llmbench.spec.resolve import resolve_run
from llmbench.store.database import open_store, query
from llmbench.train import mesh
from llmbench.train.loop import Trainer, join_for, run_steps
from llmbench.train.measure import (
    CpuClock,
    CpuMemory,
    DeviceClock,
    copy_facts,
    fetch,
    host_to_device_gb_s,
    make_clock,
    to_device,
)
from llmbench.train.worker import load_strategy

ROOT = Path(__file__).resolve().parents[1]
STRATEGIES = ("single", "ddp", "fsdp", "zero1", "zero2", "zero3")
ACCUM, STEPS = 4, 3
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


# --- every strategy, watched while it trains


class Watch:
    """What a strategy does between the clock's begin and end, told by torch's own hooks."""

    def __init__(self):
        self.events, self.block_dtypes, self.state_dtypes = [], set(), set()
        self._hooks = [
            register_module_forward_hook(self._forward),
            register_optimizer_step_pre_hook(self._update),
        ]

    def _forward(self, module, inputs, output):
        if isinstance(module, Decoder):
            self.events.append("forward")
        if isinstance(module, Block):
            self.block_dtypes.add(output.dtype)

    def _update(self, optimizer, args, kwargs):
        self.events.append("update")
        held = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad for p in held if p.grad is not None]
        moments = [
            v
            for state in optimizer.state.values()
            for v in state.values()
            if torch.is_tensor(v) and v.dim()
        ]
        self.state_dtypes |= {t.dtype for t in [*held, *gradients, *moments]}

    def clock(self):
        watch = self

        class Recording(CpuClock):
            open_marks = 0  # the mark of the optimizer lies within that of the step

            def begin(self):
                if not self.open_marks:
                    watch.events.append("begin")
                self.open_marks += 1
                return super().begin()

            def end(self, mark):
                self.open_marks -= 1
                if not self.open_marks:
                    watch.events.append("end")
                super().end(mark)

        return Recording()

    def close(self):
        for hook in self._hooks:
            hook.remove()

    def steps(self):
        """The events of each step, `begin` first; whatever is outside of a step comes with the one
        before.
        """
        steps = []
        for event in self.events:
            if event == "begin":
                steps.append([])
            if steps:
                steps[-1].append(event)
        return steps


def request(strategy, precision="fp32"):
    asked = {
        "model": "gpt-tiny",
        "seq_len": 32,
        "batch": {"micro": 1, "accum": ACCUM},
        "steps": STEPS,
        "warmup_steps": 1,
    }
    return resolve_run(asked | {"strategy": strategy, "world_size": 1, "precision": precision})


def watch_training(spec, ranks):
    """Train all steps of a request under the real strategy and loop; what the hooks saw."""
    watch = Watch()
    try:
        model = build_model(spec.model, spec.seed, DTYPES[spec.precision.compute])
        trainer = Trainer(
            load_strategy(spec.strategy, ranks.device)(model, spec, ranks), spec, ranks, CpuMemory()
        )
        trainer.clock = watch.clock()
        run_steps(trainer, lambda facts: None)
    finally:
        watch.close()
    watch.scalers = [o for o in gc.get_objects() if issubclass(type(o), torch.amp.GradScaler)]
    engine = getattr(trainer.strategy, "engine", None)
    watch.scale = (
        float(engine.optimizer.loss_scale)
        if hasattr(getattr(engine, "optimizer", None), "loss_scale")
        else 1.0
    )
    return watch


@pytest.fixture(scope="module")
def watched():
    """Trains a strategy at world size 1 in this process, once for each precision, all in one
    process group.
    """
    before = dict(os.environ)  # DeepSpeed wants a launcher's variables and sets them
    done, ranks = {}, join_for(request("ddp"))

    def train(strategy, precision="fp32"):
        if (strategy, precision) not in done:
            done[strategy, precision] = watch_training(request(strategy, precision), ranks)
        return done[strategy, precision]

    yield train
    mesh.leave()
    os.environ.clear()
    os.environ.update(before)


# --- 1


class Device:
    """An asynchronous device that is really one: a thread that works off a queue, with events in it
    like CUDA's.
    """

    def __init__(self):
        self.gate, self._queue = threading.Event(), queue.Queue()
        threading.Thread(target=self._work, daemon=True).start()

    def _work(self):
        while True:
            self._queue.get()()

    def submit(self, work):
        self._queue.put(work)

    def busy(self, seconds):
        self.submit(lambda: (self.gate.wait(60), time.sleep(seconds)))

    def event_type(device):
        class Event:
            def __init__(self, enable_timing=False):
                self.at, self.passed = None, threading.Event()

            def record(self):
                device.submit(self._pass)

            def _pass(self):
                self.at = time.perf_counter()
                self.passed.set()

            def synchronize(self):
                assert self.passed.wait(60)

            def elapsed_time(self, other):
                if not (self.passed.is_set() and other.passed.is_set()):
                    raise RuntimeError("device not ready")  # as CUDA answers
                return (other.at - self.at) * 1000

        return Event


class Queued:
    """A strategy that only queues its work on a device and returns at once."""

    loss_scale = None
    gradients_averaged = True

    def __init__(self, device, seconds):
        self.device, self.seconds = device, seconds

    def forward_backward(self, micro_batches):
        for _ in micro_batches:
            self.device.busy(self.seconds)
        return [torch.tensor(1.0) for _ in micro_batches]

    def optimizer_step(self, lr):
        self.device.busy(self.seconds)
        return torch.tensor(1.0)

    def gradient_bytes(self):
        return 0


def test_fault_01_device_synchronised_in_the_timed_region(watched, monkeypatch):
    assert isinstance(make_clock(torch.device("cuda")), DeviceClock), (
        "a GPU's steps are timed by events in its own stream"
    )
    device = Device()
    monkeypatch.setattr(torch.cuda, "Event", device.event_type())
    spec = resolve_run(
        {
            "model": "gpt-tiny",
            "strategy": "single",
            "world_size": 1,
            "seq_len": 32,
            "batch": {"micro": 1, "accum": ACCUM},
        }
    )
    trainer = Trainer(
        Queued(device, 0.01), spec, mesh.Ranks(0, 1, 0, torch.device("cpu"), None), CpuMemory()
    )
    trainer.clock = make_clock(torch.device("cuda"))
    queued = trainer.step(0)  # the device is held at its gate: a wait in here would never end
    device.gate.set()
    assert trainer.facts(queued)["time_s"] >= (ACCUM + 1) * 0.01, (
        "the step's time is not what the device needed"
    )
    for strategy in STRATEGIES:
        steps = watched(strategy).steps()
        assert len(steps) == STEPS
        for step in steps:
            assert step[0] == "begin" and step[-1] == "end", (
                f"{strategy} works outside of the timed region: {step}"
            )
            assert {"forward", "update"} <= set(step), f"{strategy}: {step}"


@needs_gpu
def test_fault_01_on_a_gpu_the_clock_waits_for_the_work():
    device = torch.device("cuda")
    matrix = torch.randn(8192, 8192, device=device)
    torch.mm(matrix, matrix)
    torch.cuda.synchronize()
    clock, launched = make_clock(device), time.perf_counter()
    mark = clock.begin()
    for _ in range(20):
        torch.mm(matrix, matrix)
    clock.end(mark)
    launched = time.perf_counter() - launched
    assert clock.seconds(mark) > 5 * launched


# --- 2 and 3


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fault_02_accumulation_is_honoured_by_every_strategy(watched, strategy):
    for step in watched(strategy).steps():
        work = [e for e in step if e in ("forward", "update")]
        assert work[:ACCUM] == ["forward"] * ACCUM, (
            f"{strategy} updates before all {ACCUM} micro steps are done: {work}"
        )
        updates = work[ACCUM:]
        assert set(updates) == {"update"}, f"{strategy}: {work}"
        assert strategy == "zero3" or len(updates) == 1, (
            "ZeRO-3 may update group by group, the others update once"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_fault_03_one_precision_policy_for_every_strategy(watched, strategy):
    half, full = watched(strategy, "bf16"), watched(strategy, "fp32")
    assert half.block_dtypes == {torch.bfloat16} and full.block_dtypes == {torch.float32}
    assert half.state_dtypes == full.state_dtypes == {torch.float32}, (
        "master parameters, gradients and moments"
    )
    assert not half.scalers and half.scale == full.scale == 1.0, "no loss is scaled"
    with pytest.raises(RequestError):
        resolve_run(
            {
                "model": "gpt-tiny",
                "strategy": strategy,
                "world_size": 1,
                "seq_len": 32,
                "precision": {"param": "float16"},
            }
        )


# --- 4


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """ZeRO-2 on two ranks, as users start it: the run file and what each rank wrote."""
    asked = {
        "study": "faults",
        "model": "gpt-tiny",
        "strategy": "zero2",
        "world_size": 2,
        "seq_len": 32,
        "steps": 3,
        "warmup_steps": 1,
    }
    spec, folder = (
        resolve_run(asked | {"batch": {"micro": 2, "accum": 2}}),
        tmp_path_factory.mktemp("two"),
    )
    run = run_local(spec, folder)
    assert run.status == "ok", run.reason
    return run, read_ranks(folder)


def test_fault_04_ranks_under_zero_take_disjoint_data(two_ranks):
    run, ranks = two_ranks
    seen = [
        [(n, digest) for row in rows if row["kind"] == "step" for n, digest in row["sequences"]]
        for rows in ranks
    ]
    first, second = ({n for n, _ in pairs} for pairs in seen)
    assert not first & second and first | second == set(range(3 * 8)), (
        "together they are every global batch, once"
    )
    digests = [d for pairs in seen for _, d in pairs]
    assert len(set(digests)) == len(digests), "two sequences have the same tokens"
    assert run.spec.data.fingerprint and not [e for e in run.events if e.kind == "data_repeated"]
    assert run.steps.tokens == [8 * 32] * 3


# --- 5


class Echo(nn.Module):
    """Predicts its own input with certainty: right only where targets are not shifted."""

    def forward(self, tokens):
        return 100.0 * nn.functional.one_hot(tokens, 4096).float()


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_fault_05_causal_mask_and_shifted_targets(name):
    sequences = torch.randint(0, 4096, (2, 33), generator=torch.Generator().manual_seed(0))
    model = build_model(PRESETS[name], seed=1)
    changed = sequences.clone()
    changed[:, 20] = (changed[:, 20] + 1) % 4096
    with torch.no_grad():
        before, after = model(sequences[:, :-1]), model(changed[:, :-1])
    assert torch.equal(before[:, :20], after[:, :20]), "a later token reached an earlier position"
    assert not torch.equal(before[:, 20:], after[:, 20:]), "a token changed nothing"
    loss = next_token_loss(model, sequences)
    test_near(
        loss.item(),
        nn.functional.cross_entropy(before.transpose(1, 2), sequences[:, 1:]).item(),
        rel=1e-5,
    )
    assert next_token_loss(Echo(), sequences) > 50, "who copies its input must not be rewarded"


# --- 6


def test_fault_06_host_to_device_rate_is_measured_or_null(two_ranks):
    assert host_to_device_gb_s(torch.device("cpu")) is None, "a CPU copies nothing"
    run = dump_run(two_ranks[0])
    assert run["transfer"]["h2d_gb_s"] is None and run_rates(run)["h2d_gb_s"] is None
    told = run | {"transfer": run["transfer"] | {"h2d_gb_s": 24.5}}
    assert run_rates(told)["h2d_gb_s"] == 24.5, (
        "what was measured is published as it is, whatever the batch"
    )
    row = run_rates(run)
    assert row["input_path"] == "in_place" and row["step_h2d_gb_s"] is None, "nor does a step"


@needs_gpu
def test_fault_06_on_a_gpu_the_copy_is_a_copy():
    rates = [
        host_to_device_gb_s(torch.device("cuda"), size_bytes=size * 2**20) for size in (64, 256)
    ]
    assert all(1 < rate < 1000 for rate in rates), rates
    batch = [torch.arange(2**20) for _ in range(2)]
    copied = to_device(batch, torch.device("cuda"))
    facts = copy_facts(copied, fetch([copied.tensors[0].sum()]))
    assert facts["h2d_bytes"] == 2**24 and facts["d2h_bytes"] == 8
    assert 0.1 < facts["h2d_bytes"] / facts["h2d_time_s"] / 1e9 < 1000 and facts["d2h_time_s"] > 0


# --- 7, 8: the eight published rows through the real store

ROWS = {("ddp", 2): 8369, ("ddp", 4): 12220, ("fsdp", 2): 6771, ("fsdp", 4): 9424,
        ("zero2", 2): 10999, ("zero2", 4): 18147, ("zero3", 2): 10560, ("zero3", 4): 15977}  # fmt: skip


def row_as_run(strategy, gpus, tokens_per_s, device="NVIDIA A10", warmup=2, slow=()):
    """A run file with that throughput in every measured step, as an importer would write it."""
    asked = {
        "model": "gpt-124m",
        "strategy": strategy,
        "world_size": gpus,
        "seq_len": 2048,
        "batch": {"micro": 1, "accum": 4},
        "hardware": "a10",
        "precision": "bf16",
        "steps": 12,
        "warmup_steps": 2,
    }
    spec = resolve_run(asked)
    record = spec_record(spec).model_dump() | {"warmup_steps": warmup}
    record["model"]["parameters"] = parameter_count(spec.model)
    tokens = spec.batch.global_tokens
    times = [*slow, *([tokens / tokens_per_s] * (12 - len(slow)))]
    env = {"platform": "cuda", "devices": [{"rank": r, "name": device} for r in range(gpus)]}
    return validate_run(
        {
            "schema": SCHEMA,
            "run_id": f"old.{strategy}-w{gpus}.{spec_hash(spec)}.1",
            "study": "old",
            "status": "ok",
            "spec": record,
            "env": env,
            "steps": {"step": list(range(12)), "time_s": times, "tokens": [tokens] * 12},
            "source": {"kind": "import"},
        }
    )


@pytest.fixture
def eight_rows(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)  # its settings name the price table
    for (strategy, gpus), rate in ROWS.items():
        run = row_as_run(strategy, gpus, rate)
        write_run(tmp_path / run.run_id, run)
    return tmp_path


def test_fault_07_a_baseline_is_at_100_percent_and_named(eight_rows):
    columns = "strategy, world_size, scaling_efficiency_pct, scaling_baseline"
    _, rows = query(eight_rows, f"SELECT {columns} FROM runs ORDER BY 1, 2")
    assert len(rows) == 8
    for strategy, gpus, percent, baseline in rows:
        assert baseline == f"{strategy} · 2 ranks"
        test_near(
            percent, 100.0 if gpus == 2 else 100 * ROWS[strategy, 4] / (2 * ROWS[strategy, 2])
        )


def test_fault_08_money_has_the_hours_of_its_seconds(eight_rows):
    _, [(dollars, rate)] = query(
        eight_rows,
        "SELECT usd_per_1m_tokens, tokens_per_s FROM runs WHERE strategy = 'zero2' AND"
        " world_size = 4",
    )
    test_near([dollars, rate], [1e6 / (18147 * 3600 / (4 * 1.50)), 18147])
    assert 10.8e6 < 1e6 / dollars < 11e6, "tokens per dollar, where 3,025 was printed"


# --- 9


def test_fault_09_the_hardware_record_is_of_the_machine_that_ran(two_ranks, monkeypatch, tmp_path):
    """Put together elsewhere, a run says what its ranks wrote, and nothing of the reader."""
    _, ranks = two_ranks
    for name in ("NCCL_DEBUG", "LLMBENCH_IMAGE_DIGEST", "LLMBENCH_COMMAND"):
        monkeypatch.setenv(name, "the reader's")
    elsewhere = json.loads(json.dumps(ranks))
    for rank, rows in enumerate(elsewhere):
        rows[0] |= {
            "host": f"node-{rank}",
            "device_record": {"name": "NVIDIA A10", "memory_gib": 22.5},
        }
        rows[0]["env"] = {
            "platform": "cuda",
            "driver": "535.129.03",
            "cpu": {"name": "Another CPU"},
            "python": "3.10.0",
        }
    run = assemble(elsewhere)
    assert (
        run.env.hostnames == ["node-0", "node-1"]
        and [d.name for d in run.env.devices] == ["NVIDIA A10"] * 2
    )
    assert (run.env.platform, run.env.driver, run.env.cpu.name, run.env.python) == (
        "cuda",
        "535.129.03",
        "Another CPU",
        "3.10.0",
    )
    unsaid = (
        "cuda",
        "nccl",
        "topology",
        "threads_per_rank",
        "framework",
        "container_digest",
        "lock_hash",
        "command",
    )
    assert (
        not run.env.versions
        and not run.env.variables
        and run.env.git.commit is None
        and run.env.cpu.memory_gib is None
    )
    assert all(getattr(run.env, name) is None for name in unsaid), (
        "the reader filled in what no rank said"
    )
    for rows in elsewhere:
        rows[0]["env"] = {}
    assert assemble(elsewhere).env.model_dump(exclude={"hostnames", "devices"}) == type(
        run.env
    )().model_dump(exclude={"hostnames", "devices"})
    [found] = find_results(marked_result(run))
    assert found.run == run, "a log is read as it was written"
    write_run(tmp_path / "old", run)
    assert query(tmp_path, "SELECT hardware, platform, nodes FROM runs")[1] == [
        ("NVIDIA A10", "cuda", 2)
    ]
    assert empty_run("demo.1", {"world_size": 2}, "refused", "no GPU").env == type(run.env)(), (
        "what did not run has no hardware"
    )


# --- 10, 11


def test_fault_10_no_rate_contains_warm_up(tmp_path):
    slow = (90.0, 30.0)
    plain, warm = row_as_run("ddp", 2, 8369), row_as_run("ddp", 2, 8369, slow=slow)
    assert run_rates(dump_run(warm))["tokens_per_s"] == run_rates(dump_run(plain))["tokens_per_s"]
    most = row_as_run("ddp", 2, 8369, warmup=8, slow=slow * 4)
    test_near(run_rates(dump_run(most))["tokens_per_s"], 8369)
    many = row_as_run("ddp", 2, 8369, warmup=4, slow=slow * 2)
    undeclared = row_as_run("ddp", 2, 8369, warmup=None, slow=slow)
    assert run_rates(dump_run(undeclared))["tokens_per_s"] is None, "no warm-up declared: no rate"
    write_run(tmp_path / "old", many)
    test_near(
        query(tmp_path, "SELECT tokens_per_s, step_time_ci_high FROM runs")[1][0],
        (8369, 16384 / 8369),
    )
    test_near(query(tmp_path, "SELECT tokens_per_s, measured_steps FROM groups")[1][0], (8369, 8))
    assert query(tmp_path, "SELECT count(*) FROM steps WHERE is_warmup AND time_s > 20")[1] == [
        (4,)
    ]


@pytest.mark.parametrize(
    "device",
    ["NVIDIA A10G", "NVIDIA A1000", "NVIDIA A10-24Q", "NVIDIA H100 NVL", "Some Accelerator", None],
)
def test_fault_11_an_unknown_card_has_no_peak(tmp_path, device):
    assert peak_tflops(device, "bfloat16") is None
    write_run(tmp_path / "old", row_as_run("ddp", 2, 8369, device=device))
    assert query(tmp_path, "SELECT mfu_pct, hfu_pct, usd_per_1m_tokens FROM runs")[1] == [
        (None, None, None)
    ]
    known = run_rates(dump_run(row_as_run("ddp", 2, 8369)))
    test_near(known["mfu_pct"], 100 * known["tflops_per_gpu"] / 125)


# --- 12, 13

PER_CORE = re.compile(r"per_(\w+_)?cores?\b|cores?_throughput", re.IGNORECASE)


def test_fault_12_no_throughput_per_core_anywhere(tmp_path):
    store = open_store(tmp_path)
    views = [
        v
        for (v,) in store.execute(
            "SELECT DISTINCT table_name FROM duckdb_columns() WHERE NOT internal"
        ).fetchall()
    ]
    assert {"runs", "steps", "groups"} <= set(views)
    columns = store.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal"
    ).fetchall()
    fields = re.findall(r'"([a-z_0-9]+)":', json.dumps(json_schema()))
    wrong = [name for name in [*(c for _, c in columns), *fields] if PER_CORE.search(name)]
    assert not wrong and len(fields) > 80, wrong
    assert {"tokens_per_s", "tokens_per_s_per_gpu"} <= {c for v, c in columns if v == "runs"}


@pytest.mark.parametrize("name", PRESETS)
def test_fault_13_a_model_has_the_size_that_is_stated(name):
    shape = PRESETS[name]
    with torch.device("meta"):
        built = sum(p.numel() for p in Decoder(shape).parameters())
    assert parameter_count(shape) == built, "counted from the shape, and built"
    rounded = (
        0.09 if name in ("llama-30b", "qwen2.5-7b") else 0.02
    )  # their publishers' names for 32.5 and 7.6 billion
    assert size_agrees(name, built, rel=rounded) in (True, None), f"{name} has {built:,} parameters"
    assert size_agrees("gpt-117m", 125_226_240) is False, "the ancestor's name for this shape"


def test_fault_13_the_count_is_in_the_run_file(two_ranks):
    run, _ = two_ranks
    assert (
        run.spec.model.parameters
        == sum(p.numel() for p in build_model(PRESETS["gpt-tiny"], 0).parameters())
        == 4_339_200
    )
