"""Speed is decided by time spent: what is planted into recorded pairs of equal runs is claimed
by its sign, or not at all.
"""

import statistics
from pathlib import Path

import numpy as np
import pytest

from llmbench.analysis.stats import difference_shown, turns_interval
from llmbench.analysis.steps import calm_half
from llmbench.compare.noise import RecordedPairs, read_pairs, tried_interleaved, tried_until
from llmbench.compare.winner import Contender, decide_speed, speed_sentence

ROOT = Path(__file__).resolve().parents[1]
ROTATIONS = read_pairs(ROOT / "reports" / "recorded" / "cpu-equals")
HOURS = {
    f.name: read_pairs(f)
    for f in sorted((ROOT / "reports" / "recorded" / "cpu-equals-hours").glob("*Z"))
}
STUDIES, REPEATS = 100, 5


def hiccups(share, longer=3.0, others=1.0):
    "So many of a run's steps take `longer` times as long; the others are quicker."

    def plant(times, random):
        hit = random.permuted(
            np.tile(
                np.arange(times.shape[-1]) < round(share * times.shape[-1]), (*times.shape[:-1], 1)
            ),
            axis=-1,
        )
        return times * np.where(hit, longer, others)

    return plant


def noise(spread):
    "Each step longer or shorter at random, with the same time spent."

    def plant(times, random):
        factors = np.exp(random.normal(0, spread, times.shape))
        return (
            times
            * factors
            / (times * factors).mean(axis=-1, keepdims=True)
            * times.mean(axis=-1, keepdims=True)
        )

    return plant


def drift(to):
    "Steps that get slower by and by, or quicker."
    return lambda times, random: times * np.linspace(1, to, times.shape[-1])


CASES = {
    **{
        f"hiccups in {share:.0%} of the steps": hiccups(share)
        for share in (1 / 16, 0.125, 0.25, 0.4)
    },
    **{
        f"hiccups in {share:.0%}, the others 5 % quicker": hiccups(share, others=0.95)
        for share in (1 / 16, 0.125, 0.25, 0.4)
    },
    "short hiccups in 40 %, the others 10 % quicker": hiccups(0.4, 1.3, 0.9),
    "noise of 15 %": noise(0.15),
    "drift to 1.2": drift(1.2),
    "drift to 0.8": drift(0.8),
}


def studies(plant, seed):
    """Drawn studies of five rotations, the planted side first; with the true share of time that was
    planted.
    """
    random = np.random.default_rng(seed)
    for _ in range(STUDIES):
        times = ROTATIONS.times[random.permutation(len(ROTATIONS.times))[:REPEATS]]
        times = times[:, ::-1] if random.random() < 0.5 else times
        planted = plant(times[:, 0], random)
        yield planted, times[:, 1], planted.sum() / times[:, 0].sum() - 1


def claimed(planted, other):
    "1: the planted side is claimed to be slower; -1: faster; 0: nothing is claimed."
    names = tuple(f"r{k}" for k in range(REPEATS))
    pair = [
        Contender(n, n, 2, 1024, t.tolist(), [], platform="cpu", turns=names)
        for n, t in (("planted", planted), ("other", other))
    ]
    decision = decide_speed(pair, comparable=True)
    return (1 if decision.order[0].name == "other" else -1) if decision.claimed else 0, decision


@pytest.mark.parametrize("name", CASES)
def test_a_claim_has_the_sign_of_the_time_spent_or_there_is_none(name):
    found = [
        (claimed(planted, other)[0], share) for planted, other, share in studies(CASES[name], 7)
    ]
    right = sum(
        claim == 0 or (abs(share) > 1e-6 and claim == np.sign(share)) for claim, share in found
    )
    assert right >= 98, f"{name}: {right} of {STUDIES}"


def test_the_faster_half_alone_would_have_named_the_wrong_one():
    "What decided before: by it the side that spends more time wins, and noise is a win."
    for plant in (hiccups(0.125, others=0.95), noise(0.15)):
        wins = [
            turns_interval(list(zip(p.tolist(), o.tolist(), strict=True)), calm_half)
            for p, o, _ in studies(plant, 7)
        ]
        assert sum(i.excludes(1.0) and i.estimate < 1 for i in wins) > 50


def test_long_steps_of_one_side_are_claimed_and_counted():
    for planted, other, share in list(studies(hiccups(0.125), 3))[:10]:
        claim, decision = claimed(planted, other)
        assert 0.2 < share < 0.3 and claim == 1
        assert "planted: 10 of 80 steps took" in speed_sentence(decision, "gpt-tiny")


def test_more_time_with_quicker_other_steps_never_wins_and_is_explained():
    for planted, other, share in list(studies(hiccups(0.125, others=0.95), 3))[:10]:
        claim, decision = claimed(planted, other)
        assert (
            share > 0.15
            and claim >= 0
            and "planted: 10 of 80 steps took" in speed_sentence(decision, "gpt-tiny")
        )


def test_five_repeats_in_turns_find_three_percent_and_rarely_call_equals_different():
    trial = tried_interleaved(ROTATIONS, REPEATS, studies=1000, planted=1000)
    assert trial.found_pct >= 95 and trial.alarms_pct <= 5 and trial.wrong == 0, trial


def test_recordings_over_hours_keep_the_promise():
    """Six recordings and more, each from its own stretch of a day, on machines that others kept
    busy: equals are rarely called different.
    """
    assert len(HOURS) >= 7
    trials = [tried_interleaved(r, REPEATS, studies=400, planted=100) for r in HOURS.values()]
    assert sum(t.alarms for t in trials) <= 0.05 * sum(t.studies for t in trials), trials
    whole = [turns_interval([(a, b) for a, b in r.times.tolist()], r.at) for r in HOURS.values()]
    assert sum(i.excludes(1.0) for i in whole) <= 1, (
        "all rotations of a recording against each other, sides as they were"
    )


def test_a_busy_hour_says_what_it_can_show_and_shows_it():
    """Five repeats miss 3 % in such hours. The difference that they are said to show is found in 95
    of 100 studies.
    """
    trials = {}
    for name, r in HOURS.items():
        said = difference_shown(r.spread(), REPEATS, interleaved=True)
        assert said > 0.05, f"{name} shows {said:.1%}: it is not busy"
        trials[name] = tried_interleaved(r, REPEATS, studies=1, planted=400, slowdown=said)
    assert all(t.found_pct >= 90 and t.wrong == 0 for t in trials.values()), trials
    assert statistics.mean(t.found_pct for t in trials.values()) >= 95, trials


def test_as_many_repeats_as_the_noise_asks_for_find_three_percent_over_hours():
    """What `llmbench sweep --detect 3` does, with repeats from all hours: it goes on until the
    noise of the steps allows it. 3 % is found, and no more equals are called different.
    """
    hours = np.concatenate([r.times for r in HOURS.values()])
    calm = ROTATIONS.times[:20]
    for times in (hours, np.concatenate([calm, hours])):
        recorded = RecordedPairs(times, ROTATIONS.at)
        until, repeats = tried_until(recorded, REPEATS, len(times), studies=400)
        fixed = tried_interleaved(recorded, REPEATS, studies=1, planted=400)
        assert fixed.found_pct < 60 and max(repeats) < len(times), "more than five are needed"
        assert until.found_pct >= 95 and until.alarms_pct <= 5 and until.wrong == 0, until
