"""How much memory one inference needs, from the types of a Relax function's values: nothing is run for it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class _Value:
    var: Hashable
    read: Sequence[Hashable]
    size: int
    """bytes; 0 for one that only names the memory of those that it reads"""
    what: str


class InferenceMemory:
    """The values of one function, in the order in which it computes them. Each is kept until it is last read."""

    def __init__(self) -> None:
        self._kept = 0
        self._values: list[_Value] = []

    def keep(self, size: int) -> None:
        """Count an input or a weight, which is there all the time."""
        self._kept += size

    def compute(self, var: Hashable, read: Sequence[Hashable], size: int, what: str) -> None:
        """Count a value that is computed of others; `size` 0 = it is the others, such as a tuple of them."""
        self._values.append(_Value(var, read, size, what))

    def peak(self, results: Sequence[Hashable]) -> tuple[int, str]:
        """The most bytes that are there at once, and what is computed then. `results` are never dropped."""
        ends = self._ends(results)
        dropped = [0] * (len(self._values) + 1)
        held, peak, at = self._kept, self._kept, "its inputs and weights"
        for place, value in enumerate(self._values):
            held += value.size
            if held > peak:
                peak, at = held, value.what
            dropped[ends.get(value.var, place)] += value.size
            held -= dropped[place]
        return peak, at

    def _ends(self, results: Sequence[Hashable]) -> dict[Hashable, int]:
        """By value, at which place it is last read; a result behind all places."""
        ends: dict[Hashable, int] = dict.fromkeys(results, len(self._values))
        for place, value in reversed(list(enumerate(self._values))):
            until = place if value.size else ends.get(value.var, place)
            for var in value.read:
                ends[var] = max(until, ends.get(var, until))
        return ends
