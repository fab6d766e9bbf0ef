"""Whether a bundle for several shapes may pad: outputs of padded inputs are compared with those of exact inputs.

Inputs with the exact shapes of a bucket run in that bucket, and padded in each larger one. Inputs between two buckets
run padded in both of two larger ones. All outputs must agree at the real positions, for values of several kinds. Behind
positive values a maximum over the length does not show zeros of the padding, and among many positions rarely any.
Attention with a mask, a convolution over the length and normalization by token agree. A mean over the length without
the mask does not, nor does a scale of dynamic quantization that is taken over the padding too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fractune.inference.bucketed_model import BucketedModel
from fractune.inference.comparing.agreement import rounding
from fractune.inference.comparing.interleaved import differences
from fractune.inference.comparing.typical_inputs import are_finite, highest_integers, is_mask, typical_inputs
from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.files.buckets import UNKNOWN, OpenAxes, Padding, sizes_text

if TYPE_CHECKING:
    import numpy as np

    from fractune.inference.tvm_runtime.tensors import Array

_KINDS = ("positive", "normal", "normal", "normal", "negative", "constant", "constant", "last", "last")
"""of values; each comparison is made with each of them, by a seed of its own. `constant`: all positions are alike, as
if there were one. `last`: only the last position is not zero"""
_MOST_PAIRS = 48
"""of buckets and inputs, so that many buckets do not take minutes"""


def compare_padded(model: BucketedModel, accepted: float = 0.0) -> Padding:
    """What the bundle may pad. Differences up to `accepted`, over the largest value of an output, do not prevent it."""
    unknown = [name for name, axes in model.axes.outputs.items() if UNKNOWN in axes]
    if unknown:
        return Padding(
            proved=False, reason=f"the output '{unknown[0]}' has an axis whose size is that of no input's axis"
        )
    if len(model.buckets) == 1:
        return Padding(proved=False, reason="the bundle has one bucket, so there is nothing to compare with")
    largest, compared = 0.0, set()
    highs = known_integers(model)
    for sizes, buckets in _comparisons(model):
        for seed, kind in enumerate(_KINDS):
            inputs = inputs_of(model.inputs, model.axes, sizes, seed, highs, kind)
            reference, *others = (model.run_in(bucket, inputs) for bucket in buckets)
            if not are_finite(reference):  # such as the square root of a negative value
                continue
            for outputs, bucket in zip(others, buckets[1:], strict=True):
                worst, name = _worst(model, outputs, reference)
                if worst > max(rounding(reference), accepted):
                    refusal = _refusal(model, name, worst, sizes, bucket)
                    return Padding(proved=False, reason=refusal, max_rel_difference=worst)
                largest = max(largest, worst)
        compared.add(sizes_text(sizes))
    if not compared:
        return Padding(proved=False, reason="no bucket is larger than another one in all axes")
    texts = sorted(compared, key=lambda text: [int(part) for part in text.split() if part.isdecimal()])
    reason = f"inputs of {', '.join(texts)} gave the same outputs in larger buckets"
    return Padding(proved=True, reason=reason, max_rel_difference=largest)


def known_integers(model: BucketedModel) -> dict[str, int]:
    """As `highest_integers`, found in the smallest bucket."""
    specs = _sized(model.inputs, model.axes, model.bucket_sizes[0])
    return highest_integers(specs, lambda inputs: model.run_in(0, inputs))


def inputs_of(
    specs: Sequence[TensorSpec],
    axes: OpenAxes,
    sizes: Mapping[str, int],
    seed: int,
    highs: Mapping[str, int],
    kind: str = "positive",
) -> dict[str, Array]:
    """Random inputs with these sizes of the open axes, of one of `_KINDS`; a mask is all ones. `highs` are numbers
    below which integers of an input lie, by name; 0 and 1 for the others.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    made = typical_inputs(_sized(specs, axes, sizes), highs, seed)
    for name, array in made.items():
        if not is_mask(name):
            if array.dtype.kind == "f":
                array[...] = _floats(kind, rng, array)
            _arrange(kind, array, [place for place, symbol in enumerate(axes.inputs[name]) if symbol is not None])
    return made


def _floats(kind: str, rng: np.random.Generator, array: Array) -> Array:
    """`array` has values between 0.1 and 1."""
    if kind == "positive":
        return array
    return -array if kind == "negative" else rng.standard_normal(array.shape).astype(array.dtype)


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


def _comparisons(model: BucketedModel) -> Iterator[tuple[dict[str, int], list[int]]]:
    """Sizes of inputs, and the buckets to run them in, the smallest first."""
    found = 0
    held = model.bucket_sizes
    for sizes in held:
        between = [{**sizes, symbol: size + 1} for symbol, size in sizes.items()]
        for each in (sizes, *between):
            buckets = [other for other, large in enumerate(held) if all(large[name] >= each[name] for name in each)]
            if len(buckets) > 1 and found < _MOST_PAIRS:
                found += len(buckets) - 1
                yield each, buckets


def _worst(model: BucketedModel, outputs: Sequence[Array], reference: Sequence[Array]) -> tuple[float, str]:
    pairs = zip(model.outputs, outputs, reference, strict=True)
    return max((differences([output], [wanted])[1], spec.name) for spec, output, wanted in pairs)


def _refusal(model: BucketedModel, name: str, worst: float, sizes: Mapping[str, int], bucket: int) -> str:
    return (
        f"the output '{name}' of inputs of {sizes_text(sizes)} differs by {worst:.2g} of its largest value in the "
        f"bucket of {sizes_text(model.bucket_sizes[bucket])}"
    )
