"""Inputs of a request, padded to the shapes of a bucket, and the real part of its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.tensors import TensorSpec, array_of, numpy_dtype, open_arrays
from fractune_core.errors import BadRequest
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
    made = {}
    for spec, given in zip(specs, open_arrays(specs, inputs), strict=True):
        whole = array_of(spec)
        whole[...] = pad.get(spec.name, 0)
        whole[tuple(map(slice, given.shape))] = given
        made[spec.name] = whole
    return made


def check_pad(specs: Sequence[TensorSpec], pad: Mapping[str, float]) -> None:
    """Raises BadRequest for a number that the type of its input cannot hold."""
    import numpy as np

    for spec in specs:
        number, dtype = pad.get(spec.name, 0), numpy_dtype(spec.dtype)
        try:
            with np.errstate(over="ignore"):
                held = np.array(number).astype(dtype) if dtype.kind not in "iub" else np.array(number, dtype)
            fits = bool(np.isfinite(held.astype("float64"))) and (dtype.kind not in "iub" or float(held) == number)
        except OverflowError:
            fits = False
        if not fits:
            raise BadRequest(f"--pad {spec.name}={number:g}: the input is of the type {spec.dtype}; give such a number")


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
