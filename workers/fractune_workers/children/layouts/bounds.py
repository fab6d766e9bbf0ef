"""Ranges of the whole numbers that a kernel multiplies."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest whole number of a kernel's data, and of its weights."""

    data: tuple[int, int]
    weights: tuple[int, int]

    def numbers(self) -> list[int]:
        return [*self.data, *self.weights]

    def sums_fit(self, depth: int) -> bool:
        """Whether sums of `depth` products fit into int32."""
        largest = max(map(abs, self.data)) * max(map(abs, self.weights))
        return depth * largest < _LARGEST_SUM
