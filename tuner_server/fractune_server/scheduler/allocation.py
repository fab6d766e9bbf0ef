"""Which operator is searched next, and for how many candidates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fractune_core.analysis.joint_time import joint_time_s
from fractune_core.analysis.roofline import is_near
from fractune_server.scheduler import budget

FIRST_ROUND = 8
"""candidates of an operator's first rounds; later ones have half as many as were measured before them, up to the job's
size of a round: the search learns early, and its cost for each candidate falls as what it can still learn does"""
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
    """medians by candidate and share key: where the log holds a trial of it, infinite for a failure"""
    best: dict[str, float] = field(default_factory=dict)
    """best median by share key"""
    in_flight: int = 0
    """candidates asked for or proposed for its job, and not yet measured at every share"""
    busy: bool = False
    """True while a round of it is under way that is worth waiting for"""
    exhausted: bool = False
    """True when its space holds no further candidate"""
    given_up: bool = False
    """True when its rounds fail"""
    attainable_s: dict[str, float] = field(default_factory=dict)
    """by share key: seconds that it takes at least, where that is known"""
    near_roof: bool = False
    """True when its best leaves next to nothing to gain, at every share"""
    complete: int = 0
    """candidates that the log holds at every share"""
    _lacking: dict[str, None] = field(default_factory=dict)
    """candidates that ran well at some shares and were not measured at others, in the order in which they came"""
    _before: tuple[float | None, int] | None = None
    """the best and the number of complete candidates when a search began"""
    _gains: int = 0
    _gain: float = _PRIOR_GAIN

    def add_trial(self, candidate: str, share: str, median_s: float, *, built: bool = True) -> bool:
        """Take note of a trial at one of the plan's shares; twice the same one counts once. What was not built fails at
        every share, wherever that came out. True when the candidate is measured at every share by this.
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
        """Whether it was measured at every share."""
        return len(self.measured.get(candidate, ())) == len(self.shares)

    @property
    def partial(self) -> int:
        """How many candidates ran well at some shares and were not measured at others."""
        return len(self._lacking)

    def lacks(self, candidate: str, share: str) -> bool:
        """Whether it was not measured at this share, and did not fail at another."""
        medians = self.measured.get(candidate, {})
        return share not in medians and all(map(math.isfinite, medians.values()))

    def lacking(self, most: int) -> tuple[list[str], frozenset[str]]:
        """Candidates that ran well at some shares and lack the same others: the fastest, at most so many; and the keys
        of the shares that they lack.
        """
        speeds = {name: max(self.best[at] / secs for at, secs in self.measured[name].items()) for name in self._lacking}
        ranked = sorted(speeds, key=lambda name: -speeds[name])
        lacked = {name: frozenset(self.shares) - self.measured[name].keys() for name in ranked}
        first = lacked[ranked[0]] if ranked else frozenset()
        return [name for name in ranked if lacked[name] == first][:most], first

    def set_attainable(self, attainable_s: Mapping[str, float]) -> None:
        """Take note of the roofs at the plan's shares: what they let it attain, in seconds by share key."""
        self.attainable_s = dict(attainable_s)
        self._look_at_roof()

    @property
    def open(self) -> bool:
        """True while a further trial may gain something."""
        return not self.near_roof and not self.given_up and (not self.exhausted or self.partial > 0)

    @property
    def count(self) -> int:
        """Candidates measured at every share, and those on their way there."""
        return self.complete + self.in_flight

    @property
    def best_s(self) -> float | None:
        """Geometric mean of the best medians over the shares that have one."""
        return joint_time_s(self.best.values()) if self.best else None

    def begin_round(self) -> None:
        """Note how it stands when a search begins."""
        self._before = self.best_s, self.complete

    def end_round(self, *, whole: bool) -> None:
        """Learn how much the search gained; `whole`: all that it proposed was measured."""
        best_before_s, complete_before = self._before or (None, -1)
        self._before = None
        if whole and self.complete == complete_before:
            self.exhausted = True  # nothing but what the log held already
        if best_before_s is None or self.best_s is None:
            return
        gain = max(0.0, 1.0 - self.best_s / best_before_s)
        self._gain = (self._gain + gain) / 2 if self._gains else gain
        self._gains += 1

    def _look_at_roof(self) -> None:
        self.near_roof = all(is_near(self.attainable_s.get(share), self.best.get(share)) for share in self.shares)

    @property
    def score(self) -> float:
        """Seconds of the model's run time that the next round is expected to save, but for a constant."""
        if self.best_s is None:
            return 0.0 if self.measured else math.inf
        judged = self._gains >= _ROUNDS_BEFORE_JUDGED
        gain = max(self._gain, _GAIN_FLOOR) if judged else _PRIOR_GAIN
        return self.weight * self.best_s * gain


@dataclass(frozen=True)
class Budget:
    trials: int
    more: int
    """candidates beyond what the log held; replaces `trials` when above 0"""
    round_size: int
    closed: bool = False
    """True = nothing is searched"""

    def remaining(self, plans: Sequence[OperatorPlan], gained: int) -> int:
        """Candidates still to be asked for; `gained` = those that the job has beyond what the log held at its start."""
        if self.closed:
            return 0
        if self.more:
            return max(0, self.more - gained - sum(plan.in_flight for plan in plans))
        searchable = [plan.count for plan in plans if plan.open]
        return budget.remaining(self.trials, searchable, [plan.count for plan in plans if not plan.open])

    def most(self, operators: int) -> float:
        """Candidates that one of so many operators may have."""
        return math.inf if self.more else budget.cap(self.trials, operators)

    def room(self, plan: OperatorPlan, plans: Sequence[OperatorPlan], gained: int) -> float:
        """How many candidates more of the operator `plan`, one of `plans`, the job would take."""
        if not plan.open:
            return 0
        return min(self.remaining(plans, gained), self.most(len(plans)) - plan.count)

    def saved(self, plans: Sequence[OperatorPlan], gained: int) -> int:
        """Candidates that operators near their roof were not searched for, once nothing is left to search.

        What the others could use of them they had: it is what is left of the budget.
        """
        near = [plan.count for plan in plans if plan.near_roof and not plan.exhausted]
        if self.more:
            return max(0, self.more - gained) if near else 0
        return budget.unused(self.trials, [plan.count for plan in plans], near)


def next_round(
    plans: Sequence[OperatorPlan],
    limits: Budget,
    gained: int,
    allowed: Callable[[OperatorPlan], bool] = lambda _: True,
) -> tuple[OperatorPlan, int] | None:
    """The operator whose turn it is, and how many candidates to ask for. None = nothing can start now.

    `gained` is as in `Budget.remaining`; `allowed` leaves out operators of other instances.

    1. Operators with a round under way wait. Out are those that are exhausted, near their roof, or at their cap.
    2. First what the log holds at some of the shares: no search is needed for it.
    3. Then every operator up to the minimum, the heavier ones first.
    4. Then the largest expected saving.
    """
    left = limits.remaining(plans, gained)
    free = [plan for plan in plans if not plan.busy and plan.open and allowed(plan)]
    low = budget.minimum(limits.trials, len(plans))
    high = limits.most(len(plans))
    free = [plan for plan in free if plan.count < high]
    if left <= 0 or not free:
        return None
    part = max((plan for plan in free if plan.partial), key=lambda plan: plan.weight, default=None)
    if part is not None:
        return part, int(min(part.partial, limits.round_size, left, high - part.count))
    owed = [] if limits.more else [plan for plan in free if plan.count < low]
    if owed:
        plan = max(owed, key=lambda plan: plan.weight)
        return plan, min(round_of(plan.count, limits.round_size), low - plan.count)
    # What operators lack that cannot start now, because others search them, stays for them.
    left -= 0 if limits.more else sum(max(0, low - plan.count) for plan in plans if plan.open)
    if left <= 0:
        return None
    plan = max(free, key=lambda plan: (plan.score, plan.weight))
    return plan, int(min(round_of(plan.count, limits.round_size), left, high - plan.count))


def round_of(count: int, most: int) -> int:
    """How many candidates the next round of an operator may have that has `count` already; never above `most`."""
    return min(most, max(FIRST_ROUND, count // 2))


def joint_times(times: Mapping[str, Mapping[str, float]], shares: Sequence[str]) -> dict[str, float]:
    """For candidates measured at all `shares`: the geometric mean of their medians, 0 when one failed.

    `times` holds medians in seconds by candidate and share key, infinite for a failure.
    """
    return {
        candidate: joint_time_s(by_share[share] for share in shares)
        for candidate, by_share in times.items()
        if all(share in by_share for share in shares)
    }
