"""How near the losses of two ways to train the same must be."""

from llmbench.core.numbers import test_near as near

# float32 is shared work in another order; bfloat16 rounds to three digits, and other roundings
# follow from another order
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}
# A router chooses: one last bit of the first weights sends a token to another expert, and the
# single process then differs from itself by 8e-6 at step 12 and by 4e-4 at step 19 (six
# perturbations; a dense model by 5e-7).
STEPS_OF_ONE_ROUTE, TOLERANCE_OF_ROUTES = 8, 1e-3


def follows(run, reference, model: str, precision: str) -> float:
    """Assert that `run` trains as `reference` does; the worst relative difference of their
    losses.
    """
    routed = model.startswith("mixtral")
    steps = STEPS_OF_ONE_ROUTE if routed else len(reference.steps.loss)
    tolerance = TOLERANCE[precision]
    near(run.steps.loss[:steps], reference.steps.loss[:steps], rel=tolerance)
    if precision == "fp32":
        near(run.steps.grad_norm[:steps], reference.steps.grad_norm[:steps], rel=1e-3)
    widest = max(tolerance, TOLERANCE_OF_ROUTES) if routed else tolerance
    return near(run.steps.loss, reference.steps.loss, rel=widest)
