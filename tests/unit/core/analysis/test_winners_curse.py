"""What is told of a chosen schedule is what it takes, not the luck by which it was chosen. Simulated: finalists that
are timed under heavy noise.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fractune_core.analysis.match import How, Match, find_match
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.records import VALIDATION_POLICY, TuningRecord
from tests.support.samples import DEVICE, TARGET_KEY, granted, validation

TIMES = 1000
BOUND = 0.006
"""of a bias, relative; three standard errors of the simulation are less"""
EQUAL = {name: {1: 1.0, 2: 1.0} for name in "abcdef"}
SPECIALISTS = {"one": {1: 1.0, 2: 2.0}, "two": {1: 2.0, 2: 1.0}}
GENERALISTS = {name: {1: 1.2, 2: 1.2} for name in "abcdef"}


def timed(rng: random.Random, finalist: TuningRecord, secs: float) -> TuningRecord:
    """Timed as validations are. Each repeat is disturbed, now and then by a multiple of its time."""
    run_secs = tuple(secs * (1.0 + 0.1 * rng.paretovariate(1.5)) for _ in range(VALIDATION_POLICY.repeats))
    return replace(finalist, run_secs=run_secs)


def matches(rng: random.Random, truth: Mapping[str, Mapping[int, float]], units: int, jobs: int = 1) -> list[Match]:
    """What logs of so many jobs, each of which timed all finalists at all shares, answer at a share; `truth` is seconds
    by finalist and units.
    """
    finalists = [(validation(name, at, secs), secs) for name, row in truth.items() for at, secs in row.items()]
    logs = (
        tuple(timed(rng, finalist, secs) for _ in range(jobs) for finalist, secs in finalists) for _ in range(TIMES)
    )
    return [find_match(ValidatedRecords(log), granted(units), DEVICE.key, TARGET_KEY) for log in logs]


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_time_told_of_the_fastest_of_equals_is_what_it_takes(jobs: int) -> None:
    rng = random.Random(0)
    winners = [match.record for match in matches(rng, {name: {1: 1.0} for name in EQUAL}, 1, jobs)]
    again_s = statistics.fmean(timed(rng, winner, 1.0).median_s for winner in winners if winner)
    bias = statistics.fmean(winner.median_s for winner in winners if winner) / again_s - 1.0
    assert abs(bias) <= BOUND
    bias_of_choosing = statistics.fmean(winner.choosing_s for winner in winners if winner) / again_s - 1.0
    assert bias_of_choosing < -3 * BOUND


@pytest.mark.parametrize(("truth", "loss"), [(EQUAL, 0.0), (SPECIALISTS | GENERALISTS, 0.2)])
def test_the_loss_told_of_the_robust_one_is_what_it_loses(
    truth: Mapping[str, Mapping[int, float]], loss: float
) -> None:
    answers = matches(random.Random(0), truth, 8)
    assert {answer.how for answer in answers} == {How.ROBUST}
    assert abs(statistics.fmean(answer.regret for answer in answers) - loss) <= BOUND
