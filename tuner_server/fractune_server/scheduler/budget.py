"""How many trials a job still has, and the limits of one operator."""

from __future__ import annotations

import math
from collections.abc import Sequence

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
