"""The rule by which outputs agree with a reference's. A wrong "they differ" costs more than none, so it is judged by
what rounding can do in this very model.

Two outputs that lie close together (`rounding`) agree. For others, the caller computes outputs that are as right as one
another. A session that fuses operators gives them, and one that does not, and runs on inputs and weights that are moved
by some roundings. How far these lie from the first of them is the noise of the model. Behind a subtraction, or in the
tail of a sigmoid, it goes by the magnitudes inside of the model, not by the output's own. A number agrees if it lies
within a few times the noise of the numbers beside it. Behind a quantization, where single numbers jump by steps, the
root mean square of the whole output counts too. Where the right outputs disagree in kind (a NaN, an index, a shape),
nothing is judged.

An agreement says nothing of an output that is mostly NaN, or that is the same on all inputs that were tried
(`blank_outputs`): a wrong model may give it too.

Numbers are compared with the largest of their slice, not of the whole output: an output may hold pixels and
probabilities. Numbers below the smallest normal one are zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Array = npt.NDArray[Any]

HALF_TYPES = ("float16", "bfloat16")
_ROUNDING, _HALF_ROUNDING = 1e-3, 2e-2
"""differences that are rounding, over the largest value"""
QUANTIZED_ROUNDING = 5e-2
"""the same where the model quantizes data: a difference in the last bit may become a whole step"""
_LEAST_ROUNDING = 2.0**-20
"""the same over the largest value of the whole output: a slice may be all zeros but for rounding"""
_OWN_DIFFERENCES = 3.0
"""the same, in differences of outputs that are known to be right"""
_NOISES = 4.0
"""Right outputs may lie this many times as far from the reference as the noise"""
_MEAN_NOISES = 2.5
"""The same over all numbers of an output that is quantized, by root mean square: a step moves single ones far, and
hides a wrong weight among them"""
_SLICE = 32
"""elements of the smallest slice that has a largest value of its own"""
_TIES, _MANY = 0.01, 100
"""part of an output's integers that may be ties which no other output shows, of an output with so many elements"""
_STEP_BYTES = 2
"""Integers of so many bytes that a quantizing model gives are steps; wider ones are indices"""
_MOSTLY = 0.9
"""part of an output's numbers"""
_NEARLY = 0.9
"""A number above this part of its type's largest may as well be infinite"""
_LEAST_SCALES = {"float64": 1e-300}
_LEAST_SCALE = 1e-30
"""of the other types, which have the exponents of float32 or fewer"""


@dataclass(frozen=True)
class Precision:
    """How the model rounds."""

    half: bool = False
    quantized: bool = False
    step: float = QUANTIZED_ROUNDING
    """a difference that steps may make in a quantizing model, over the largest value of the output, whatever the right
    outputs show"""

    @property
    def rounding(self) -> float:
        if self.quantized:
            return self.step
        return _HALF_ROUNDING if self.half else _ROUNDING


@dataclass(frozen=True)
class Verdict:
    """The worst of some outputs."""

    difference: float
    """largest difference with a verdict, over the largest value of its output; infinite for another kind"""
    differs_at: int | None = None
    """the first output that differs"""
    decided: int = 0
    """elements with a verdict"""

    @property
    def agrees(self) -> bool:
        return self.differs_at is None


def least_scale(dtype: str) -> float:
    """Differences of outputs are taken over their largest value, and over this number if all values are smaller. So
    lost denormals, and sums of them, make no difference.
    """
    return _LEAST_SCALES.get(dtype, _LEAST_SCALE)


def judge(
    outputs: Sequence[Array],
    reference: Sequence[Array],
    right: Callable[[], Sequence[Sequence[Array]]],
    precision: Precision,
) -> Verdict:
    """Compare the outputs with the reference's. `right` computes outputs that are as right as one another, the model's
    own first; it is called at most once, and only if the outputs do not lie close together.
    """
    known: list[Sequence[Sequence[Array]]] = []
    worst, decided, differs_at = 0.0, 0, None
    for place, (output, wanted) in enumerate(zip(outputs, reference, strict=True)):
        found = _judge_one(output, wanted, None, precision)
        if not found.agrees:
            known = known or [right()]
            found = _judge_one(output, wanted, [each[place] for each in known[0]], precision)
        worst, decided = max(worst, found.difference), decided + found.decided
        if differs_at is None and not found.agrees:
            differs_at = place
    return Verdict(worst, differs_at, decided)


def _judge_one(output: Array, wanted: Array, right: Sequence[Array] | None, precision: Precision) -> Verdict:
    import numpy as np

    centre = right[0] if right else wanted
    if any(each.shape != centre.shape for each in right or ()):
        return Verdict(0.0)
    if not output.shape == wanted.shape == centre.shape:
        return Verdict(float("inf"), 0)
    is_step = precision.quantized and wanted.dtype.kind in "iu" and wanted.dtype.itemsize <= _STEP_BYTES
    if wanted.dtype.kind in "biu" and not is_step:
        return _judge_integers(output, wanted, right)
    out, ref = _flushed(output), _flushed(wanted)
    near = right is not None and _near_infinity(out, ref, wanted.dtype)
    kinds = ~_same_kind(out, ref) & ~near
    first, *others = [_flushed(each) for each in right or (wanted,)]
    undecided = np.zeros(ref.shape, bool) | near
    for each in others:
        undecided |= ~_same_kind(each, first)
    distance = _distance(out, ref)
    size = np.where(np.isfinite(ref), np.abs(ref), 0)
    largest = max(float(size.max(initial=0.0)) or 1.0, least_scale(str(wanted.dtype)))
    if precision.quantized:
        allowed = np.full(ref.shape, max(precision.rounding * largest, 1.0 if is_step else 0.0))
    else:
        allowed = np.maximum(precision.rounding * _by_slice(size), _LEAST_ROUNDING * largest)
    if others:
        noise = np.zeros(ref.shape)
        for each in others:
            noise = np.maximum(noise, _distance(each, first))
        spread = np.full(ref.shape, noise.max(initial=0.0)) if precision.quantized else _by_slice(noise)
        means = [_root_mean_square(_distance(each, first)[~undecided]) for each in others]
        if not precision.quantized or _root_mean_square(distance[~undecided]) <= _MEAN_NOISES * max(means):
            allowed = np.maximum(allowed, _NOISES * spread)
    wrong = (kinds | (distance > allowed)) & ~undecided
    decided = int(np.count_nonzero(~undecided))
    if kinds[~undecided].any():
        return Verdict(float("inf"), 0, decided)
    worst = float(distance[~undecided].max(initial=0.0)) / largest
    return Verdict(worst, 0 if wrong.any() else None, decided)


def _root_mean_square(values: Array) -> float:
    import numpy as np

    return float(np.sqrt(np.mean(np.square(values)))) if values.size else 0.0


def _distance(one: Array, other: Array) -> Array:
    """Zero where one of the two is not finite."""
    import numpy as np

    both = np.isfinite(one) & np.isfinite(other)
    found: Array = np.abs(np.where(both, one, 0) - np.where(both, other, 0))
    return found


def _judge_integers(output: Array, wanted: Array, right: Sequence[Array] | None) -> Verdict:
    """Indices and truth values: equal, or ties that rounding decides. A number that no right output has anywhere is
    wrong, whatever ties.
    """
    import numpy as np

    unlike = output != wanted
    if not unlike.any():
        return Verdict(0.0, decided=wanted.size)
    if right is None:
        return Verdict(float("inf"), 0, wanted.size)
    low, high = min(each.min() for each in right), max(each.max() for each in right)
    tied = np.zeros(wanted.shape, bool)
    for each in right:
        tied |= each != right[0]
    impossible = unlike & ((output < low) | (output > high))
    unexplained = np.count_nonzero(unlike & ~tied)
    most = _TIES * wanted.size if wanted.size >= _MANY else 0
    decided = int(np.count_nonzero(~tied))
    if impossible.any() or unexplained > most:
        return Verdict(float("inf"), 0, decided)
    return Verdict(0.0, decided=decided)


def _flushed(array: Array) -> Array:
    """As float64, numbers below the smallest normal one as zero."""
    import numpy as np

    smallest = _finfo(array.dtype)[0]
    with np.errstate(invalid="ignore", over="ignore"):
        wide: Array = array.astype("float64")
        return np.where(np.abs(wide) < smallest, 0.0, wide)


def _finfo(dtype: np.dtype[Any]) -> tuple[float, float]:
    """The smallest normal and the largest number of a type; of integers no limits."""
    import numpy as np

    if dtype.kind == "f":
        info = np.finfo(dtype)
        # Half precision is computed with float32's numbers, whose small ones are those that are flushed.
        return (0.0 if dtype.itemsize == 2 else float(info.tiny)), float(info.max)
    return 0.0, float("inf")


def _same_kind(one: Array, other: Array) -> Array:
    """Where both are numbers, or both NaN, or both the same infinity."""
    import numpy as np

    same: Array = (np.isnan(one) == np.isnan(other)) & (np.isinf(one) == np.isinf(other))
    same &= ~np.isinf(one) | ~np.isinf(other) | (np.sign(one) == np.sign(other))
    return same


def _near_infinity(one: Array, other: Array, dtype: np.dtype[Any]) -> Array:
    """Where one overflowed and the other nearly so."""
    import numpy as np

    edge = _NEARLY * _finfo(dtype)[1]
    near: Array = (np.abs(one) >= edge) & (np.abs(other) >= edge) & (np.sign(one) == np.sign(other))
    near &= np.isinf(one) != np.isinf(other)
    return near


def _by_slice(values: Array) -> Array:
    """For each element the largest value of its slices along all axes, of the slice where that is least. Small slices
    do not count.
    """
    import numpy as np

    found: Array = np.full(values.shape, values.max(initial=0.0))
    for axis, length in enumerate(values.shape):
        if length > 1 and values.size // length >= _SLICE:
            rest = tuple(other for other in range(values.ndim) if other != axis)
            found = np.minimum(found, values.max(axis=rest, keepdims=True))
    return found


def rounding(outputs: Sequence[Array], own: float = 0.0) -> float:
    """The largest difference that counts as rounding, over the largest value of an output. Right outputs of the model
    are known to lie `own` apart.
    """
    return max(Precision(half=is_half(outputs)).rounding, _OWN_DIFFERENCES * own)


NOT_FINITE, ALWAYS_THE_SAME = "NaN or infinite", "the same on all inputs that were tried"


def blank_outputs(runs: Sequence[Sequence[Array]]) -> dict[int, str]:
    """By place, what outputs are if their agreement on these runs says nothing. The runs are right ones on different
    inputs; of a single run only numbers that are not finite are seen.
    """
    import numpy as np

    found = {}
    for place, each in enumerate(zip(*runs, strict=True)):
        if all(_is_mostly_odd(output) for output in each):
            found[place] = NOT_FINITE
        elif len(each) > 1 and all(np.array_equal(output, each[0]) for output in each[1:]):
            found[place] = ALWAYS_THE_SAME
    return found


def _is_mostly_odd(output: Array) -> bool:
    import numpy as np

    if output.dtype.kind in "biu" or not output.size:
        return False
    return float(np.mean(~np.isfinite(output.astype("float64")))) > _MOSTLY


def nothing_shown(runs: Sequence[Sequence[Array]]) -> str:
    """What the outputs of these runs are if an agreement says nothing of any of them, else empty."""
    found = blank_outputs(runs)
    return " or ".join(dict.fromkeys(found.values())) if runs and len(found) == len(runs[0]) else ""


def is_half(outputs: Sequence[Array]) -> bool:
    return any(str(output.dtype) in HALF_TYPES for output in outputs)


def differences(outputs: Sequence[Array], reference: Sequence[Array]) -> tuple[float, float]:
    """Largest absolute difference, and the same over the reference's largest value (`least_scale` at least); infinite
    for NaN.
    """
    import numpy as np

    absolute = relative = 0.0
    for output, wanted in zip(outputs, reference, strict=True):
        out, ref = output.astype("float64"), wanted.astype("float64")
        if not np.array_equal(np.isfinite(out), np.isfinite(ref)):
            return float("inf"), float("inf")
        finite = np.isfinite(ref)
        largest = float(np.abs(out[finite] - ref[finite]).max(initial=0.0))
        highest = float(np.abs(ref[finite]).max(initial=0.0)) or 1.0
        scale = max(highest, least_scale(str(wanted.dtype)))
        absolute, relative = max(absolute, largest), max(relative, largest / scale)
    return absolute, relative
