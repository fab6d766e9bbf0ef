"""Whether a bundle for several shapes may pad: outputs of padded inputs are compared with those of exact inputs.

Inputs with the exact shapes of a bucket run in that bucket, and padded in each larger one. Inputs between two buckets
run padded in both of two larger ones. All outputs must agree at the real positions, for values of several kinds. Behind
positive values a maximum over the length does not show zeros of the padding, and among many positions rarely any.
Attention with a mask, a convolution over the length and normalization by token agree. A mean over the length without
the mask does not, nor does a scale of dynamic quantization that is taken over the padding too.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fractune.comparing.beside import Contenders, time_beside_runtimes
from fractune_core.agreement import differences, nothing_shown, rounding
from fractune_core.errors import BadModel, FractuneError
from fractune_core.files.buckets import UNKNOWN, OpenAxes, Padding, sizes_text
from fractune_core.files.compared import ONNX_RUNTIME, OURS, Between, Compared, Runtime
from fractune_core.model_inputs import is_mask
from fractune_runtime.bucketed_model import BucketedModel
from fractune_runtime.sessions import Feeder, open_session, open_shapes, settings_of
from fractune_runtime.tvm_runtime.drawing import accepted_integers, telling_ranges, typical_inputs
from fractune_runtime.tvm_runtime.tensors import Array, TensorSpec

if TYPE_CHECKING:
    import numpy as np


_FEW_KINDS = ("positive", "normal", "masked", "last", "last")
_KINDS = (*(*_FEW_KINDS, "normal", "normal", "negative", "constant", "constant"), *("masked", "tiny", "large", "zero"))
"""of values; each comparison is made with each of them, by a seed of its own. `constant`: all positions are alike, as
if there were one. `last`: only the last position is not zero. `masked`: a mask hides some positions"""
_SCALES = {"tiny": 1e-3, "zero": 0.0}
_LARGE = 100
_MOST_PAIRS = 48
"""of buckets and inputs, so that many buckets do not take minutes"""
_DISAGREES = 5e-2
"""Outputs of a bucket's own shapes that lie further from the exact ones show another arithmetic, which proves nothing.
"""

Exact = Callable[[dict[str, "Array"]], "list[Array]"]


def compare_padded(model: BucketedModel, accepted: float = 0.0, exact: Exact | None = None) -> Padding:
    """What the bundle may pad. Differences up to `accepted`, over the largest value of an output, do not prevent it.

    `exact` runs inputs of any size as they are, and raises BadModel where it cannot. With it, outputs are compared
    between the buckets and below them too; without it, inputs between two buckets have no reference but each other.
    """
    unknown = [name for name, axes in model.axes.outputs.items() if UNKNOWN in axes]
    if unknown:
        return Padding(
            proved=False, reason=f"the output '{unknown[0]}' has an axis whose size is that of no input's axis"
        )
    if len(model.buckets) == 1:
        return Padding(proved=False, reason="the bundle has one bucket, so there is nothing to compare with")
    proof = _Proof(model, known_ranges(model, exact), accepted, exact)
    for sizes, buckets, kinds in _comparisons(model, between=proof.exact is not None):
        for seed, kind in enumerate(kinds):
            if wrong := proof.compare(sizes, buckets, seed, kind):
                return wrong
    if not proof.compared:
        return Padding(proved=False, reason="no bucket is larger than another one in all axes")
    if blank := proof.nothing_shown:
        return Padding(proved=False, reason=f"the outputs are {blank}, so that equal ones prove nothing")
    return Padding(proved=True, reason=proof.reason, max_rel_difference=proof.largest)


class _Proof:
    """The comparisons of one bundle."""

    def __init__(self, model: BucketedModel, within: Mapping[str, range], accepted: float, exact: Exact | None) -> None:
        self._model, self._within, self._accepted = model, within, accepted
        self.largest = 0.0
        self.compared: dict[str, list[int]] = {}
        """sizes by their text"""
        self._references: dict[str, list[list[Array]]] = {}
        """by the same texts"""
        own = math.inf if exact is None else self._own_difference(exact)
        self.exact, self._own = (exact, own) if own <= _DISAGREES else (None, 0.0)

    def _own_difference(self, exact: Exact) -> float:
        """How far outputs of the buckets' own shapes lie from the exact ones; infinite if these cannot be had."""
        worst = 0.0
        for bucket, sizes in enumerate(self._model.bucket_sizes):
            inputs = self._inputs(sizes, 0, _FEW_KINDS[0])
            try:
                worst = max(worst, _worst(self._model, self._model.run_in(bucket, inputs), exact(inputs))[0])
            except BadModel:
                return math.inf
        return worst

    def _inputs(self, sizes: Mapping[str, int], seed: int, kind: str) -> dict[str, Array]:
        return inputs_of(self._model.inputs, self._model.axes, sizes, seed, self._within, kind)

    def compare(self, sizes: dict[str, int], buckets: Sequence[int], seed: int, kind: str) -> Padding | None:
        """The refusal, if outputs of inputs of these sizes differ in one of the buckets."""
        inputs = self._inputs(sizes, seed, kind)
        given = [(bucket, self._model.run_in(bucket, inputs)) for bucket in buckets]
        self.compared[sizes_text(sizes)] = list(sizes.values())
        try:
            exact = None if self.exact is None else self.exact(inputs)
        except BadModel as error:
            if kind != _FEW_KINDS[0]:  # such as an index below 0
                return None
            return Padding(proved=False, reason=f"inputs of {sizes_text(sizes)} cannot run as they are: {error}")
        reference = exact if exact is not None else given[0][1]
        self._references.setdefault(sizes_text(sizes), []).append(list(reference))
        allowed = max(rounding(reference, self._own), self._accepted)
        for bucket, outputs in given if exact is not None else given[1:]:
            worst, name = _worst(self._model, outputs, reference)
            if worst > allowed:
                refusal = _refusal(self._model, name, worst, sizes, bucket)
                return Padding(proved=False, reason=refusal, max_rel_difference=worst)
            self.largest = max(self.largest, worst)
        return None

    @property
    def nothing_shown(self) -> str:
        """As the function, if it is true of all sizes."""
        found = [nothing_shown(runs) for runs in self._references.values()]
        return found[0] if all(found) else ""

    @property
    def reason(self) -> str:
        texts = ", ".join(sorted(self.compared, key=lambda text: self.compared[text]))
        if self.exact is not None:
            return f"inputs of {texts} gave the same outputs as in ONNX Runtime, which pads nothing"
        return (
            f"inputs of {texts} gave the same outputs in larger buckets; between two, nothing else was there to compare"
        )


def known_ranges(model: BucketedModel, exact: Exact | None) -> dict[str, range]:
    """As `accepted_integers` and `telling_ranges`, found at the shapes of the smallest bucket."""
    specs = _sized(model.inputs, model.axes, model.bucket_sizes[0])
    run = exact or (lambda inputs: model.run_in(0, inputs))
    return telling_ranges(specs, run, accepted_integers(specs, run))


def inputs_of(
    specs: Sequence[TensorSpec],
    axes: OpenAxes,
    sizes: Mapping[str, int],
    seed: int,
    within: Mapping[str, range],
    kind: str = "positive",
) -> dict[str, Array]:
    """Random inputs with these sizes of the open axes, of one of `_KINDS`; unless that is `masked`, a mask is all
    ones. Numbers lie `within` the range of their input; integers of the others are 0 and 1.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    made = typical_inputs(_sized(specs, axes, sizes), within, seed)
    for name, array in made.items():
        if is_mask(name):
            if kind == "masked":
                array[..., 1:] = rng.integers(0, 2, array[..., 1:].shape)
        else:
            if array.dtype.kind == "f" and name not in within:
                array[...] = _floats(kind, rng, array)
            elif array.dtype.kind == "i" and kind == "negative":
                array[...] = -1 - array
            _arrange(kind, array, [place for place, symbol in enumerate(axes.inputs[name]) if symbol is not None])
    return made


def _floats(kind: str, rng: np.random.Generator, array: Array) -> Array:
    """`array` has values between 0.1 and 1."""
    if kind == "positive":
        return array
    if kind in {"negative", "large"}:
        return -array if kind == "negative" else _LARGE * array
    made: Array = (_SCALES.get(kind, 1.0) * rng.standard_normal(array.shape)).astype(array.dtype)
    return made


def _arrange(kind: str, array: Array, open_axes: Sequence[int]) -> None:
    """Change the values along the open axes, for the kinds that are about positions."""
    for axis in open_axes:
        size = array.shape[axis]
        if kind == "constant":
            array[...] = array.take([0] * size, axis)
        elif kind == "last":
            array[(slice(None),) * axis + (slice(0, size - 1),)] = 0


def _sized(specs: Sequence[TensorSpec], axes: OpenAxes, sizes: Mapping[str, int]) -> list[TensorSpec]:
    def sized(spec: TensorSpec) -> TensorSpec:
        pairs = zip(axes.inputs[spec.name], spec.shape, strict=True)
        return replace(spec, shape=tuple(sizes.get(symbol or "", dim) for symbol, dim in pairs))

    return list(map(sized, specs))


def _comparisons(model: BucketedModel, *, between: bool) -> Iterator[tuple[dict[str, int], list[int], tuple[str, ...]]]:
    """Sizes of inputs, the buckets to run them in, and the kinds of values. The shapes of buckets and a little larger
    ones run in all that hold them. With `between` some of all sizes that are padded follow.
    """
    seen: list[dict[str, int]] = []
    for sizes, buckets in _in_several(model):
        seen.append(sizes)
        yield sizes, buckets, _KINDS
    for sizes, bucket in _between(model) if between else ():
        if sizes not in seen:
            yield sizes, [bucket], _FEW_KINDS


def _in_several(model: BucketedModel) -> Iterator[tuple[dict[str, int], list[int]]]:
    """Sizes that several buckets hold, and these, the smallest first."""
    found = 0
    held = model.bucket_sizes
    for sizes in held:
        larger = [{**sizes, symbol: size + 1} for symbol, size in sizes.items()]
        for each in (sizes, *larger):
            buckets = [other for other, large in enumerate(held) if all(large[name] >= each[name] for name in each)]
            if len(buckets) > 1 and found < _MOST_PAIRS:
                found += len(buckets) - 1
                yield each, buckets


def _between(model: BucketedModel) -> Iterator[tuple[dict[str, int], int]]:
    """Some sizes that run padded, and their buckets: the smallest, the largest and middle ones."""
    for bucket, sizes in enumerate(model.bucket_sizes):
        for symbol, low in gaps(model.bucket_sizes, bucket):
            high = sizes[symbol] - 1
            middle = (low + high) // 2
            for size in sorted({low, min(low + 1, high), middle, min(middle + 1, high), high}):
                yield {**sizes, symbol: size}, bucket


def gaps(buckets: Sequence[Mapping[str, int]], bucket: int) -> Iterator[tuple[str, int]]:
    """Each open axis along which smaller sizes run padded in the bucket, and the smallest of these sizes."""
    sizes = buckets[bucket]
    for symbol, size in sizes.items():
        others = (each for each in buckets if all(each[name] >= sizes[name] for name in sizes if name != symbol))
        low = 1 + max((each[symbol] for each in others if each[symbol] < size), default=0)
        if low < size:
            yield symbol, low


def _worst(model: BucketedModel, outputs: Sequence[Array], reference: Sequence[Array]) -> tuple[float, str]:
    pairs = list(zip(model.outputs, outputs, reference, strict=True))
    other = next((spec.name for spec, output, wanted in pairs if output.shape != wanted.shape), None)
    if other is not None:
        return math.inf, other
    return max((differences([output], [wanted])[1], spec.name) for spec, output, wanted in pairs)


def _refusal(model: BucketedModel, name: str, worst: float, sizes: Mapping[str, int], bucket: int) -> str:
    return (
        f"the output '{name}' of inputs of {sizes_text(sizes)} differs by {worst:.2g} of its largest value in the "
        f"bucket of {sizes_text(model.bucket_sizes[bucket])}"
    )


# A padded run beside other runtimes, at sizes between the shapes of a bundle.
#
# A padded run takes as long as its bucket, whatever the size of the request; another runtime takes less for a smaller
# one. So it is enough to find the largest size at which a runtime is faster: it is faster at all smaller ones too.

_PART = 8
"""Where the predicted size is not it, the largest size is found to this part of those between two buckets"""
_IN_TURN = 4
"""sizes in one contest"""
_SAFE = 0.95
"""of the predicted way from the smallest size"""


def time_between_shapes(
    model: BucketedModel, bucket: int, file: Contenders, exact: Compared
) -> tuple[list[Between], dict[str, Runtime]]:
    """What is compared at sizes that run padded in the bucket, along each open axis, and the runtimes. `exact` was
    compared at the bucket's own shapes.
    """
    found: list[Between] = []
    within = known_ranges(model, exact_outputs(model, file.onnx))
    used: dict[str, Runtime] = {}
    for symbol, low in gaps(model.bucket_sizes, bucket):
        left = [name for name in exact.times if name != OURS]

        def compare(size: int, symbol: str = symbol, low: int = low, left: Sequence[str] = left) -> Compared:
            whole = model.bucket_sizes[bucket]
            several = [{**whole, symbol: each} for each in near(size, low, whole[symbol])]
            requests = [inputs_of(model.inputs, model.axes, sizes, 0, within) for sizes in several]
            compared, there = time_beside_runtimes(model, requests, file, left)
            used.update(there)
            found.append(Between({**whole, symbol: size}, compared))
            return compared

        smallest = compare(low)
        left[:] = smallest.faster  # one that loses at the smallest size loses at all
        if left:
            high = model.bucket_sizes[bucket][symbol]
            guess = low + int(_SAFE * part_of_gap(smallest, exact) * (high - low))
            find_largest(low, high, guess, lambda size: bool(compare(size).faster))
    return found, used


def near(size: int, low: int, high: int) -> range:
    """The sizes whose requests take turns in the contest at `size`: this one and those below it, from `low` on. At the
    smallest sizes they are larger ones, below `high`.

    A runtime may prepare itself for another size: OpenVINO takes longer for it than for the same one again.
    """
    first = max(low, size - _IN_TURN + 1)
    return range(first, min(first + _IN_TURN, high))


def part_of_gap(smallest: Compared, exact: Compared) -> float:
    """The part of the way from the smallest size to the bucket's own at which a runtime should be as slow as a padded
    run. Its time is taken to grow in proportion; of several runtimes it is the largest part.
    """
    padded_s = smallest.times[OURS].paced_s
    rises = {name: exact.times[name].paced_s - smallest.times[name].paced_s for name in smallest.faster}
    lefts = {name: padded_s - smallest.times[name].paced_s for name in smallest.faster}
    return max(1.0 if rises[name] <= lefts[name] else max(0.0, lefts[name] / rises[name]) for name in rises)


def find_largest(low: int, high: int, guess: int, holds: Callable[[int], bool]) -> None:
    """Call `holds` of sizes between `low`, where it holds, and `high`, where it need not. The first is the `guess`; if
    it does not hold there, smaller ones follow until the largest is known to a part of them.
    """
    step = max(1, (high - low) // _PART)
    if guess <= low or holds(guess):
        return
    high = guess
    while high - low > step:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)


def exact_outputs(model: BucketedModel, onnx: bytes) -> Exact | None:
    """Runs inputs of the bundle's `model` on all cores of its share; None where ONNX Runtime is missing, or cannot load
    the file.
    """
    if importlib.util.find_spec(ONNX_RUNTIME) is None:
        return None
    cpus = model.share.cpus[: model.share.units]
    try:
        settings, shapes = settings_of(ONNX_RUNTIME), open_shapes(model.inputs)
        session = open_session(ONNX_RUNTIME, onnx, model.bundle.name, len(cpus), cpus, settings, shapes)
        feed_of = Feeder(model.bundle.manifest, session)
    except FractuneError:
        return None

    def run(inputs: dict[str, Array]) -> list[Array]:
        return session.run(feed_of(inputs))

    return run
