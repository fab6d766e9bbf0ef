"""Operators as ingest makes them for a GPU, computed by Triton's interpreter and by NumPy.

Run as a program with TRITON_INTERPRET=1. It writes, by case, the largest error relative to the largest output.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import tvm
from tvm import relax, te

from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.triton_kernels.decisions import Decisions
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus

Array = Any
NUMPY_TYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "int8": np.int8}
TARGET = {
    "kind": "cuda",
    "arch": "sm_90",
    "max_threads_per_block": 1024,
    "max_shared_memory_per_block": 49152,
    "thread_warp_size": 32,
}


@dataclass(frozen=True)
class Operator:
    shapes: tuple[tuple[int, ...], ...]
    """of the inputs"""
    emit: Callable[..., Any]
    """with Relax, of a block builder and the inputs"""
    compute: Callable[..., Array]
    """with NumPy in float32, or in whole numbers"""


def erf(x: Array) -> Array:
    """Abramowitz and Stegun, 7.1.26: exact to 1.5e-7."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return np.sign(x) * (1 - series * np.exp(-x * x))


def convolved(x: Array, weights: Array, stride: int, padding: int) -> Array:
    """NHWC by OHWI."""
    x = np.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    rows, columns = ((x.shape[at] - weights.shape[at]) // stride + 1 for at in (1, 2))
    return sum(
        np.einsum(
            "nhwc,oc->nhwo", x[:, i : i + rows * stride : stride, j : j + columns * stride : stride], weights[:, i, j]
        )
        for i in range(weights.shape[1])
        for j in range(weights.shape[2])
    )


def emit_gelu(bb: Any, x: Any, w: Any, bias: Any) -> Any:
    return bb.emit(relax.op.nn.gelu(bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, w)), bias))))


def emit_relu(bb: Any, x: Any, w: Any, bias: Any) -> Any:
    return bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, w)), bias))))


def emit_residual(bb: Any, x: Any, w: Any, bias: Any, other: Any) -> Any:
    return bb.emit(relax.op.add(bb.emit(relax.op.add(bb.emit(relax.op.matmul(x, w)), bias)), other))


def emit_convolution(bb: Any, x: Any, w: Any, bias: Any, *, stride: int = 1, padding: int = 1) -> Any:
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI"}
    made = bb.emit(relax.op.nn.conv2d(x, w, strides=stride, padding=padding, **layouts))
    return bb.emit(relax.op.nn.relu(bb.emit(relax.op.add(made, bias))))


def emit_turned(bb: Any, a: Any, b: Any) -> Any:
    """Both factors lie the other way round."""

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[0]), name="k")
        return te.compute(
            (a.shape[1], b.shape[0]), lambda i, j: te.sum(a[k, i].astype("float32") * b[j, k].astype("float32"), axis=k)
        )

    return bb.emit_te(compute, a, b)


def emit_batches_of_more(bb: Any, a: Any, b: Any) -> Any:
    """Of three batches in each of two places, two are multiplied."""

    def compute(a: Any, b: Any) -> Any:
        k = te.reduce_axis((0, a.shape[3]), name="k")
        return te.compute(
            (2, 2, a.shape[2], b.shape[3]),
            lambda x, y, i, j: te.sum(a[x, y, i, k].astype("float32") * b[x, y, k, j].astype("float32"), axis=k),
        )

    return bb.emit_te(compute, a, b)


OPERATORS = {
    "product": Operator(((33, 50), (50, 45)), lambda bb, a, b: bb.emit(relax.op.matmul(a, b)), np.matmul),
    "bias and relu": Operator(
        ((2, 11, 40), (40, 70), (70,)), emit_relu, lambda x, w, bias: np.maximum(x @ w + bias, 0)
    ),
    "gelu": Operator(
        ((20, 64), (64, 24), (24,)),
        emit_gelu,
        lambda x, w, bias: (y := x @ w + bias) * 0.5 * (1 + erf(y * np.float32(0.5**0.5))),
    ),
    "residual": Operator(
        ((1, 33), (33, 17), (17,), (1, 17)), emit_residual, lambda x, w, bias, other: x @ w + bias + other
    ),
    "batches": Operator(
        ((2, 3, 10, 20), (2, 3, 20, 7), (2, 1, 1, 7)),
        lambda bb, a, b, mask: bb.emit(relax.op.add(bb.emit(relax.op.matmul(a, b)), mask)),
        lambda a, b, mask: a @ b + mask,
    ),
    "convolution": Operator(
        ((2, 7, 6, 5), (18, 3, 3, 5), (18,)),
        emit_convolution,
        lambda x, w, bias: np.maximum(convolved(x, w, 1, 1) + bias, 0),
    ),
    "convolution by steps of 2": Operator(
        ((1, 9, 9, 16), (8, 3, 3, 16), (8,)),
        lambda *operands: emit_convolution(*operands, stride=2, padding=0),
        lambda x, w, bias: np.maximum(convolved(x, w, 2, 0) + bias, 0),
    ),
    "whole numbers": Operator(
        ((33, 50), (50, 45)),
        lambda bb, a, b: bb.emit(relax.op.matmul(a, b, out_dtype="int32")),
        lambda a, b: a.astype(np.int32) @ b.astype(np.int32),
    ),
}

BOXES = {
    "bias and relu": Operator(((3, 11, 80), (80, 48), (48,)), emit_relu, OPERATORS["bias and relu"].compute),
    "turned factors": Operator(((80, 40), (72, 80)), emit_turned, lambda a, b: a.T @ b.T),
    "batches": Operator(
        ((2, 3, 10, 40), (2, 3, 40, 24), (2, 1, 1, 24)), OPERATORS["batches"].emit, OPERATORS["batches"].compute
    ),
    "batches of more": Operator(
        ((2, 3, 19, 40), (2, 3, 40, 24)), emit_batches_of_more, lambda a, b: a[:, :2] @ b[:, :2]
    ),
    "a row of weights": Operator(((1, 33), (33, 24)), OPERATORS["product"].emit, np.matmul),
    "padded image": Operator(((2, 7, 6, 8), (18, 3, 3, 8), (18,)), emit_convolution, OPERATORS["convolution"].compute),
    "image of points": Operator(
        ((2, 7, 6, 40), (18, 1, 1, 40), (18,)),
        lambda *operands: emit_convolution(*operands, padding=0),
        lambda x, w, bias: np.maximum(convolved(x, w, 1, 0) + bias, 0),
    ),
    "whole numbers": Operator(
        ((33, 80), (80, 48)), OPERATORS["whole numbers"].emit, OPERATORS["whole numbers"].compute
    ),
}
"""whose factors TMA can load; of a padded image it loads the weights"""


def function_of(operator: Operator, dtype: str) -> tuple[Any, list[int]]:
    """The TIR function of the operator, and which input is its argument, by place."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(operator.shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            out = builder.emit_output(operator.emit(builder, *inputs))
        builder.emit_func_output(out)
    mod = prepare(builder.get(), tvm.target.Target(TARGET))
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    (call,) = (each for each in calls if isinstance(each, relax.Call) and each.op.name == "relax.call_tir")
    names = [each.name for each in mod["main"].params]
    return mod[call.args[0]], [names.index(each.name) for each in call.args[1].fields]


class Tensor:
    """What the interpreter asks of a torch tensor, of an array."""

    def __init__(self, array: Array) -> None:
        import triton.language as tl

        self.array = array
        self.dtype = getattr(tl, "int1" if array.dtype == bool else str(array.dtype))
        self.device = "cpu"
        self.shape = array.shape

    def data_ptr(self) -> int:
        return int(self.array.ctypes.data)

    def cpu(self) -> Tensor:
        return self

    def copy_(self, _other: Tensor) -> None:
        """It is the same memory."""

    def untyped_storage(self) -> Tensor:
        return self

    def new_empty(self, *_shape: Any, **_options: Any) -> Tensor:
        return self

    def set_(self, *_storage: Any) -> None:
        """It is the same memory."""

    def storage_offset(self) -> int:
        return 0

    def size(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def stride(self) -> tuple[int, ...]:
        return tuple(each // self.array.itemsize for each in self.array.strides)


def repair_bfloat16() -> None:
    """The interpreter multiplies the bits of bfloat16, and rounds to it without a carry: ml_dtypes computes instead."""
    import triton.language as tl
    from triton.runtime import interpreter

    converted, dot = interpreter._convert_float, interpreter.InterpreterBuilder.create_dot

    def convert(given: Array, source: Any, wanted: Any, rounding: Any) -> Array:
        if (source, wanted) == (tl.bfloat16, tl.float32):
            return given.view(ml_dtypes.bfloat16).astype(np.float32).view(np.uint32)
        if (source, wanted) == (tl.float32, tl.bfloat16):
            return given.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
        return converted(given, source, wanted, rounding)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        if a.dtype.scalar == tl.bfloat16:
            a, b = (self.create_fp_ext(each, tl.float32) for each in (a, b))
        return dot(self, a, b, *rest)

    interpreter._convert_float = convert
    interpreter.InterpreterBuilder.create_dot = create_dot


@dataclass(frozen=True)
class Case:
    """An operator with numbers."""

    function: Any
    """in TIR"""
    arguments: list[Array]
    """of the function; the output is the last one"""
    expected: Array

    @property
    def error(self) -> float:
        """The largest of the output, relative to the largest number expected."""
        out = self.arguments[-1]
        assert self.expected.shape == out.shape
        return float(np.abs(out.astype(np.float64) - self.expected).max() / np.abs(self.expected).max())


def case_of(operator: Operator, dtype: str) -> Case:
    function, places = function_of(operator, dtype)
    draw = np.random.default_rng(0)
    whole = dtype == "int8"
    given = [draw.integers(-128, 128, shape) if whole else draw.standard_normal(shape) for shape in operator.shapes]
    inputs = [each.astype(NUMPY_TYPES[dtype]) for each in given]
    out_type = function.params[-1].ty
    out = np.full([int(dim) for dim in out_type.shape], 77, NUMPY_TYPES.get(str(out_type.dtype), np.int32))
    expected = operator.compute(*(each if whole else each.astype(np.float32) for each in inputs))
    return Case(function, [*(inputs[place] for place in places), out], expected)


def error_of(name: str, dtype: str, decisions: Decisions) -> float:
    from triton.tools.tensor_descriptor import TensorDescriptor

    from fractune_workers.children.triton_kernels.compiler import load_module
    from fractune_workers.children.triton_kernels.sources import source_of
    from fractune_workers.children.triton_kernels.sums import sums_of

    case = case_of((BOXES if decisions.tma else OPERATORS)[name], dtype)
    source = source_of(sums_of(case.function), decisions, "kernel", "ieee")
    arrays = list(case.arguments)
    if source.partial_shape:
        arrays.append(np.full(source.partial_shape, 77, np.int32 if dtype == "int8" else np.float32))
    with tempfile.TemporaryDirectory() as folder:
        module = load_module(source.text, Path(folder))
        for launch in source.launches:
            maps = [
                TensorDescriptor(Tensor(arrays[box.argument]), list(box.extents), list(box.strides), list(box.lengths))
                for box in launch.boxes
            ]
            getattr(module, launch.kernel)[(launch.programs,)](*map(Tensor, arrays), *maps)
    return case.error


if __name__ == "__main__":
    stay_off_gpus()
    repair_bfloat16()
    cases = [(name, dtype, Decisions(*each)) for name, dtype, each in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps([error_of(*case) for case in cases]))
