"""The rule of agreement: what rounding may do passes, and what it may not fails."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fractune_core.agreement import ALWAYS_THE_SAME, NOT_FINITE, Precision, Verdict, blank_outputs, judge, nothing_shown

Array = npt.NDArray[Any]
F32 = np.float32


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


def judged(output: Any, wanted: Any, others: Sequence[Any] = (), precision: Precision | None = None) -> Verdict:
    """Of one output; `others` are as right as `wanted`."""
    outputs, reference = [np.asarray(output)], [np.asarray(wanted)]
    return judge(
        outputs, reference, lambda: [reference, *([np.asarray(each)] for each in others)], precision or Precision()
    )


def test_small_outputs_agree_if_right_ones_lie_as_far_apart() -> None:
    """A detector's scores on noise: 1e-5 at most, and as far apart as the rounding of a sigmoid puts them."""
    wanted = np.full((1, 100, 100), 9.8e-6, F32)
    output = wanted + F32(1.8e-7)
    assert not judged(output, wanted, [wanted, wanted]).agrees
    assert judged(output, wanted, [wanted, wanted + F32(6e-8)]).agrees
    assert not judged(output + F32(1e-6), wanted, [wanted, wanted + F32(6e-8)]).agrees


def test_others_are_computed_only_where_outputs_do_not_lie_close_together() -> None:
    def never() -> list[list[Array]]:
        raise AssertionError

    found = judge([floats(1.0, 2.0)], [floats(1.0, 2.001)], never, Precision())
    assert found.agrees
    assert found.difference == pytest.approx(5e-4, rel=1e-3)


def test_wrong_scores_beside_large_pixels_differ() -> None:
    """An output of a detector: four rows of pixels, then rows of scores."""
    rng = np.random.default_rng(0)
    wanted = np.concatenate([rng.uniform(0, 640, (1, 4, 400)), rng.uniform(0, 1, (1, 8, 400))], axis=1).astype(F32)
    output = wanted.copy()
    output[:, 6] = 0.5
    assert np.abs(output - wanted).max() < 1e-3 * wanted.max()
    assert not judged(output, wanted, [wanted * F32(1 + 1e-6)]).agrees
    assert judged(wanted * F32(1 + 1e-5), wanted).agrees


def test_numbers_that_are_zero_but_for_rounding_agree_with_zeros() -> None:
    wanted = np.zeros((4, 64), F32)
    wanted[0] = 100.0
    output = wanted.copy()
    output[2, 5] = 1e-6
    assert judged(output, wanted, [wanted]).agrees


@pytest.mark.parametrize(
    ("output", "wanted", "agrees"),
    [
        ([np.nan, 1], [np.nan, 1], True),
        ([np.inf, -np.inf], [np.inf, -np.inf], True),
        ([np.inf, 1], [-np.inf, 1], False),
        ([0, 1], [np.nan, 1], False),
        ([np.nan, 1], [0, 1], False),
        ([1e-40, 1], [0, 1], True),
        ([3.4e38, 1], [np.inf, 1], True),
        ([3e37, 1], [np.inf, 1], False),
    ],
)
def test_a_number_is_not_a_nan_and_a_tiny_one_is_zero(
    output: list[float], wanted: list[float], *, agrees: bool
) -> None:
    assert judged(floats(*output), floats(*wanted), [floats(*wanted)]).agrees == agrees


def test_there_is_no_verdict_where_right_outputs_differ_in_kind() -> None:
    wanted, fused = floats(np.nan, 1, 2), floats(0, 1, 2)
    found = judged(floats(0, 1, 2), wanted, [fused])
    assert (found.agrees, found.decided) == (True, 2)
    assert not judged(floats(0, 5, 2), wanted, [fused]).agrees


def test_an_index_may_differ_where_moved_inputs_change_it() -> None:
    wanted, moved = np.array([3, 7, 2]), np.array([3, 6, 2])
    assert judged([3, 5, 2], wanted, [moved]).agrees
    assert not judged([4, 7, 2], wanted, [moved]).agrees, "no moved input changes this one"
    assert not judged([3, -1, 2], wanted, [moved]).agrees, "no right output has such an index"
    assert not judged([3, 8, 2], wanted, [moved]).agrees


def test_a_shape_that_depends_on_rounding_has_no_verdict() -> None:
    wanted = np.zeros((2, 5), np.int64)
    assert judged(np.zeros((2, 4), np.int64), wanted, [np.zeros((2, 6), np.int64)]).agrees
    assert not judged(np.zeros((2, 4), np.int64), wanted, [wanted]).agrees


def test_half_precision_and_quantized_outputs_may_lie_further_apart() -> None:
    wanted = np.array([1.0, 2.0], np.float16)
    assert judged(np.array([1.01, 2.0], np.float16), wanted, precision=Precision(half=True)).agrees
    assert not judged(np.array([1.1, 2.0], np.float16), wanted, [wanted], Precision(half=True)).agrees
    steps = np.array([3, 200], np.uint8)
    assert judged(np.array([4, 200], np.uint8), steps, precision=Precision(quantized=True)).agrees
    assert not judged(np.array([90, 200], np.uint8), steps, [steps], Precision(quantized=True)).agrees
    assert not judged([False, True], [True, True], [[True, True]], Precision(quantized=True)).agrees


def test_many_small_differences_of_a_quantizing_model_are_no_steps() -> None:
    """Single numbers jump as far as a wrong weight moves them, but not all of them at once."""
    rng = np.random.default_rng(0)
    wanted = rng.normal(0, 1, 4096).astype(F32)
    steps = [wanted + 0.8 * (rng.random(4096) < 0.01).astype(F32) for _ in range(4)]
    jumped, faulty = steps.pop(), wanted + rng.uniform(-1, 1, 4096).astype(F32)
    precision = Precision(quantized=True)
    assert float(np.abs(faulty - wanted).max()) < 4 * 0.8
    assert judged(jumped, wanted, steps, precision).agrees
    assert not judged(faulty, wanted, steps, precision).agrees


def test_outputs_that_are_no_numbers_or_never_change_say_nothing() -> None:
    nan, mixed, numbers = np.full(20, np.nan, F32), np.array([np.nan] * 10 + [1] * 10, F32), np.ones(20, F32)
    assert blank_outputs([[nan, mixed, numbers]]) == {0: NOT_FINITE}
    assert blank_outputs([[nan, mixed, numbers], [nan, mixed, 2 * numbers]]) == {0: NOT_FINITE}
    assert blank_outputs([[numbers, np.zeros(0)], [numbers, np.zeros(0)]]) == dict.fromkeys(range(2), ALWAYS_THE_SAME)
    assert blank_outputs([[np.array([3])], [np.array([3, 4])]]) == {}
    assert nothing_shown([[nan, numbers], [nan, numbers]]) == f"{NOT_FINITE} or {ALWAYS_THE_SAME}"
    assert nothing_shown([[nan, numbers], [nan, 2 * numbers]]) == ""
    assert nothing_shown([]) == ""
