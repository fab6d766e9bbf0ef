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
    measured: dict[str, set[str]] = field(default_factory=dict)
    """share keys by candidate: where the log holds a trial of it"""
    best: dict[str, float] = field(default_factory=dict)
    """best median by share key"""
    in_flight: int = 0
    """candidates asked for or proposed, and not yet measured at every share"""
    busy: bool = False
    """True while a round of it is under way"""
    exhausted: bool = False
    attainable_s: dict[str, float] = field(default_factory=dict)
    """by share key: seconds that it takes at least, where that is known"""
    near_roof: bool = False
    """True when its best leaves next to nothing to gain, at every share"""
    complete: int = 0
    """candidates that the log holds at every share"""
    _gains: int = 0
    _gain: float = _PRIOR_GAIN

    def add_trial(self, candidate: str, share: str, median_s: float) -> None:
        """Take note of a trial at one of the plan's shares; twice the same one counts once."""
        if share not in self.shares:
            return
        shares = self.measured.setdefault(candidate, set())
        if share not in shares:
            shares.add(share)
            self.complete += len(shares) == len(self.shares)
        if median_s < self.best.get(share, math.inf):
            self.best[share] = median_s
            self._look_at_roof()

    def set_attainable(self, attainable_s: Mapping[str, float]) -> None:
        """Take note of the roofs at the plan's shares: what they let it attain, in seconds by share key."""
        self.attainable_s = dict(attainable_s)
        self._look_at_roof()

    @property
    def open(self) -> bool:
        """True while a further trial may gain something."""
        return not self.exhausted and not self.near_roof

    @property
    def count(self) -> int:
        """Candidates measured at every share, and those on their way there."""
        return self.complete + self.in_flight

    @property
    def best_s(self) -> float | None:
        """Geometric mean of the best medians over the shares that have one."""
        return joint_time_s(self.best.values()) if self.best else None

    def end_round(self, best_before_s: float | None) -> None:
        """Learn how much the round that has ended gained."""
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

    def remaining(self, plans: Sequence[OperatorPlan], own: int) -> int:
        """Candidates still to be asked for; `own` = those that this job has measured already."""
        if self.closed:
            return 0
        if self.more:
            return max(0, self.more - own - sum(plan.in_flight for plan in plans))
        searchable = [plan.count for plan in plans if plan.open]
        return budget.remaining(self.trials, searchable, [plan.count for plan in plans if not plan.open])

    def saved(self, plans: Sequence[OperatorPlan], own: int) -> int:
        """Candidates that operators near their roof were not searched for, once nothing is left to search.

        What the others could use of them they had: it is what is left of the budget.
        """
        near = [plan.count for plan in plans if plan.near_roof and not plan.exhausted]
        if self.more:
            return max(0, self.more - own) if near else 0
        return budget.unused(self.trials, [plan.count for plan in plans], near)


def next_round(
    plans: Sequence[OperatorPlan],
    limits: Budget,
    own: int,
    allowed: Callable[[OperatorPlan], bool] = lambda _: True,
) -> tuple[OperatorPlan, int] | None:
    """The operator whose turn it is, and how many candidates to ask for. None = nothing can start now.

    `own` = candidates that this job has measured already; `allowed` leaves out operators of other instances.

    1. Operators with a round under way wait. Out are those that are exhausted, near their roof, or at their cap.
    2. First every operator up to the minimum, the heavier ones first.
    3. Then the largest expected saving.
    """
    left = limits.remaining(plans, own)
    free = [plan for plan in plans if not plan.busy and plan.open and allowed(plan)]
    low = budget.minimum(limits.trials, len(plans))
    high = math.inf if limits.more else budget.cap(limits.trials, len(plans))
    free = [plan for plan in free if plan.count < high]
    if left <= 0 or not free:
        return None
    owed = [] if limits.more else [plan for plan in free if plan.count < low]
    if owed:
        plan = max(owed, key=lambda plan: plan.weight)
        return plan, min(round_of(plan.count, limits.round_size), low - plan.count)
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
