"""The rule for ties of quantized outputs, on kernels in NumPy: right ones in another order, and wrong ones."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fractune_workers.children.measuring.quantized_outputs import calibrated, compared, step_of
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.processor import cpu_processor

Array = npt.NDArray[Any]
Kernel = Callable[[Array, Array], Array]
ROWS, DEPTH, COLUMNS = 400, 2048, 500
"""so many that some values lie at a tie"""
DESCRIBED: list[list[Any]] = [
    ["TENSOR", "float32", [ROWS, DEPTH], [0, 255]],
    ["TENSOR", "float32", [DEPTH, COLUMNS]],
    *(["TENSOR", "float32", [1], [], [role]] for role in ("scale", "high", "low", "step")),
    ["TENSOR", "float32", [ROWS, COLUMNS], [], ["quantized"]],
]
TOLERATED = 1e-3


def exact(data: Array, weights: Array) -> Array:
    return data.astype("float64") @ weights


def positive_first(data: Array, weights: Array) -> Array:
    """Sums that grow large before they shrink, in float32."""
    total = np.zeros((len(data), weights.shape[1]), "float32")
    for part in (np.maximum(weights, 0), np.minimum(weights, 0)):
        for at in range(0, DEPTH, 64):
            total += data[:, at : at + 64] @ part[at : at + 64]
    return total


def without_a_slice(data: Array, weights: Array) -> Array:
    return data[:, 16:] @ weights[16:]


def of_another_zero_point(data: Array, weights: Array) -> Array:
    return (data - 1) @ weights


def outputs(kernel: Kernel, contents: Sequence[Array]) -> list[Array]:
    data, weights, scale, high, low, step, _ = contents
    product = kernel(data, weights - np.float32(0.55))
    numbers = np.maximum(np.minimum(np.round(product.astype("float32") / scale), high), low)
    return [*contents[:-1], numbers * step]


@pytest.fixture(scope="module")
def contents() -> list[Array]:
    made = [each.numpy() for each in random_args(DESCRIBED, 3, cpu_processor())]
    scales = calibrated(DESCRIBED, made, lambda tried: outputs(exact, tried)[-1])
    return [scales.get(at, each) for at, each in enumerate(made)]


def test_values_spread_over_the_steps_and_some_reach_a_limit(contents: list[Array]) -> None:
    step = step_of(DESCRIBED, contents)
    numbers = np.round(outputs(exact, contents)[-1] / step)
    assert len(np.unique(numbers)) > 100
    assert np.abs(numbers).max() >= 127
    assert (np.abs(numbers) >= 127).mean() < 0.1


def test_a_right_kernel_with_another_order_of_sums_agrees(contents: list[Array]) -> None:
    found = compared(outputs(positive_first, contents), outputs(exact, contents), step_of(DESCRIBED, contents))
    assert found.max_error > TOLERATED
    assert found.beyond_ties < 1e-6
    assert found.steps == 1
    assert 0 < found.moved < 1e-3


@pytest.mark.parametrize("kernel", [without_a_slice, of_another_zero_point])
def test_a_wrong_kernel_does_not(contents: list[Array], kernel: Kernel) -> None:
    found = compared(outputs(kernel, contents), outputs(exact, contents), step_of(DESCRIBED, contents))
    assert found.beyond_ties > TOLERATED
    assert found.moved > 0.1


@pytest.mark.parametrize(
    ("moved", "steps", "agrees"), [(1, 1, True), (4, 1, True), (5, 1, False), (1, 2, False), (0, 0, True)]
)
def test_one_step_in_one_percent_of_the_values_is_a_tie(moved: int, steps: int, *, agrees: bool) -> None:
    reference = np.arange(400, dtype="float32") % 100 * 0.25
    output = reference.copy()
    output[:moved] += steps * 0.25
    found = compared([output], [reference], 0.25)
    assert (found.beyond_ties == 0.0) is agrees
    assert (found.steps, found.moved) == (steps, moved / 400)


def test_one_value_of_few_may_be_a_tie_and_without_a_step_nothing_is() -> None:
    output, reference = np.array([1, 2, 4], "int8"), np.array([1, 2, 3], "int8")
    assert compared([output], [reference], 1.0).beyond_ties == 0.0
    assert compared([output], [reference], 0.0).beyond_ties == pytest.approx(1 / 3)
    assert compared([reference, output], [output, output], 1.0).beyond_ties == pytest.approx(1 / 4)


def test_a_number_that_is_infinite_on_one_side_is_no_tie() -> None:
    output, reference = np.array([1.0, np.inf], "float32"), np.array([1.0, 2.0], "float32")
    assert compared([output], [reference], 1.0).beyond_ties == np.inf
