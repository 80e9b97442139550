"""The eight-run suite on CPU ranks: the matrix of params/studies/oci-a10.yaml, with a model that
two cores can train.
"""

import json

import pytest
from notebooks import ROOT
from token_files import project_with

from llmbench.core.numbers import test_near
from llmbench.core.records import read_run, result_files
from llmbench.launch.sweep.fitting import limit_for, predicted_bytes
from llmbench.launch.sweep.sweep import directly, sweep
from llmbench.spec.params import read_yaml
from llmbench.spec.study import load_study

STUDIES = ROOT / "params/studies"


def _shape(path):
    return sorted(
        (r.strategy.name, r.world_size, r.batch.micro, r.batch.accum) for r in load_study(path).runs
    )


def test_the_twin_has_the_matrix_of_the_suite():
    assert _shape(STUDIES / "cpu-oci-twin.yaml") == _shape(STUDIES / "oci-a10.yaml")
    suite = load_study(STUDIES / "oci-a10.yaml").runs
    assert len(suite) == 8 and load_study(STUDIES / "oci-a10.yaml").repeats == 3
    for run in suite:
        assert (run.model.name, run.seq_len, run.precision.compute) == (
            "gpt-124m",
            2048,
            "bfloat16",
        )
        assert (run.steps, run.warmup_steps, run.seed, run.optimizer.lr_warmup_steps) == (
            100,
            10,
            42,
            5,
        )
        assert (run.optimizer.lr, run.optimizer.weight_decay, run.optimizer.clip_norm) == (
            1e-4,
            0.01,
            1.0,
        )
        assert run.batch.global_tokens == 4 * run.world_size * 2048


def test_published_studies_have_the_title_and_question_of_their_parameter_file(
    tmp_path, monkeypatch
):
    matrix = read_yaml(STUDIES / "cpu-loader.yaml")["matrix"]
    monkeypatch.chdir(project_with(tmp_path, [p for row in matrix for p in row["data"]["paths"]]))
    for file in ROOT.glob("reports/*/*/study.json"):
        kept, study = json.loads(file.read_text()), load_study(STUDIES / f"{file.parent.name}.yaml")
        assert (kept["title"], kept["question"]) == (study.title, study.question), file


@pytest.mark.parametrize("card", ["a100", "h100", "h200", "b200", "mi300x"])
def test_a_sibling_has_the_optimizer_steps_of_the_suite_and_fits_interleaved(card):
    """The same steps as on an A10; and the eight runs, with a driver's 0.6 GiB each, leave a tenth
    of the card free.
    """
    study, suite = (load_study(STUDIES / f"oci-{name}.yaml") for name in (card, "a10"))
    assert study.interleaved and study.repeats == 3 and not suite.interleaved
    alike = {
        "model",
        "strategy",
        "world_size",
        "seq_len",
        "precision",
        "optimizer",
        "data",
        "steps",
    }
    for run, other in zip(study.runs, suite.runs, strict=True):
        assert run.model_dump(include=alike) == other.model_dump(include=alike)
        assert run.batch.global_tokens == other.batch.global_tokens and run.hardware == card
    together = sum(predicted_bytes(run) / 2**30 + 0.6 for run in study.runs)
    assert together < 0.9 * limit_for(study.runs[0]), together


@pytest.mark.slow
def test_the_suite_trains_on_cpu_ranks(tmp_path):
    outcome = sweep(
        load_study(STUDIES / "cpu-oci-twin.yaml").model_copy(update={"repeats": 1}),
        results=tmp_path,
        progress=False,
        run_one=directly,
    )
    assert outcome.exit_code == 0, outcome.table()
    runs = [read_run(f) for f in result_files(tmp_path)]
    assert len(runs) == 8
    for world_size in (2, 4):
        same = [r for r in runs if r.spec.world_size == world_size]
        assert len(same) == 4 and len({r.spec.data.fingerprint for r in same}) == 1
        for run in same:
            test_near(run.steps.loss, same[0].steps.loss, rel=2e-2)
