"""Every way to split a model, and their products, follow the single process step by step."""

import pytest
from same_training import follows

from llmbench.launch.local import run_local
from llmbench.spec.resolve import resolve_run

pytestmark = pytest.mark.slow  # the notebook strategies/tensor trains two ranks in the quick set

STEPS = 20
REQUEST = {
    "study": "products",
    "seq_len": 32,
    "steps": STEPS,
    "warmup_steps": 2,
    "data": {"kind": "text"},
    "collective_steps": 0,
    "optimizer": {"lr": 1.0e-3, "weight_decay": 0.01, "lr_warmup_steps": 5},
}
TOKENS = 256

TWO = {
    "tp2": dict(name="tp", tp=2),
    "pp2": dict(name="pp", pp=2),
    "cp2": dict(name="cp", cp=2),
    "pp2-gpipe": dict(name="pp", pp=2, schedule="gpipe"),
    "pp2-interleaved": dict(name="pp", pp=2, schedule="interleaved", stages_per_rank=2),
    "pp2-uneven": dict(name="pp", pp=2, layers_per_stage=[3, 1]),
    "fsdp1-cp2": dict(name="fsdp", cp=2),
}
FOUR = {
    "tp2-dp2": dict(name="tp", tp=2),
    "pp2-dp2": dict(name="pp", pp=2),
    "tp2-pp2": dict(name="mixed", tp=2, pp=2),
    "cp2-dp2": dict(name="cp", cp=2),
    "cp2-tp2": dict(name="mixed", cp=2, tp=2),
    "cp2-pp2": dict(name="mixed", cp=2, pp=2),
    "fsdp2-tp2": dict(name="fsdp", tp=2),
    "fsdp2-cp2": dict(name="fsdp", cp=2),
    "hsdp2x2": dict(name="hsdp", dp_replicate=2),
    "tp4-shared-heads": dict(name="tp", tp=4),
    "cp4": dict(name="cp", cp=4),
    "pp4": dict(name="pp", pp=4),
    "fsdp2-pp2": dict(name="fsdp", pp=2),
    "fsdp2-pp2-interleaved": dict(name="fsdp", pp=2, schedule="interleaved", stages_per_rank=2),
    "tp2-pp2-interleaved": dict(
        name="mixed", tp=2, pp=2, schedule="interleaved", stages_per_rank=2
    ),
    "fsdp1-cp4": dict(name="fsdp", cp=4),
    "fsdp1-cp2-tp2": dict(name="fsdp", cp=2, tp=2),
    "fsdp1-cp2-pp2": dict(name="fsdp", cp=2, pp=2),
    "hsdp2x1-cp2": dict(name="hsdp", dp_replicate=2, cp=2),
}
EIGHT = {
    "hsdp2x2-tp2": dict(name="hsdp", dp_replicate=2, tp=2),
    "hsdp2x2-cp2": dict(name="hsdp", dp_replicate=2, cp=2),
    "hsdp2x2-pp2": dict(name="hsdp", dp_replicate=2, pp=2),
    "fsdp2-tp2-pp2": dict(name="fsdp", tp=2, pp=2),
}
TIED = (
    "tp2",
    "pp2",
    "cp2",
    "tp2-pp2",
    "pp2-interleaved",
    "fsdp2-pp2",
    "tp2-pp2-interleaved",
    "fsdp1-cp2",
)  # weights, positions and biases that the other family has not
ROUTED = (
    "cp2",
    "pp2",
    "cp2-dp2",
    "cp2-pp2",
    "fsdp2-cp2",
    "fsdp2-pp2",
    "fsdp1-cp2",
)  # a mixture: its balance is of whole sequences
HALF = ("tp2", "pp2", "cp2", "fsdp2-tp2", "fsdp2-pp2", "fsdp1-cp2")


def _cases():
    for world_size, layout, strategy in [
        (n, *case) for n, cases in ((2, TWO), (4, FOUR), (8, EIGHT)) for case in cases.items()
    ]:
        for model, precision, among in (
            ("llama-tiny", "fp32", None),
            ("gpt-tiny", "fp32", TIED),
            ("llama-tiny", "bf16", HALF),
            ("mixtral-tiny", "fp32", ROUTED),
        ):
            if among is None or layout in among:
                yield pytest.param(
                    world_size, strategy, model, precision, id=f"{layout}-{model}-{precision}"
                )


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The single process by model, precision and micro batch, each trained once."""
    done = {}

    def run(model, precision):
        if (model, precision) not in done:
            given = REQUEST | dict(
                strategy="single",
                world_size=1,
                batch={"micro": 1, "accum": TOKENS // 32},
                model=model,
            )
            folder = tmp_path_factory.mktemp(f"single-{model}-{precision}")
            done[model, precision] = run_local(
                resolve_run(given | dict(precision=precision)), folder
            )
            assert done[model, precision].status == "ok", done[model, precision].reason
        return done[model, precision]

    return run


@pytest.mark.parametrize(("world_size", "strategy", "model", "precision"), list(_cases()))
def test_a_split_model_follows_the_single_process(
    reference, tmp_path, world_size, strategy, model, precision
):
    batch = {"micro": 1, "global_tokens": TOKENS}
    given = REQUEST | dict(
        strategy=strategy, world_size=world_size, batch=batch, model=model, precision=precision
    )
    run, one = run_local(resolve_run(given), tmp_path), reference(model, precision)
    assert run.status == "ok", run.reason
    assert run.steps.tokens == one.steps.tokens == [TOKENS] * STEPS, (
        "tokens that ranks share count once"
    )
    assert run.spec.data.fingerprint == one.spec.data.fingerprint
    assert "data_repeated" not in [event.kind for event in run.events]
    follows(run, one, model, precision)
    assert run.steps.loss[-1] < 0.75 * run.steps.loss[0], "it does not learn"
