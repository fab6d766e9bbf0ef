"""How far two arrays differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fractune_workers.children.tvm_api.arrays import difference

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -5.0], 0.2),
        ([0.5], [0.0], 0.5),
        ([1.0, INF], [1.5, INF], 1 / 3),
        ([1.0, INF], [1.0, 2.0], INF),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([], [], 0.0),
        ([0.0], [1e-38], 1e-8),  # a denormal that one of two sums has lost
    ],
)
def test_it_is_relative_to_the_largest_value_of_the_reference(
    output: list[float], reference: list[float], expected: float
) -> None:
    found = difference(np.array(output, np.float32), np.array(reference, np.float32))
    assert found == pytest.approx(expected)


class Untouched(np.ndarray[Any, Any]):
    """An array of which no copy in another type may be made."""

    def astype(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("converted")


def test_equal_arrays_are_not_converted() -> None:
    """Inputs and weights, which a kernel leaves as they are, are most of what a validation compares."""
    same = np.arange(5, dtype=np.float32)
    assert difference(same.view(Untouched), same.copy().view(Untouched)) == 0.0
    with pytest.raises(AssertionError, match="converted"):
        difference((same + 1).view(Untouched), same.view(Untouched))
