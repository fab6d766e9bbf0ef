"""Inputs of a request, padded to the shapes of a bucket, and the real part of its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.tensors import TensorSpec, array_of, as_arrays
from fractune_core.files.buckets import OpenAxes

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


def open_specs(specs: Sequence[TensorSpec], axes: Mapping[str, Sequence[str | None]]) -> list[TensorSpec]:
    """The tensors with None for each open axis."""
    return [
        replace(
            spec, shape=tuple(None if symbol else dim for dim, symbol in zip(spec.shape, axes[spec.name], strict=True))
        )
        for spec in specs
    ]


def padded(specs: Sequence[TensorSpec], inputs: Mapping[str, Any], pad: Mapping[str, float]) -> dict[str, Array]:
    """The inputs with the shapes of `specs`: what is missing at the end of an axis is the input's number in `pad`, else
    0. Raises BadRequest for inputs of other types, and for those that do not lie in memory of the CPU.
    """
    as_given = [replace(spec, shape=tuple(inputs[spec.name].shape)) for spec in specs]
    arrays = as_arrays(as_given, inputs)
    made = {}
    for spec in specs:
        given, whole = arrays[spec.name], array_of(spec)
        whole[...] = pad.get(spec.name, 0)
        whole[tuple(map(slice, given.shape))] = given
        made[spec.name] = whole
    return made


def real_part(
    outputs: Iterable[Array], specs: Sequence[TensorSpec], axes: OpenAxes, sizes: Mapping[str, int]
) -> list[Array]:
    """The outputs of padded inputs, without the positions of the padding, as separate arrays."""
    return [
        output[tuple(slice(sizes[symbol]) if symbol else slice(None) for symbol in axes.outputs[spec.name])].copy()
        for spec, output in zip(specs, outputs, strict=True)
    ]


def concatenated(parts: Sequence[Sequence[Array]]) -> list[Array]:
    """The outputs of parts of a batch as those of the whole batch."""
    import numpy as np

    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]
