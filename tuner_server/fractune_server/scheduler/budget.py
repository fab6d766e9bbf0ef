"""How many trials a job still has to make, and how far one operator may go."""

from __future__ import annotations

import math
from collections.abc import Sequence

_FLOOR_FRACTION = 2
"""every operator gets at least 1/2 of an even part of the trials"""
_CAP_FACTOR = 4
"""and at most 4 even parts"""


def minimum(trials: int, operators: int) -> int:
    """Candidates that every operator gets before any goes further: one at least, for the first is computed, and far
    better than none.
    """
    return max(1, trials // (_FLOOR_FRACTION * operators))


def cap(trials: int, operators: int) -> int:
    """Candidates beyond which an operator is not searched in this budget."""
    return max(minimum(trials, operators), math.ceil(_CAP_FACTOR * trials / operators))


def remaining(trials: int, searchable: Sequence[int], done: Sequence[int] = ()) -> int:
    """New candidates that a budget of `trials` asks for, given how many each operator has already: those that can
    still gain by a search, and those that are done.

    1. What the log holds counts, though no more than the cap of its operator.
    2. Every operator that can still be searched gets its minimum, even when others have used the budget up.
    """
    operators = len(searchable) + len(done)
    low, high = minimum(trials, operators), cap(trials, operators)
    unspent = trials - sum(min(count, high) for count in (*searchable, *done))
    owed = sum(max(0, low - count) for count in searchable)
    return max(unspent, owed, 0)


def unused(trials: int, counts: Sequence[int], near_roof: Sequence[int]) -> int:
    """What is left of a budget of `trials`, `counts` of each operator being measured, for want of an operator that
    could gain by it: at most what those in `near_roof`, which are among them, were still below their cap.
    """
    high = cap(trials, len(counts))
    unspent = trials - sum(min(count, high) for count in counts)
    return max(0, min(unspent, sum(max(0, high - count) for count in near_roof)))
