"""What a record holds: its names, its values and what disturbed it."""

import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest

from fractune_core.analysis.slowdown_ci import Slowdown
from fractune_core.fleet.messages import trial_of
from fractune_core.names import digest_of
from fractune_core.records import (
    COLD,
    FIRST_POLICY,
    TRIAL_POLICY,
    VALIDATION_POLICY,
    WARM,
    Disturbance,
    Kind,
    Status,
    TimingPolicy,
    TuningRecord,
    candidate_id,
    record_id,
    total,
    with_cache,
)
from fractune_core.served import is_disturbed, kept_part, timed_quietly
from tests.support.fleet_messages import CONV2D, measure_work
from tests.support.samples import DISTURBANCE, validation


@pytest.mark.parametrize("changes", [{"max_error": None}, {"disturbance": DISTURBANCE, "attempts": 2}])
def test_a_record_survives_json(changes: dict[str, Any]) -> None:
    record = validation("trace", 2, 0.25, **changes)
    assert TuningRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_record_shares_the_keys_of_its_dictionary_with_others() -> None:
    """Python has an own dictionary of five times the size for an object of more than 30 values."""
    record = [validation("trace", 2, 0.25) for _ in range(2)][1]
    assert record.median_s == 0.25
    assert sys.getsizeof(vars(record)) < 500


@pytest.mark.parametrize("policy", [FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY])
def test_a_cold_repeat_is_one_call_so_there_are_more(policy: TimingPolicy) -> None:
    assert with_cache(policy, WARM) is policy
    cold = with_cache(policy, COLD)
    assert (cold.name, cold.cache, cold.min_repeat_ms) == (policy.name, COLD, 0.0)
    assert cold.repeats > policy.repeats
    assert cold.undivided().repeats >= policy.undivided().repeats
    assert bool(cold.choosing) == bool(policy.choosing)


def test_a_failure_has_no_time() -> None:
    failed = validation("trace", 2, 0.25, status=Status.CRASHED, run_secs=())
    assert math.isinf(failed.median_s)
    assert failed.spread == 0.0


def test_median_and_spread() -> None:
    record = validation("trace", 1, 0.0, run_secs=(1.0, 2.0, 4.0), policy=TRIAL_POLICY)
    assert (record.median_s, record.choosing_s) == (2.0, 2.0)
    assert record.spread == pytest.approx(1.5)


def test_what_chose_is_not_reported() -> None:
    policy = TimingPolicy("validation", warmups=1, repeats=6, min_repeat_ms=10.0, choosing=3)
    record = validation("trace", 1, 0.0, run_secs=(0.5, 0.1, 0.2, 1.0, 2.0, 4.0), policy=policy)
    assert (record.choosing_s, record.median_s, record.reported_secs) == (0.2, 2.0, (1.0, 2.0, 4.0))
    assert record.spread == pytest.approx(1.5)
    nothing_left = validation("trace", 1, 0.0, run_secs=(0.5, 0.1, 0.2), policy=policy)
    assert math.isinf(nothing_left.median_s)
    assert policy.undivided() == TimingPolicy("validation", warmups=1, repeats=3, min_repeat_ms=10.0)


def test_the_trial_of_a_candidate_that_is_validated_at_once_has_the_repeats_that_choose() -> None:
    policy = replace(VALIDATION_POLICY, repeats=3, choosing=1)
    validated = replace(validation("trace", 2, 0.25), run_secs=(4.0, 1.0, 2.0), policy=policy)
    work = measure_work(CONV2D)
    trial = trial_of(work, validated)
    assert (trial.kind, trial.reported_secs, trial.policy.repeats) == (Kind.TRIAL, (4.0,), 1)
    assert trial.record_id == record_id(work.round.id, validated.candidate_id, validated.share)
    assert validated.reported_secs == (1.0, 2.0)


@pytest.mark.parametrize("part", ["device", "granted", "policy", "disturbance", "status"])
def test_a_torn_record_is_an_error(part: str) -> None:
    data = validation("trace", 1, 1.0).to_json()
    for torn in ([], "device", 1, ["name"], {"steal_s": 1.0}):
        with pytest.raises(ValueError, match=r"\$\.|missing required field"):
            TuningRecord.from_json({**data, part: torn})
    if part != "disturbance":  # it may be missing
        with pytest.raises(ValueError, match=r"\$\."):
            TuningRecord.from_json({**data, part: None})
        del data[part]
        with pytest.raises(ValueError, match="missing required field"):
            TuningRecord.from_json(data)


def test_a_digest_knows_where_one_value_ends() -> None:
    values = [("a", "b"), ("ab",), ("a", "b", ""), ("", "a", "b"), ("a\nb",), ("a", ("b",)), ("a", ["b", ""]), ()]
    digests = [digest_of(*each) for each in values]
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in digests)
    assert all(one != other for one, other in combinations(digests, 2))
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert len({digest_of(each) for each in (1, "1", 1.5, True, None)}) == 5


@pytest.mark.parametrize("name", [candidate_id, record_id])
def test_no_two_candidates_or_records_share_a_name(name: object) -> None:
    """With parts that only a line break kept apart, these were one."""
    assert callable(name)
    assert name("w", "target\n", "[]") != name("w", "target", "\n[]")
    assert name("w\n", "target", "[]") != name("w", "\ntarget", "[]")


QUIET = Disturbance(
    wall_s=2.0,
    off_core_s=0.0,
    steal_s=0.0,
    others_s=0.0,
    waited_s=0.0,
    preemptions=0,
    throttles=0,
    throttled_s=0.0,
)


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({}, 0.0),
        ({"others_s": 1.0, "preemptions": 9}, 0.0),  # they took nothing of its time
        ({"off_core_s": 0.5}, 0.25),
        ({"steal_s": 0.5}, 0.25),  # a kernel that does not tell stolen time from the thread's own
        ({"waited_s": 0.5, "off_core_s": 0.1}, 0.25),  # another thread than the one that timed
        ({"waited_s": 0.2, "steal_s": 0.2, "off_core_s": 0.3}, 0.2),
        ({"waited_s": 9.0}, 1.0),  # of many threads together
        ({"wall_s": 0.0, "steal_s": 0.01}, 0.0),
    ],
)
def test_the_part_of_the_time_that_was_lost(changes: dict[str, Any], lost: float) -> None:
    assert replace(QUIET, **changes).lost == pytest.approx(lost)


def test_several_timings_together() -> None:
    first = replace(QUIET, steal_s=0.1, preemptions=2, throttles=1, clock_mhz=3000)
    second = replace(QUIET, wall_s=1.0, off_core_s=0.4, preemptions=3, throttled_s=0.2, clock_mhz=2500)
    assert total([first, None, second]) == Disturbance(3.0, 0.4, 0.1, 0.0, 0.0, 5, 1, 0.2, 2500)
    assert total([None]) is None
    assert total([]) is None


def test_it_survives_json_and_what_a_later_version_adds() -> None:
    told = json.loads(json.dumps(replace(QUIET, clock_mhz=2000).to_json()))
    assert Disturbance.from_json({**told, "heat": 1.0}) == replace(QUIET, clock_mhz=2000)


@pytest.mark.parametrize(
    ("others_cores", "cores", "kept"), [(0.0, 1, 1.0), (0.2, 1, 1.0), (0.25, 1, 0.75), (0.8, 2, 0.6), (2.1, 2, 0.01)]
)
def test_a_model_kept_what_others_left_of_its_cores(others_cores: float, cores: int, kept: float) -> None:
    assert is_disturbed(others_cores) is (kept < 1)
    assert kept_part(others_cores, cores) == pytest.approx(kept)


def test_an_interval_reaches_down_to_what_the_lost_cores_explain() -> None:
    found = Slowdown(0.1, 0.05, 0.2).widened(0.5, 0.8)
    assert (found.median, found.low, found.high) == pytest.approx((0.1, 1.05 * 0.5 - 1, 1.2 / 0.8 - 1))
    same = Slowdown(0.1, 0.05, 0.2).widened(1.0, 1.0)
    assert (same.low, same.high) == pytest.approx((0.05, 0.2))
    assert math.isnan(Slowdown(0.1, math.nan, math.nan).widened(0.5, 0.5).low)


class Machine:
    """Timings, and looks between them, find other programs with so many cores."""

    def __init__(self, timings: list[float], looks: Iterator[float]) -> None:
        self._timings, self._looks = iter(timings), looks
        self.looks = 0
        self.waited = 0

    def timed(self) -> tuple[str, float]:
        self.waited, self.looks = self.looks, 0
        found = next(self._timings)
        return f"time beside {found}", found

    def look(self, secs: float) -> float:
        assert 0 < secs < 1
        self.looks += 1
        return next(self._looks)


@pytest.mark.parametrize(
    ("timings", "least"), [([0.1], 0.1), ([0.9, 0.0], 0.0), ([0.9, 0.5, 0.1], 0.1), ([0.5, 0.9, 0.7], 0.5)]
)
def test_a_disturbed_timing_is_repeated_twice_at_most_and_the_best_counts(timings: list[float], least: float) -> None:
    machine = Machine(timings, itertools.repeat(0.0))
    assert timed_quietly(machine.timed, machine.look) == (f"time beside {least}", least)


def test_it_is_repeated_when_the_machine_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([0.0, 10.0, 10.0], itertools.count(11.0, 1.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    machine = Machine([0.9, 0.0], iter([0.9, 0.0]))
    assert timed_quietly(machine.timed, machine.look) == ("time beside 0.0", 0.0)
    assert machine.waited == 2


def test_it_does_not_wait_for_a_quiet_machine_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.chain([0.0, 500.0, 500.0], itertools.count(501.0, 1.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    machine = Machine([0.9], itertools.repeat(0.9))
    assert timed_quietly(machine.timed, machine.look) == ("time beside 0.9", 0.9)
    assert machine.looks == 60, "a second each, although the timing took 500 s"
