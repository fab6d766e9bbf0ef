"""Ranges of the whole numbers that a kernel multiplies."""

from __future__ import annotations

from dataclasses import dataclass

_LARGEST_SUM = 2**31 - 1


@dataclass(frozen=True)
class Bounds:
    """The smallest and the largest whole number of a kernel's data, and of its weights."""

    data: tuple[int, int]
    weights: tuple[int, int]
    computed: bool = False
    """whether the weights are computed when the model runs"""

    def numbers(self) -> list[int]:
        """As an annotation has them (`kernel_names.WHOLE_NUMBERS`)."""
        return [*self.data, *self.weights, *([1] if self.computed else [])]

    def sums_fit(self, depth: int) -> bool:
        """Whether sums of `depth` products fit into int32."""
        largest = max(map(abs, self.data)) * max(map(abs, self.weights))
        return depth * largest < _LARGEST_SUM
