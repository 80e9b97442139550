"""A benchmark that does not train is not a benchmark: every strategy follows the single process,
step by step.
"""

import pytest
from same_training import TOLERANCE, follows

from llmbench.analysis.parity import loss_parity, run_verdict
from llmbench.core.errors import RequestError
from llmbench.core.numbers import test_near
from llmbench.core.schema import dump_run
from llmbench.launch.command import refusal
from llmbench.launch.local import run_local
from llmbench.spec.request import spec_hash
from llmbench.spec.resolve import resolve_run

STEPS = 20
REQUEST = {
    "study": "parity",
    "seq_len": 32,
    "batch": {"micro": 2, "global_tokens": 256},
    "steps": STEPS,
    "warmup_steps": 2,
    "optimizer": {"lr": 1.0e-3, "weight_decay": 0.01, "lr_warmup_steps": 5},
    "data": {"kind": "text"},
    "collective_steps": 0,
}
SHARDED = ("ddp", "fsdp", "zero1", "zero2", "zero3")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs by strategy, model and precision, each trained once."""
    done = {}

    def run(strategy, model, precision, **settings):
        key = (strategy, model, precision, *settings)
        if key not in done:
            world_size = 1 if strategy == "single" else 2
            given = (
                REQUEST
                | dict(strategy=strategy, world_size=world_size, model=model, precision=precision)
                | settings
            )
            spec = resolve_run(given)
            done[key] = run_local(spec, tmp_path_factory.mktemp("-".join(key)))
            assert done[key].status == "ok", done[key].reason
        return done[key]

    return run


def _cases():
    """Every strategy in float32; the rest takes minutes more."""
    for strategy in SHARDED:
        yield strategy, "gpt-tiny", "fp32"
        yield pytest.param(strategy, "llama-tiny", "bf16", marks=pytest.mark.slow)
        yield pytest.param(strategy, "llama-tiny", "fp32", marks=pytest.mark.slow)
        yield pytest.param(strategy, "qwen-tiny", "fp32", marks=pytest.mark.slow)
        yield pytest.param(strategy, "mixtral-tiny", "fp32", marks=pytest.mark.slow)
    for strategy, precision in (("ep", "fp32"), ("ep", "bf16"), ("pp", "fp32")):
        yield pytest.param(strategy, "mixtral-tiny", precision, marks=pytest.mark.slow)


@pytest.mark.parametrize(("strategy", "model", "precision"), list(_cases()))
def test_two_ranks_follow_the_single_process(trained, strategy, model, precision):
    reference, run = trained("single", model, precision), trained(strategy, model, precision)
    assert run.spec.data.fingerprint == reference.spec.data.fingerprint, "they saw other tokens"
    assert len(run.steps.loss) == len(reference.steps.loss) == STEPS
    worst = follows(run, reference, model, precision)
    assert run.steps.loss[-1] < 0.75 * run.steps.loss[0], "it does not learn"
    assert run.steps.tokens == reference.steps.tokens == [256] * STEPS
    assert loss_parity(dump_run(run), dump_run(reference)) == pytest.approx(worst), (
        "the site would show another figure"
    )


@pytest.mark.slow
@pytest.mark.parametrize("strategy", SHARDED)
def test_recompute_and_a_fused_optimizer_train_the_same(trained, strategy):
    reference = trained("single", "gpt-tiny", "fp32")
    run = trained(
        strategy,
        "gpt-tiny",
        "fp32",
        recompute="full",
        optimizer=REQUEST["optimizer"] | {"fused": True},
    )
    test_near(run.steps.loss, reference.steps.loss, rel=TOLERANCE["fp32"])


@pytest.mark.slow  # in the quick set the notebooks of the strategies do it
@pytest.mark.parametrize("strategy", SHARDED)
def test_world_size_1_works_for_every_strategy(trained, tmp_path, strategy):
    reference = trained("single", "gpt-tiny", "fp32")
    run = run_local(
        resolve_run(REQUEST | dict(strategy=strategy, world_size=1, model="gpt-tiny")), tmp_path
    )
    assert run.status == "ok", run.reason
    test_near(run.steps.loss, reference.steps.loss, rel=1e-5)


PLANTED = """
import os
from llmbench.train.strategies import ddp
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

def planted(wrapped, spec):
    "Gradients times a factor after their mean was taken; times the ranks it is their sum."
    factor = float(os.environ["PLANTED_FACTOR"])
    wrapped.register_comm_hook(None, lambda state, bucket: allreduce_hook(state, bucket).then(lambda done: done.value().mul_(factor)))

ddp.compress = planted
"""


@pytest.mark.slow
@pytest.mark.parametrize("factor", [2, 1000])
def test_gradients_of_another_size_are_not_the_same_training(trained, tmp_path, factor):
    """Adam and clipping hide them from the loss: summed instead of averaged, or times 1,000, under
    real ranks.
    """
    (tmp_path / "planted").mkdir()
    (tmp_path / "planted/sitecustomize.py").write_text(PLANTED)
    settings = {"optimizer": REQUEST["optimizer"] | {"clip_norm": 1.0e-2}}
    reference = trained("single", "gpt-tiny", "fp32", **settings)
    spec = resolve_run(
        REQUEST | dict(strategy="ddp", world_size=2, model="gpt-tiny", precision="fp32") | settings
    )
    run = run_local(
        spec,
        tmp_path / "run",
        env={"PYTHONPATH": str(tmp_path / "planted"), "PLANTED_FACTOR": str(factor)},
    )
    assert run.status == "ok", run.reason
    assert loss_parity(dump_run(run), dump_run(reference)) < 1e-5, (
        "the losses alone say that all is well"
    )
    said = run_verdict(dump_run(run), dump_run(reference))
    assert said.verdict == "no" and any(
        "the gradient norms are" in problem for problem in said.problems
    ), str(said)
    sound = run_verdict(
        dump_run(trained("ddp", "gpt-tiny", "fp32", **settings)), dump_run(reference)
    )
    assert not sound.problems and not [d for d in sound.differences if "matmul" not in d.name], str(
        sound
    )


BLOCK = 12 * 256 * 256  # parameters of one block's products in gpt-tiny


@pytest.mark.parametrize(
    "strategy",
    [
        {
            "name": "zero3",
            "overlap_comm": True,
            "reduce_bucket": BLOCK,
            "max_live_parameters": 2 * BLOCK,
        },
        pytest.param(
            {"name": "zero1", "overlap_comm": True, "reduce_bucket": BLOCK}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"name": "zero2", "overlap_comm": True, "reduce_bucket": BLOCK}, marks=pytest.mark.slow
        ),
        pytest.param(
            {"name": "zero2", "offload": "optimizer", "offload_adam": "deepspeed"},
            marks=pytest.mark.slow,
        ),
    ],
    ids=lambda s: "-".join([s["name"], *list(s)[-1:]]),
)
def test_deepspeed_with_settings_follows_the_single_process(trained, strategy, tmp_path):
    """As it is tuned in the default study; an update by DeepSpeedCPUAdam is built first, which
    takes minutes.
    """
    reference = trained("single", "gpt-tiny", "fp32")
    given = REQUEST | {
        "strategy": strategy,
        "world_size": 2,
        "model": "gpt-tiny",
        "precision": "fp32",
        "timeouts": {"run_s": 900, "collective_s": 600},
    }
    run = run_local(resolve_run(given), tmp_path / "run")
    assert run.status == "ok", run.reason
    test_near(run.steps.loss, reference.steps.loss, rel=TOLERANCE["fp32"])
    test_near(run.steps.grad_norm, reference.steps.grad_norm, rel=1e-3)
    kept = run.spec.strategy.model_dump()
    assert {k: kept[k] for k in strategy} == strategy, "the run file has its settings"


def test_settings_of_deepspeed_are_part_of_the_request():
    def asked(**strategy):
        return resolve_run(REQUEST | {"strategy": strategy, "world_size": 2, "model": "gpt-tiny"})

    plain = spec_hash(asked(name="zero3"))
    assert spec_hash(asked(name="zero3", max_live_parameters=None)) == plain, (
        "left out or null: as it comes, and the hash that published runs have"
    )
    for setting in (
        {"overlap_comm": False},
        {"reduce_bucket": BLOCK},
        {"max_live_parameters": BLOCK},
    ):
        assert spec_hash(asked(name="zero3", **setting)) != plain
        with pytest.raises(RequestError, match=f"{next(iter(setting))}.*is a setting of"):
            asked(name="fsdp", **setting)
    with pytest.raises(
        RequestError, match="offload_adam deepspeed is a setting of zero2 and zero3"
    ):
        asked(name="zero2", offload_adam="deepspeed")


def test_an_update_by_deepspeed_without_a_compiler_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    given = {
        "strategy": {"name": "zero2", "offload": "optimizer", "offload_adam": "deepspeed"},
        "world_size": 2,
        "model": "gpt-tiny",
    }
    assert "install g++, or type -o strategy.offload_adam=torch" in refusal(
        resolve_run(REQUEST | given), torch="2.13.0+cpu", deepspeed="0.19.8"
    )
