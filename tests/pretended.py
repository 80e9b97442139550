"""A study whose runs are not trained but left as run files: shared by the tests of what a sweep
finds in its folder.
"""

import json
from pathlib import Path

from llmbench.core.records import empty_run
from llmbench.core.schema import dump_run
from llmbench.launch.sweep.sheet import run_request
from llmbench.launch.sweep.sweep import sweep
from llmbench.spec.request import run_id, spec_record
from llmbench.spec.study import resolve_study

STUDY = {
    "study": "s",
    "title": "mine",
    "repeats": 1,
    "base": {
        "model": "gpt-tiny",
        "seq_len": 32,
        "batch": {"micro": 1, "global_tokens": 64},
        "steps": 2,
        "warmup_steps": 1,
    },
    "matrix": [{"strategy": "ddp", "world_size": 2}, {"strategy": "single", "world_size": 1}],
}


def trained(spec, attempt=1, status="ok"):
    """A run file as a finished run leaves it."""
    steps = {"step": [0, 1], "time_s": [0.1, 0.1], "tokens": [64, 64], "loss": [8.0, 7.9]}
    return empty_run(
        run_id(spec, attempt),
        spec_record(spec).model_dump(),
        status,
        None,
        study=spec.study,
        attempt=attempt,
        steps=steps,
    )


class Pretended:
    """In place of training: counts who is asked, and leaves a run file."""

    def __init__(self):
        self.asked = []

    def __call__(self, request, *, on_steps=None):
        def runner(spec, out, attempt, on_step, **more):
            (Path(out) / "run.json").write_text(json.dumps(dump_run(trained(spec, attempt))))
            return trained(spec, attempt)

        self.asked.append(request.run_id)
        return run_request(request, runner=runner)


def swept(results, **changes):
    runner = Pretended()
    outcome = sweep(resolve_study(STUDY | changes), results=results, run_one=runner, progress=False)
    return outcome, runner.asked
