"""Which operator is searched next, and for how many candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fractune_core.analysis.roofline import NEAR, roof_part
from fractune_core.records import joint_time_s

_FLOOR_FRACTION = 2
"""every operator gets at least 1/2 of an equal part of the trials"""
_CAP_FACTOR = 4
"""every operator gets at most 4 equal parts"""


def minimum(trials: int, operators: int) -> int:
    """Candidates that every operator gets before any gets more. At least one: the first candidate is computed, and far
    better than the untuned default.
    """
    return max(1, trials // (_FLOOR_FRACTION * operators))


def cap(trials: int, operators: int) -> int:
    """Limit of candidates of an operator in this budget."""
    return max(minimum(trials, operators), math.ceil(_CAP_FACTOR * trials / operators))


def remaining(trials: int, searchable: Sequence[int], done: Sequence[int] = ()) -> int:
    """New candidates in a budget of `trials`. The counts are of operators that can still gain, and of `done` ones.

    1. Candidates in the log count, up to the cap of their operator.
    2. Every searchable operator gets its minimum, even if others have used up the budget.
    """
    operators = len(searchable) + len(done)
    low, high = minimum(trials, operators), cap(trials, operators)
    unspent = trials - sum(min(count, high) for count in (*searchable, *done))
    owed = sum(max(0, low - count) for count in searchable)
    return max(unspent, owed, 0)


def unused(trials: int, counts: Sequence[int], near_roof: Sequence[int]) -> int:
    """The rest of a budget of `trials` that no operator could gain by.

    `counts`: measured candidates of each operator; `near_roof`: those of the operators near their roof, which are among
    them. The rest is at most what the latter lack to their cap.
    """
    high = cap(trials, len(counts))
    unspent = trials - sum(min(count, high) for count in counts)
    return max(0, min(unspent, sum(max(0, high - count) for count in near_roof)))


NOTHING_LEFT = 0.01
"""part of the operators' time: where further trials can save less, the search of a model ends"""


def left_to_gain(plans: Sequence[OperatorPlan]) -> float:
    """The largest part of the operators' time that further trials may save, from 0 to 1. Operators save most where
    weight times time is largest, and nothing where they stand near their roof, or hold no further candidate.
    """
    if any(plan.best_s is None and plan.open for plan in plans):
        return 1.0
    known = [(plan.model_s, plan.most_gain if plan.open else 0.0) for plan in plans]
    whole_s = sum(time_s for time_s, _ in known)
    return sum(time_s * gain for time_s, gain in known) / whole_s if whole_s else 0.0


FIRST_ROUND = 8
"""candidates in an operator's first rounds. A later round has half as many as were measured before, up to the job's
round size: the search learns early, and later costs less for each candidate."""
_PRIOR_GAIN = 0.5
_GAIN_FLOOR = 0.01
_ROUNDS_BEFORE_JUDGED = 2


@dataclass
class OperatorPlan:
    """One operator as the scheduler sees it. Times in seconds."""

    workload_hash: str
    weight: int
    shares: tuple[str, ...]
    """keys of the granted shares that each candidate is measured at"""
    measured: dict[str, dict[str, float]] = field(default_factory=dict)
    """medians of the trials in the log, by candidate and share key; infinite for a failure"""
    best: dict[str, float] = field(default_factory=dict)
    """best median by share key"""
    in_flight: int = 0
    """candidates requested or proposed for its job, and not yet measured at every share"""
    busy: bool = False
    """a round is in progress that is worth waiting for"""
    exhausted: bool = False
    """its space holds no further candidate"""
    given_up: bool = False
    """its rounds fail"""
    attainable_s: dict[str, float] = field(default_factory=dict)
    """lower bound of its time in seconds by share key, where it is known"""
    near_roof: bool = False
    """its best is near the roof at every share"""
    most_gain: float = 1.0
    """the largest part of its time that further trials may save, by its roofs; 1.0 where these are not known"""
    inside: float = 1.0
    """its time inside the model over the one alone, by an earlier job; 1.0 where that is not known"""
    complete: int = 0
    """candidates that the log holds at every share"""
    _lacking: dict[str, None] = field(default_factory=dict)
    """candidates that ran well at some shares and were not measured at others, in order of arrival"""
    _before: tuple[float | None, int] | None = None
    """best time and number of complete candidates when a search began"""
    _gains: int = 0
    _gain: float = _PRIOR_GAIN

    def add_trial(self, candidate: str, share: str, median_s: float, *, built: bool = True) -> bool:
        """Note a trial at one of the plan's shares; a repeated one changes nothing.

        A candidate that was not built fails at every share. True if this trial completes the candidate.
        """
        if built and share not in self.shares:
            return False
        medians, before = self.measured.setdefault(candidate, {}), self.has(candidate)
        for each in (share,) if built else self.shares:
            medians.setdefault(each, median_s)
        if self.has(candidate) or not all(map(math.isfinite, medians.values())):
            self._lacking.pop(candidate, None)
        else:
            self._lacking[candidate] = None
        if median_s < self.best.get(share, math.inf):
            self.best[share] = median_s
            self._look_at_roof()
        self.complete += (now := self.has(candidate)) and not before
        return now and not before

    def has(self, candidate: str) -> bool:
        """Whether the candidate was measured at every share."""
        return len(self.measured.get(candidate, ())) == len(self.shares)

    @property
    def partial(self) -> int:
        """Number of candidates that ran well at some shares and were not measured at others."""
        return len(self._lacking)

    def lacks(self, candidate: str, share: str) -> bool:
        """Whether the candidate was not measured at this share, and did not fail at another."""
        medians = self.measured.get(candidate, {})
        return share not in medians and all(map(math.isfinite, medians.values()))

    def lacking(self, most: int) -> tuple[list[str], frozenset[str]]:
        """The fastest candidates that ran well at some shares and lack the same other shares, at most `most`.

        Also returns the keys of the shares that they lack.
        """
        speeds = {name: max(self.best[at] / secs for at, secs in self.measured[name].items()) for name in self._lacking}
        ranked = sorted(speeds, key=lambda name: -speeds[name])
        lacked = {name: frozenset(self.shares) - self.measured[name].keys() for name in ranked}
        first = lacked[ranked[0]] if ranked else frozenset()
        return [name for name in ranked if lacked[name] == first][:most], first

    def set_attainable(self, attainable_s: Mapping[str, float]) -> None:
        """Note the attainable times at the shares' roofs, in seconds by share key."""
        self.attainable_s = dict(attainable_s)
        self._look_at_roof()

    @property
    def open(self) -> bool:
        """Whether a further trial may gain something."""
        return not self.near_roof and not self.given_up and (not self.exhausted or self.partial > 0)

    @property
    def count(self) -> int:
        """Candidates measured at every share, and those in flight."""
        return self.complete + self.in_flight

    @property
    def best_s(self) -> float | None:
        """Geometric mean of the best medians over the shares that have one."""
        return joint_time_s(self.best.values()) if self.best else None

    @property
    def model_s(self) -> float:
        """Its part of the model's time, as far as that is known."""
        return self.weight * (self.best_s or 0.0) * self.inside

    def begin_round(self) -> None:
        """Note the state when a search begins."""
        self._before = self.best_s, self.complete

    def end_round(self, *, whole: bool) -> None:
        """Learn how much the search gained; `whole`: all of its candidates were measured."""
        best_before_s, complete_before = self._before or (None, -1)
        self._before = None
        if whole and self.complete == complete_before:
            self.exhausted = True  # it proposed only candidates that the log already held
        if best_before_s is None or self.best_s is None:
            return
        gain = max(0.0, 1.0 - self.best_s / best_before_s)
        self._gain = (self._gain + gain) / 2 if self._gains else gain
        self._gains += 1

    def _look_at_roof(self) -> None:
        parts = [roof_part(self.attainable_s.get(share), self.best.get(share)) for share in self.shares]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            self.near_roof, self.most_gain = False, 1.0
            return
        self.near_roof = min(known) >= NEAR
        self.most_gain = 1.0 - joint_time_s(min(1.0, part / NEAR) for part in known)

    @property
    def score(self) -> float:
        """Expected gain of the next round in the model's run time, up to a constant factor."""
        if self.best_s is None:
            return 0.0 if self.measured else math.inf
        judged = self._gains >= _ROUNDS_BEFORE_JUDGED
        gain = max(self._gain, _GAIN_FLOOR) if judged else _PRIOR_GAIN
        return self.model_s * min(gain, self.most_gain)


@dataclass(frozen=True)
class Budget:
    trials: int
    extra_trials: int
    """candidates beyond what the log held; replaces `trials` when above 0"""
    round_size: int
    closed: bool = False
    """True = search nothing"""

    @property
    def has_no_search(self) -> bool:
        """Whether only the first candidate of each operator is measured."""
        return self.trials == self.extra_trials == 0

    def remaining(self, plans: Sequence[OperatorPlan], gained: int) -> int:
        """Candidates that may still be requested; `gained` = candidates that the job has gained since its start."""
        if self.closed:
            return 0
        if self.extra_trials:
            return max(0, self.extra_trials - gained - sum(plan.in_flight for plan in plans))
        if self.is_needless(plans):
            return 0
        searchable = [plan.count for plan in plans if plan.open]
        return remaining(self.trials, searchable, [plan.count for plan in plans if not plan.open])

    def is_needless(self, plans: Sequence[OperatorPlan]) -> bool:
        """Whether the search ends before its trials, because hardly anything is left to gain. Trials beyond those in
        the log are made as they were asked for.
        """
        return not self.extra_trials and any(plan.open for plan in plans) and left_to_gain(plans) < NOTHING_LEFT

    def most(self, operators: int) -> float:
        """Limit of candidates for one of `operators` operators."""
        return math.inf if self.extra_trials else cap(self.trials, operators)

    def room(self, plan: OperatorPlan, plans: Sequence[OperatorPlan], gained: int) -> float:
        """Number of further candidates of the operator `plan`, one of `plans`, that the job would take."""
        if not plan.open:
            return 0
        return min(self.remaining(plans, gained), self.most(len(plans)) - plan.count)

    def saved(self, plans: Sequence[OperatorPlan], gained: int) -> int:
        """Candidates that were not searched because operators are near their roof, once nothing is left to search.

        It is the rest of the budget, because the other operators have taken what they could use, or could not gain
        anything that matters.
        """
        is_needless = self.is_needless(plans)
        near = [plan.count for plan in plans if (is_needless and plan.open) or (plan.near_roof and not plan.exhausted)]
        if self.extra_trials:
            return max(0, self.extra_trials - gained) if near else 0
        return unused(self.trials, [plan.count for plan in plans], near)


def next_round(
    plans: Sequence[OperatorPlan], limits: Budget, gained: int, allowed: Callable[[OperatorPlan], bool] = lambda _: True
) -> tuple[OperatorPlan, int] | None:
    """The next operator, and how many candidates to request. None = nothing can start now.

    `gained` is as in `Budget.remaining`; `allowed` excludes operators of other instances.

    1. Operators with a round in progress wait. Exhausted operators and those near their roof or at their cap are out.
    2. First come candidates that the log holds at some of the shares: they need no search.
    3. Then every operator gets its minimum, the heavier ones first.
    4. Then comes the largest expected gain.
    """
    left = limits.remaining(plans, gained)
    free = [plan for plan in plans if not plan.busy and plan.open and allowed(plan)]
    low = minimum(limits.trials, len(plans))
    high = limits.most(len(plans))
    free = [plan for plan in free if plan.count < high]
    if left <= 0 or not free:
        return None
    part = max((plan for plan in free if plan.partial), key=lambda plan: plan.weight, default=None)
    if part is not None:
        return part, int(min(part.partial, limits.round_size, left, high - part.count))
    owed = [] if limits.extra_trials else [plan for plan in free if plan.count < low]
    if owed:
        plan = max(owed, key=lambda plan: plan.weight)
        return plan, min(round_of(plan.count, limits.round_size), low - plan.count)
    # Operators that cannot start now, because others search them, keep what they lack to their minimum.
    left -= 0 if limits.extra_trials else sum(max(0, low - plan.count) for plan in plans if plan.open)
    if left <= 0:
        return None
    plan = max(free, key=lambda plan: (plan.score, plan.weight))
    return plan, int(min(round_of(plan.count, limits.round_size), left, high - plan.count))


def round_of(count: int, most: int) -> int:
    """Size of the next round of an operator that has `count` candidates; at most `most`."""
    return min(most, max(FIRST_ROUND, count // 2))


def joint_times(times: Mapping[str, Mapping[str, float]], shares: Sequence[str]) -> dict[str, float]:
    """Geometric mean of the medians of each candidate that was measured at all `shares`; 0 if one failed.

    `times` holds medians in seconds by candidate and share key, infinite for a failure.
    """
    return {
        candidate: joint_time_s(by_share[share] for share in shares)
        for candidate, by_share in times.items()
        if all(share in by_share for share in shares)
    }
