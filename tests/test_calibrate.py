"""The promises of a comparison: few false alarms on equal runs, a planted slowdown found when
enough was measured.
"""

import contextlib
import io

import numpy as np
import pytest

from llmbench.analysis.stats import repeats_needed
from llmbench.analysis.steps import typical, undisturbed
from llmbench.compare.calibrate import main
from llmbench.compare.noise import Noise, read_noise, tried
from llmbench.core.errors import RequestError


def recorded(between, within, bursts=0.0, runs=40, steps=12):
    """Runs as a shared machine makes them: two levels of noise, and other programs that
    slow down some steps in a row.
    """
    random = np.random.default_rng(7)
    times = np.exp(random.normal(-1, between, (runs, 1)) + random.normal(0, within, (runs, steps)))
    for row in times:
        if random.random() < bursts:
            start = random.integers(steps)
            row[start : start + random.integers(1, 8)] *= random.uniform(1.05, 1.3)
    return times


NOISES = {
    "calm": recorded(0.005, 0.01),
    "uneven runs": recorded(0.03, 0.01),
    "uneven steps": recorded(0.005, 0.05),
    "other programs": recorded(0.005, 0.01, bursts=0.7),
}


@pytest.mark.parametrize("name", NOISES)
@pytest.mark.parametrize("repeats", [2, 3, 5, 8])
def test_equal_runs_are_rarely_called_different(name, repeats):
    """200 comparisons; were one in twenty a false alarm, more than 19 would happen in one of a
    hundred such tests.
    """
    trial = tried(Noise(name, NOISES[name], undisturbed), repeats, 12)
    assert trial.alarms <= 19, trial


def test_false_alarms_over_all_noises_are_at_most_one_in_twenty():
    trials = [
        tried(Noise(n, times, at), k, 12)
        for n, times in NOISES.items()
        for k in (3, 5)
        for at in (typical, undisturbed)
    ]
    assert sum(t.alarms for t in trials) <= 0.05 * sum(t.studies for t in trials)


def test_a_planted_slowdown_is_found_where_the_repeats_suffice():
    for name, repeats in (("calm", 5), ("other programs", 8)):
        trial = tried(Noise(name, NOISES[name], undisturbed), repeats, 12)
        assert trial.found >= 95 and trial.wrong == 0, trial


def test_the_needed_repeats_do_find_it():
    noise = Noise("uneven runs", NOISES["uneven runs"], undisturbed)
    enough = repeats_needed(noise.spread(), 0.03, power=0.95)
    assert enough > 15 and tried(noise, enough, 12).found >= 90 and tried(noise, 3, 12).found < 40


def test_the_undisturbed_steps_see_what_the_median_misses():
    found = {
        at: tried(Noise("other programs", NOISES["other programs"], at), 3, 12).found
        for at in (typical, undisturbed)
    }
    assert found[undisturbed] > 1.5 * found[typical]


def test_draws_are_the_same_each_time():
    noise = Noise("calm", NOISES["calm"], undisturbed)
    assert tried(noise, 3, 12) == tried(noise, 3, 12) != tried(noise, 3, 12, seed=1)


def test_the_command_needs_runs(tmp_path):
    with pytest.raises(RequestError, match="no request with two finished repeats"):
        read_noise(tmp_path)
    with contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(["--results", str(tmp_path)]) == 2
    assert err.getvalue().count("\n") == 1


@pytest.mark.slow
def test_a_real_pair_is_trained_and_compared(tmp_path):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main(["--real", "1", "--repeats", "2", "--keep", str(tmp_path)]) == 0
    assert len(list(tmp_path.rglob("run.json"))) == 4 and out.getvalue().splitlines()[
        -1
    ].startswith("1 pairs: ")
