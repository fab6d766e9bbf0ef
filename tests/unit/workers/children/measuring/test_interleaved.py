"""Finalists timed in turn: who gets how many repeats, and what their records say of it."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest

from fractune_core.records import COLD, VALIDATION_POLICY, TimingPolicy, with_cache
from fractune_workers.children.measuring.interleaved import Reference, is_timed_by, time_interleaved


@dataclass
class Kernels:
    """Seconds of one call by name, and which timings were asked for."""

    secs: dict[str, float]
    asked: list[tuple[str, int]] = field(default_factory=list)

    def time(self, name: str, policy: TimingPolicy, calls: int) -> list[float]:
        assert (policy.warmups, policy.repeats) == (0, 1)
        is_first = name not in {known for known, _ in self.asked}
        assert policy.cache == COLD or policy.min_repeat_ms in {1.0 if is_first else 10.0, 10.0}
        self.asked.append((name, calls))
        return [self.secs[name]]


BEHIND = replace(VALIDATION_POLICY, warmups=0, repeats=3, choosing=0)
SLOW = replace(VALIDATION_POLICY, warmups=0, repeats=4, choosing=1)
"""the first chooses, three are reported"""


def test_those_that_can_win_are_timed_in_turn_with_all_repeats() -> None:
    kernels = Kernels({"untuned": 2e-3, "a": 1e-3})
    kept, run_secs = time_interleaved(["untuned", "a"], VALIDATION_POLICY, kernels.time)
    assert kept == dict.fromkeys(kernels.secs, VALIDATION_POLICY)
    assert run_secs == {name: [secs] * VALIDATION_POLICY.repeats for name, secs in kernels.secs.items()}
    assert [name for name, _ in kernels.asked] == ["untuned", "a"] * (
        1 + VALIDATION_POLICY.repeats
    )  # the first of each warms up


@pytest.mark.parametrize(
    ("secs", "few"),
    [
        ({"untuned": 3.1e-3, "a": 1e-3}, {"untuned": BEHIND}),
        ({"untuned": 2.9e-3, "a": 1e-3}, {}),
        ({"untuned": 1e-3, "a": 2e-3, "b": 4e-3}, {"b": BEHIND}),
        ({"untuned": 0.3, "a": 0.25}, {"untuned": SLOW, "a": SLOW}),
        ({"untuned": 5e-3}, {}),
    ],
)
def test_what_is_slow_or_far_behind_has_few_repeats_and_says_so(
    secs: dict[str, float], few: dict[str, TimingPolicy]
) -> None:
    kernels = Kernels(secs)
    kept, run_secs = time_interleaved(list(secs), VALIDATION_POLICY, kernels.time)
    assert {name: policy for name, policy in kept.items() if policy != VALIDATION_POLICY} == few
    assert {name: len(found) for name, found in run_secs.items()} == {name: kept[name].repeats for name in secs}
    made = Counter(name for name, _ in kernels.asked)
    # The first timing is short, and no repeat unless a single call takes long.
    dropped = {name: policy.warmups or secs[name] < 10e-3 for name, policy in kept.items()}
    assert made == {name: policy.repeats + dropped[name] for name, policy in kept.items()}


def test_what_is_slow_and_far_behind_is_timed_once() -> None:
    kernels = Kernels({"untuned": 0.5, "a": 1e-3})
    kept, run_secs = time_interleaved(list(kernels.secs), VALIDATION_POLICY, kernels.time)
    assert kept == {"untuned": replace(BEHIND, repeats=1), "a": VALIDATION_POLICY}
    assert run_secs["untuned"] == [0.5]
    assert [name for name, _ in kernels.asked].count("untuned") == 1


@pytest.mark.parametrize(
    ("check_s", "secs", "made", "repeats"),
    [
        (0.4, 0.3, 0, [0.4]),
        (0.06, 0.05, 0, [0.06]),
        (0.04, 0.03, 0, [0.04]),
        (2.1e-3, 2e-3, 0, [2.1e-3]),
        (1.9e-3, 1e-3, 2, [1e-3]),
        (0.0, 5e-3, 2, [5e-3]),
        (0.0, 5e-6, 2, [5e-6]),
    ],
)
def test_a_reference_far_behind_is_timed_once_at_most(
    check_s: float, secs: float, made: int, repeats: list[float]
) -> None:
    kernels = Kernels({"untuned": secs, "a": secs / 100})
    reference = Reference("untuned", check_s)
    kept, run_secs = time_interleaved(list(kernels.secs), VALIDATION_POLICY, kernels.time, reference)
    assert kept == {"untuned": replace(BEHIND, repeats=1), "a": VALIDATION_POLICY}
    assert run_secs["untuned"] == repeats
    assert [name for name, _ in kernels.asked].count("untuned") == made


def test_a_reference_that_is_not_clearly_behind_is_timed_beside_the_others() -> None:
    kernels = Kernels({"untuned": 9e-3, "a": 1e-3})
    kept, run_secs = time_interleaved(list(kernels.secs), VALIDATION_POLICY, kernels.time, Reference("untuned", 9.5e-3))
    assert kept["untuned"] == replace(BEHIND, repeats=1)
    assert run_secs["untuned"] == [9e-3]


def test_a_reference_that_can_win_is_timed_like_the_others() -> None:
    kernels = Kernels({"untuned": 1.1e-3, "a": 1e-3})
    kept, run_secs = time_interleaved(list(kernels.secs), VALIDATION_POLICY, kernels.time, Reference("untuned"))
    assert set(kept.values()) == {VALIDATION_POLICY}
    assert {len(each) for each in run_secs.values()} == {VALIDATION_POLICY.repeats}


def test_one_call_over_a_cold_cache_is_no_reason_for_fewer() -> None:
    kernels = Kernels({"untuned": 4e-3, "a": 1e-3})
    policy = with_cache(VALIDATION_POLICY, COLD)
    kept, _ = time_interleaved(list(kernels.secs), policy, kernels.time)
    assert set(kept.values()) == {policy}


def test_after_the_first_timing_it_is_known_how_many_calls_fill_a_repeat() -> None:
    kernels = Kernels({"untuned": 20e-3, "a": 10e-6, "nothing": 0.0})
    time_interleaved(list(kernels.secs), VALIDATION_POLICY, kernels.time)
    assert {calls for name, calls in kernels.asked if name == "untuned"} == {1}
    assert {calls for name, calls in kernels.asked if name == "nothing"} == {1}
    assert [calls for name, calls in kernels.asked if name == "a"][:2] == [1, 1050]


def test_a_kernel_that_gets_faster_fills_its_repeats_with_more_calls() -> None:
    secs = iter([2e-5, *[1e-5] * VALIDATION_POLICY.repeats])
    asked: list[int] = []

    def timed(_name: str, _policy: TimingPolicy, calls: int) -> list[float]:
        asked.append(calls)
        return [next(secs)]

    time_interleaved(["a"], VALIDATION_POLICY, timed)
    assert asked[:4] == [1, 525, 1050, 1050]


@pytest.mark.parametrize(
    ("first_s", "bar_s", "enough"),
    [
        (0.25, float("inf"), True),  # nothing to compare with, and slow all the same
        (0.15, float("inf"), False),
        (0.06, 0.05, True),
        (0.06, 0.07, False),  # it can win
        (0.04, 0.001, False),  # loading its code may be much of so short a call
    ],
)
def test_a_long_first_call_that_cannot_win_is_the_timing(first_s: float, bar_s: float, enough: bool) -> None:  # noqa: FBT001
    assert is_timed_by(first_s, bar_s) is enough
