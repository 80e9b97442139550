"""Each of the thirteen faults, put back by a change of a line or two: its test in
test_thirteen_faults.py must fail.

putback.py puts it into a copy of the package. What a copy without any replacement does is tested
too, so a failure is the fault's and not the copy's.
"""

import pytest
from putback import MARK, Fault, check_put_back, copied_package, run_tests

TESTS = "test_thirteen_faults.py"

# fault: name of the mutation, file below llmbench/, what stands there once, what is put in its
# place, what the test then says
MUTATIONS = {
    "01 a host clock for the GPU": (
        "train/measure.py",
        'return DeviceClock() if device.type == "cuda" else CpuClock()',
        "return CpuClock()",
        "timed by events in its own stream",
    ),
    "01 events without a wait": (
        "train/measure.py",
        "        mark[1].synchronize()\n",
        "",
        "device not ready",
    ),
    "01 the update after the clock": (
        "train/loop.py",
        "        norm = self.strategy.optimizer_step(lr)\n        self._end(optimizer, mark)\n",
        "        self._end(optimizer, mark)\n        norm = self.strategy.optimizer_step(lr)\n",
        "the step's time is not what the device needed",
    ),
    "02 an update in every micro step": (
        "train/strategies/base.py",
        "            self.scaled(loss / of).backward()\n",
        (
            "            self.scaled(loss / of).backward()\n            self.optimizer_step(1e-3)"
            " if index < of - 1 else None\n"
        ),
        "single updates before all 4 micro steps are done",
    ),
    "02 an engine that updates in every micro step": (
        "train/strategies/zero.py",
        '"gradient_accumulation_steps": spec.batch.accum,',
        (
            '"gradient_accumulation_steps": 1, "train_batch_size": spec.batch.micro *'
            " spec.strategy.dp,"
        ),
        "zero1 updates before all 4 micro steps are done",
    ),
    "03 a scaler in some strategies": (
        "train/strategies/base.py",
        "            self.scaled(loss / of).backward()\n",
        (
            '            self.scaler = torch.amp.GradScaler("cpu")\n           '
            " self.scaler.scale(loss / of).backward()\n"
        ),
        "no loss is scaled",
    ),
    "03 bfloat16 master weights under DDP": (
        "train/strategies/ddp.py",
        "prepare_model(model, spec, ranks).to(ranks.device), device_ids",
        "prepare_model(model, spec, ranks).to(ranks.device).bfloat16(), device_ids",
        "master parameters, gradients and moments",
    ),
    "04 every rank takes the first share": (
        "model/data.py",
        "(m * dp + dp_rank) * micro",
        "(m * dp) * micro",
        "every global batch, once",
    ),
    "04 every rank believes to be the first": (
        "train/loop.py",
        "self.source, self.place, self.ranks.device",
        "self.source, mesh.place_of(0, self.spec.strategy), self.ranks.device",
        "every global batch, once",
    ),
    "05 no causal mask": (
        "model/attention.py",
        '{"is_causal": True}',
        '{"is_causal": False}',
        "a later token reached an earlier position",
    ),
    "05 targets not shifted": (
        "model/decoder.py",
        "sequences[:, 1:])",
        "sequences[:, :-1])",
        "differ by",
    ),
    "06 a rate where nothing is copied": (
        "train/measure.py",
        'if device.type != "cuda":\n        return None, None\n',
        'if device.type != "cuda":\n        return 4 * 2048 / 0.489 / 1e9, None\n',
        "a CPU copies nothing",
    ),
    "06 a rate from the batch": (
        "analysis/rates.py",
        '{k: run["transfer"][k] for k in',
        '{k: 4 * run["spec"]["seq_len"] / 1e9 for k in',
        "1.28e-07 is None",
    ),
    "07 a baseline that is one GPU": (
        "analysis/scaling.py",
        "100 * ratio * base_world_size / world_size",
        "100 * ratio / world_size",
        "50.0 and 100.0 differ",
    ),
    "08 seconds against hours": (
        "plan/goodput/per_token.py",
        "* gpus / 3600 / tokens_per_s",
        "* gpus / tokens_per_s",
        "330.6",
    ),
    "09 the reader's processor": (
        "core/records.py",
        'env = dict(ranks[0][0].get("env") or {})',
        (
            'env = {"cpu": __import__("llmbench.core.hardware").core.hardware.cpu_record().model_dump()}'
            ' | dict(ranks[0][0].get("env") or {})'
        ),
        "assert {",
    ),
    "09 the reader's packages": (
        "core/records.py",
        'env = dict(ranks[0][0].get("env") or {})',
        (
            'env = dict(ranks[0][0].get("env") or {}) | {"lock_hash":'
            ' __import__("llmbench.core.hardware").core.hardware.lock_hash()}'
        ),
        "the reader filled in what no rank said",
    ),
    "10 warm-up in the rates": (
        "analysis/window.py",
        '(run["steps"][column] or [])[warmup:]',
        '(run["steps"][column] or [])',
        "== 8368.99",
    ),
    "11 the peak of a card with a similar name": (
        "core/accelerators.py",
        "re.fullmatch(a.pattern,",
        "re.match(a.pattern,",
        "assert 125 is None",
    ),
    "12 a column per core": (
        "analysis/rates.py",
        '"tokens_per_s_per_gpu tflops_per_gpu ',
        '"tokens_per_s_per_gpu throughput_per_gpu_core tflops_per_gpu ',
        "throughput_per_gpu_core",
    ),
    "13 a count without all positions": (
        "plan/flops.py",
        "shape.max_seq_len * d if",
        "512 * d if",
        "counted from the shape, and built",
    ),
    "13 a shape with a layer less": (
        "spec/presets.py",
        '"gpt2", 12, 768',
        '"gpt2", 11, 768',
        "gpt-124m has 118,138,368",
    ),
}


def fault_of(name):
    file, old, new, says = MUTATIONS[name]
    return Fault(file, old, new, TESTS, says)


@pytest.mark.slow
def test_a_faithful_copy_passes(tmp_path):
    package = copied_package(tmp_path)
    (package / "train/measure.py").write_text((package / "train/measure.py").read_text() + MARK)
    done = run_tests(tmp_path, TESTS)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (package / "train/measure.imported").exists(), "the tests ran with another package"


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_the_fault_put_back_is_noticed(tmp_path, name):
    check_put_back(tmp_path, name, fault_of(name), "-k", f"test_fault_{name[:2]}_")


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_line_of_a_fault_is_there_once(name):
    assert fault_of(name).times() == 1, f"the source changed: update the mutation '{name}'"


def test_every_fault_is_put_back():
    assert {name[:2] for name in MUTATIONS} == {f"{n:02}" for n in range(1, 14)}
