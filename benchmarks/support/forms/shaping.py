"""Operators that move numbers: shapes, slices, pads, look-ups, scatters."""

import itertools
from collections.abc import Iterator

import numpy as np
from onnx import TensorProto, numpy_helper

from benchmarks.support.forms.form import Form, form, full, i64, random, versions


def shapes() -> Iterator[Form]:
    value = random("float32", 2, 3, 4)
    for opset in versions("Reshape"):
        yield from (
            form("Reshape", opset, value, i64(*to), fixed=1)
            for to in ((6, 4), (0, -1), (-1,), (4, 0, 2), (1, 0, -1, 2))
        )
    yield form("Reshape", 14, random("float32", 0, 3), i64(3, 0), fixed=1, allowzero=1)
    for opset, axis in itertools.product((9, 11, 13), (0, 1, 2, 3, -1, -2)):
        if axis >= 0 or opset >= 11:
            yield form("Flatten", opset, value, axis=axis)
    thin = random("float32", 1, 3, 1, 4)
    for axes in (None, (0,), (-2,), (0, 2)):
        yield form("Squeeze", 11, thin, axes=axes)
        yield form("Squeeze", 13, thin, *([] if axes is None else [i64(*axes)]), fixed=0 if axes is None else 1)
    for added in ((0,), (-1,), (0, -1), (3, 1), (2, 0, 4)):
        yield form("Unsqueeze", 11, value, axes=added)
        yield form("Unsqueeze", 13, value, i64(*added), fixed=1)
    yield from (form("Transpose", 13, value, perm=perm) for perm in (None, *itertools.permutations(range(3))))


def parts() -> Iterator[Form]:
    for axis, dtype in itertools.product((0, 1, -1), ("float32", "float16", "int8", "bool")):
        yield form("Concat", 13, *(random(dtype, 2, 2, 2, seed=n) for n in range(3)), axis=axis)
    wide = random("float32", 4, 6)
    for axis in (0, 1, -1):
        size = wide.shape[axis]
        yield form("Split", 11, wide, axis=axis, outputs=2)
        yield form("Split", 11, wide, axis=axis, split=(1, size - 1), outputs=2)
        yield form("Split", 13, wide, i64(size - 1, 1), fixed=1, axis=axis, outputs=2)
        yield form("Split", 13, wide, i64(size, 0), fixed=1, axis=axis, outputs=2)
        yield form("Split", 18, wide, axis=axis, num_outputs=3, outputs=3)
    yield form("Split", 18, random("float32", 7), num_outputs=3, outputs=3)


def repeats() -> Iterator[Form]:
    value = random("float32", 2, 3, 4)
    for repeats in ((1, 2, 1), (2, 1, 3), (1, 1, 1)):
        yield form("Tile", 13, value, i64(*repeats), fixed=1)
    for to in ((2, 3, 4), (5, 2, 3, 4), (1, 1, 1)):
        yield form("Expand", 13, value, i64(*to), fixed=1)
    yield form("Expand", 13, random("float32", 3, 1), i64(2, 1, 6), fixed=1)
    for mode, opset in (("DCR", 11), ("CRD", 11), ("DCR", 13), ("CRD", 13)):
        yield form("DepthToSpace", opset, random("float32", 2, 12, 2, 3), blocksize=2, mode=mode)
    yield form("SpaceToDepth", 13, random("float32", 2, 3, 4, 6), blocksize=2)


def made() -> Iterator[Form]:
    value = random("float32", 2, 3, 4)
    yield from (
        form("Trilu", 14, random(d, 4, 5), *k, fixed=len(k), upper=u)
        for d in ("float32", "int64")
        for u in (0, 1)
        for k in ((), (i64(1).reshape(()),), (i64(-2).reshape(()),), (i64(9).reshape(()),))
    )
    yield from (
        form("Shape", 15, value, start=s, end=e)
        for s, e in ((None, None), (1, None), (-2, None), (0, -1), (-5, 9), (2, 1))
    )
    yield form("Size", 13, value)
    yield from (
        form("EyeLike", 9, random("int32", 4, 5), k=k, dtype=d)
        for k in (0, 1, -2)
        for d in (None, TensorProto.FLOAT, TensorProto.INT64)
    )
    for numbers in ((0, 9, 2), (9, 0, -2), (0, 0, 1), (3, 8, 10)):
        for dtype in ("int64", "float32", "int32"):
            yield form("Range", 11, *(np.array(n, dtype) for n in numbers), fixed=3)
    for dtype in ("float32", "int64", "bool", "float16"):
        yield form("ConstantOfShape", 9, i64(2, 3), fixed=1, value=numpy_helper.from_array(np.ones(1, dtype)))


def slices() -> Iterator[Form]:
    value = random("float32", 5, 6)
    ranges = [
        ((1,), (4,), (0,), (1,)),
        ((-3,), (-1,), (1,), (1,)),
        ((0, 0), (99, -1), (0, 1), (2, 1)),
        ((-1,), (-99,), (1,), (-1,)),
        ((4, 5), (0, 1), (-2, -1), (-2, -3)),
        ((3,), (2,), (0,), (1,)),
        ((-99,), (2**62,), (-1,), (2,)),
        ((5,), (-7,), (1,), (-1,)),
    ]
    for begin, end, axes, steps in ranges:
        for opset in (10, 11, 13):
            yield form("Slice", opset, value, i64(*begin), i64(*end), i64(*axes), i64(*steps), fixed=4)
        if all(step == 1 for step in steps):
            yield form("Slice", 9, value, starts=begin, ends=end, axes=axes)
            yield form("Slice", 13, value, i64(*begin), i64(*end), i64(*axes), fixed=3)
    yield form("Slice", 13, value, i64(1, 2), i64(4, 5), fixed=2)


def pads() -> Iterator[Form]:
    value = random("float32", 3, 4)
    for mode, sizes in itertools.product(
        ("constant", "reflect", "edge", "wrap"), ((1, 0, 0, 2), (2, 2, 1, 3), (0, -1, 1, 0), (-1, 0, 0, -2))
    ):
        opset = 19 if mode == "wrap" else 13
        yield form("Pad", opset, value, i64(*sizes), fixed=1, mode=mode)
        if mode == "constant":
            yield form("Pad", 13, value, i64(*sizes), np.array(2.5, "float32"), fixed=2)
        if mode != "wrap":
            yield form("Pad", 7, value, pads=sizes, mode=mode)
        yield form("Pad", 19, value, i64(sizes[1], sizes[3]), None, i64(-1), fixed=3, mode=mode)
    for dtype in ("float16", "int32", "int8", "bool", "int64"):
        yield form("Pad", 13, random(dtype, 3, 4), i64(1, 0, 0, 2), fixed=1)


def lookups() -> Iterator[Form]:
    value = random("float32", 3, 4, 5)
    for axis, index in itertools.product(
        (0, 1, 2, -1), (i64(0, 2, -1), i64(1).reshape(()), np.array([[0, -2], [1, 2]], "int32"))
    ):
        yield form("Gather", 13, value, index, fixed=1, axis=axis)
        yield form("Gather", 13, value, index, axis=axis)
    drawn = np.random.default_rng(3).integers(-3, 3, (3, 2, 5))
    for axis, index in ((0, drawn), (1, drawn), (-1, drawn[:, :, :3])):
        yield form("GatherElements", 13, value, index, axis=axis)
    for batch, places in (
        (0, [[0, 1], [2, -1]]),
        (0, [[[1], [-1]]]),
        (1, [[0, 1], [3, -1], [2, 2]]),
        (1, [[[0], [1]], [[2], [-1]], [[1], [1]]]),
    ):
        yield form("GatherND", 13, value, np.array(places, "int64"), batch_dims=batch)


def scatters() -> Iterator[Form]:
    reductions = {13: (None,), 16: ("none", "add", "mul"), 18: ("max", "min", "add", "mul")}
    for opset, modes in reductions.items():
        for mode, axis, dtype in itertools.product(modes, (0, -1), ("float32", "int32", "float16")):
            index = np.array([[0, 2, -1], [1, 0, -2]] if mode in (None, "none") else [[0, 0, -1], [1, 1, -2]], "int64")
            yield form(
                "ScatterElements",
                opset,
                random(dtype, 3, 4),
                index,
                random(dtype, 2, 3, seed=1),
                axis=axis,
                reduction=mode,
            )
            rows = np.array([[0], [-1]] if mode in (None, "none") else [[1], [1]], "int64")
            if axis == 0:
                yield form("ScatterND", opset, random(dtype, 3, 4), rows, random(dtype, 2, 4, seed=1), reduction=mode)


def chosen() -> Iterator[Form]:
    for axis in (0, 1, -1, -2):
        yield form("OneHot", 11, i64(0, 3, -1, 9), i64(4), np.array([2, 5], "float32"), fixed=2, axis=axis)
    for exclusive, reverse, axis, dtype in itertools.product((0, 1), (0, 1), (0, -1), ("float32", "float64", "int32")):
        yield form(
            "CumSum", 14, random(dtype, 3, 40), np.array(axis, "int64"), fixed=1, exclusive=exclusive, reverse=reverse
        )
    yield form("CumSum", 14, full(1, "float16", 1, 3000), np.array(1, "int64"), fixed=1)
    yield from (
        form("Where", 16, random("bool", *a), random(d, *b), random(d, *b[-1:], seed=1))
        for a, b in (((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((5,), (2, 3, 5)), ((2, 1, 5), (3, 1)))
        for d in ("float32", "int64", "float16")
    )
    for batch, time in ((0, 1), (1, 0)):
        yield form("ReverseSequence", 10, random("float32", 4, 4, 2), i64(1, 4, 2, 3), batch_axis=batch, time_axis=time)
    rows = random("float32", 3, 4)
    yield form("Compress", 11, rows, np.array([True, False, True]), fixed=1, axis=0)
    yield form("Compress", 11, rows, np.array([False, True, True, False]), fixed=1, axis=-1)
    yield form("Compress", 11, rows, np.array([False, True] * 6), fixed=1)
