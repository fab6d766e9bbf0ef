"""DFT and STFT as products with constant matrices of cosines and sines. Exported models have short, fixed lengths."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, dtype_of, shape_of

_MOST_ELEMENTS = 1 << 24
"""Of one of the two matrices: 4,096 samples and as many frequencies"""
_AXIS_IS_INPUT = 20
"""The first opset in which `DFT` reads its axis"""


def _dft(node: OnnxNode) -> relax.Expr:
    x = node.input(0)
    rank = len(shape_of(x))
    if node.opset < _AXIS_IS_INPUT:
        axis = int(node.attributes.get("axis", 1))
    else:
        given = node.constant(2)
        if given is None and node.optional(2) is not None:
            raise node.refused("its axis is computed; make it a constant")
        axis = -2 if given is None else int(given.reshape(-1)[0])
    if not -rank <= axis < rank or axis % rank == rank - 1:
        raise node.refused(f"axis {axis} is not one of the {rank - 1} axes of samples; export the model again")
    inverse = bool(node.attributes.get("inverse", 0))
    samples = shape_of(x)[axis]
    length = _number(node, 1, 2 * (samples - 1) if inverse and node.attributes.get("onesided", 0) else samples)
    return _transformed(node, x, axis % rank, length, inverse=inverse)


def _stft(node: OnnxNode) -> relax.Expr:
    """Frames of the signal, each times the window, are transformed."""
    signal, window = node.input(0), node.optional(2)
    step = _number(node, 1, 0)
    length = _number(node, 3, shape_of(window)[0] if window is not None else 0)
    whole = shape_of(signal)[1]
    if step < 1 or not 0 < length <= whole:
        raise node.refused(f"frames of {length} by {step} do not fit {whole} samples; export it with other lengths")
    places = np.add.outer(np.arange(0, whole - length + 1, step), np.arange(length))
    if len(shape_of(signal)) == 2:
        signal = node.emit(relax.op.expand_dims(signal, -1))
    frames = node.emit(relax.op.take(signal, relax.const(places, "int64"), axis=1))
    if window is not None:
        frames = node.emit(relax.op.multiply(frames, node.emit(relax.op.reshape(window, [length, 1]))))
    return _transformed(node, frames, 2, length, inverse=False, default_onesided=1)


def _number(node: OnnxNode, index: int, default: int) -> int:
    """A constant input that is one number."""
    given = node.constant(index)
    if given is None and node.optional(index) is not None:
        raise node.refused(f"its input '{node.proto.input[index]}' is computed; make it a constant")
    return default if given is None else int(given.reshape(-1)[0])


def _transformed(
    node: OnnxNode, x: relax.Expr, axis: int, length: int, *, inverse: bool, default_onesided: int = 0
) -> relax.Expr:
    """The transform along an axis of a tensor whose last axis has the real part, or both parts."""
    onesided = bool(node.attributes.get("onesided", default_onesided))
    shape, dtype = shape_of(x), dtype_of(x)
    samples, parts = shape[axis], shape[-1]
    if parts not in (1, 2):
        raise node.refused(f"its last axis has {parts} numbers, and only 1 or 2 are one number; export the model again")
    if length < 1:
        raise node.refused(f"it transforms {length} samples; export it with a length of 1 or more")
    if onesided and not inverse and parts != 1:
        raise node.refused("onesided=1 is for real numbers, and its input is complex; export it with onesided=0")
    count = length // 2 + 1 if onesided and not inverse else length
    if samples * count > _MOST_ELEMENTS:
        raise node.refused(f"{samples} samples to {count} frequencies are too many for a matrix; use shorter frames")
    last = [*(each for each in range(len(shape) - 1) if each != axis), axis]
    back = [last.index(each) for each in range(len(shape) - 1)]
    angles = 2 * np.pi * (np.outer(np.arange(samples), np.arange(count)) % length) / length
    used = _used(samples, length, inverse=inverse, onesided=onesided)[:, None]
    cosines, sines = np.cos(angles) * used, np.sin(angles) * (used if inverse else -used)

    def product(part: int, matrix: np.ndarray[Any, Any]) -> relax.Expr:
        taken = node.emit(relax.op.take(x, relax.const(part, "int64"), axis=-1))
        moved = node.emit(relax.op.permute_dims(taken, last))
        made = node.emit(relax.op.matmul(moved, relax.const(matrix, dtype)))
        return node.emit(relax.op.permute_dims(made, back))

    real = product(0, cosines)
    if parts > 1:
        real = node.emit(relax.op.subtract(real, product(1, sines)))
    if inverse and onesided:
        return relax.op.expand_dims(real, -1)
    imaginary = product(0, sines)
    if parts > 1:
        imaginary = node.emit(relax.op.add(imaginary, product(1, cosines)))
    return relax.op.stack([real, imaginary], axis=-1)


def _used(samples: int, length: int, *, inverse: bool, onesided: bool) -> np.ndarray[Any, Any]:
    """How much each sample counts: those beyond the length for nothing, and half a spectrum for the other half too."""
    places = np.arange(samples)
    if not inverse:
        return np.where(places < length, 1.0, 0.0)
    mirrored = onesided & (places > 0) & (2 * places < length)
    return np.where(places < (length // 2 + 1 if onesided else length), np.where(mirrored, 2.0, 1.0), 0.0) / length


FOURIER: Mapping[str, Converter] = {"DFT": _dft, "STFT": _stft}
"""by ONNX's names"""
