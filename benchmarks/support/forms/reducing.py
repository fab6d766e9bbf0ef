"""Operators that reduce an axis: sums, extremes, arguments, softmaxes, normalizations."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.support.forms.form import FLOATS, INTS, Form, extreme, form, full, i64, random, versions

_REDUCTIONS = "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare"


def reductions() -> Iterator[Form]:
    axes: list[tuple[int, ...] | None] = [None, (0,), (-1,), (0, 2), (1, -1)]
    for short, (axis, keep) in itertools.product(_REDUCTIONS.split(), itertools.product(axes, (0, 1))):
        operator = f"Reduce{short}"
        low = 0.1 if short == "LogSum" else -4
        for opset in versions(operator):
            by_input = opset >= (13 if short == "Sum" else 18)
            value = random("float32", 3, 4, 5, low=low)
            if by_input:
                operands = [value] if axis is None else [value, i64(*axis)]
                yield form(operator, opset, *operands, fixed=len(operands) - 1, keepdims=keep)
            else:
                yield form(operator, opset, value, axes=axis, keepdims=keep)
    for short, dtype in itertools.product(_REDUCTIONS.split(), (*FLOATS, *INTS)):
        operator = f"Reduce{short}"
        values = [random(dtype, 3, 40, low=0.1 if short == "LogSum" else -4)]
        if short in ("Max", "Min"):
            limits: Any = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
            values += [extreme(dtype, 3, 9), full(limits.max, dtype, 3, 9), full(limits.min, dtype, 3, 9)]
            values += [] if "int" in dtype else [full(np.inf, dtype, 3, 9), full(-np.inf, dtype, 3, 9)]
        if "float" in dtype:
            values.append(full(1, dtype, 2, 5000))
        yield from (form(operator, 18, value, i64(-1), fixed=1) for value in values)
        yield form(operator, 18, random(dtype, 3, 4, low=1), noop_with_empty_axes=1)
    yield form("ReduceMean", 13, random("float32", 1 << 22, low=0, high=1), keepdims=0)
    yield form("ReduceSum", 13, random("float32", 1 << 22, low=0, high=1), keepdims=0)


def arguments() -> Iterator[Form]:
    for operator, axis, keep, last in itertools.product(("ArgMax", "ArgMin"), (0, 1, -1), (0, 1), (0, 1)):
        ties = random("float32", 3, 5, 4).round()
        yield form(operator, 13, ties, axis=axis, keepdims=keep, select_last_index=last)
    for operator, dtype, last in itertools.product(("ArgMax", "ArgMin"), (*FLOATS, *INTS), (0, 1)):
        limits: Any = np.iinfo(dtype) if "int" in dtype else np.finfo(dtype)
        values = [random(dtype, 3, 9), extreme(dtype, 3, 9)]
        values += [full(value, dtype, 3, 5) for value in (limits.max, limits.min, 0)]
        values += [] if "int" in dtype else [full(np.inf, dtype, 3, 5), full(-np.inf, dtype, 3, 5)]
        for value in values:
            yield form(operator, 13, value, axis=1, select_last_index=last)
    for axis, largest, dtype in itertools.product((0, -1), (0, 1), (*FLOATS, *INTS)):
        value = random(dtype, 7, 9, high=100)
        yield form("TopK", 11, value, i64(3), fixed=1, outputs=2, axis=axis, largest=largest)
    yield from (form("TopK", 11, extreme(d, 2, 9), i64(9), fixed=1, outputs=2) for d in (*FLOATS, *INTS))
    yield form("TopK", 10, random("float32", 7, 9), i64(3), fixed=1, outputs=2, axis=0)
    yield form("TopK", 9, random("float32", 7, 9), outputs=2, axis=0, k=3)


def softmaxes() -> Iterator[Form]:
    for operator in ("Softmax", "LogSoftmax", "Hardmax"):
        for opset, axis in itertools.product((7, 11, 13), (None, 0, 1, 2, -1, -2)):
            if opset >= 11 or axis is None or axis >= 0:
                yield form(operator, opset, random("float32", 2, 3, 4), axis=axis)
        for dtype in FLOATS:
            yield form(operator, 13, random(dtype, 2, 8192), axis=-1)
            yield form(operator, 13, random(dtype, 3, 7, low=-60, high=60), axis=0)
    yield form("Hardmax", 13, full(np.finfo("float32").min, "float32", 2, 5))
    yield form("Hardmax", 13, full(-np.inf, "float32", 2, 5))


def normalizations() -> Iterator[Form]:
    for dtype, opset in itertools.product(("float32", "float16"), (7, 9, 14, 15)):
        image = random(dtype, 2, 3, 4, 5)
        numbers = [random(dtype, 3, seed=n, low=0.5) for n in range(1, 5)]
        yield form("BatchNormalization", opset, image, *numbers, fixed=4, epsilon=0.01)
        yield form("BatchNormalization", opset, random(dtype, 2, 3), *numbers, fixed=4)
    for dtype in FLOATS:
        scale, bias = random(dtype, 3, seed=1), random(dtype, 3, seed=2)
        size = 40 if dtype == "float16" else 12  # sums of many numbers far from 0 differ by their order in float32
        for value in (
            random(dtype, 2, 3, 30, 30),
            random(dtype, 2, 3, 70),
            random(dtype, 1, 3, size, size, low=80, high=90),
        ):
            yield form("InstanceNormalization", 7, value, scale, bias, fixed=2)
        yield from (
            form("LRN", 13, random(dtype, 2, 7, 4, 4), size=size, alpha=0.2, beta=0.6, bias=2.0) for size in (3, 4, 7)
        )
        for axis, power in itertools.product((0, 1, -1), (1, 2)):
            yield form("LpNormalization", 1 if dtype == "x" else 7, random(dtype, 3, 400), axis=axis, p=power)
        yield from (
            form("MeanVarianceNormalization", 13, random(dtype, 2, 3, 4, 5), axes=a) for a in (None, (1,), (-1, 2))
        )
        for axis, width in itertools.product((-1, 1, 2), (70, 3000)):
            shape = (2, 3, width)
            tail = shape[axis:]
            yield form(
                "LayerNormalization",
                17,
                random(dtype, *shape),
                random(dtype, *tail, seed=1),
                random(dtype, *tail, seed=2),
                fixed=2,
                axis=axis,
            )
            yield form("RMSNormalization", 23, random(dtype, *shape), random(dtype, *tail, seed=1), fixed=1, axis=axis)
        yield form(
            "GroupNormalization",
            21,
            random(dtype, 2, 6, 20, 20),
            random(dtype, 6, seed=1),
            random(dtype, 6, seed=2),
            fixed=2,
            num_groups=3,
        )
