"""Products of matrices, quantized ones, and recurrences."""

import itertools
from collections.abc import Iterator

import numpy as np

from benchmarks.support.forms.form import FLOATS, Form, extreme, form, full, random


def products() -> Iterator[Form]:
    for trans_a, trans_b, alpha, opset in itertools.product((0, 1), (0, 1), (1.0, 0.5), (7, 9, 11, 13)):
        for shape in ((5,), (3, 5), (3, 1), (1, 5)):
            yield form(
                "Gemm", opset,
                random("float32", *((4, 3) if trans_a else (3, 4))),
                random("float32", *((5, 4) if trans_b else (4, 5)), seed=1),
                random("float32", *shape, seed=2),
                transA=trans_a, transB=trans_b, alpha=alpha, beta=2.0,
            )  # fmt: skip
    shapes = [
        ((4,), (4,)),
        ((3, 4), (4,)),
        ((4,), (4, 5)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (3, 4, 5)),
        ((4,), (2, 4, 5)),
    ]
    for (left, right), dtype, fixed in itertools.product(shapes, (*FLOATS, "int32", "int64"), (0, 1)):
        yield form("MatMul", 13, random(dtype, *left), random(dtype, *right, seed=1), fixed=fixed)
    for dtype in FLOATS:
        deep = full(2.0**-7, dtype, 2, 8192)  # whose sums in float32 are exact in any order, and in float16 are not
        yield form("MatMul", 13, deep, full(1, dtype, 8192, 3), fixed=1)
        yield form("MatMul", 13, deep, full(1, dtype, 8192, 3))
        yield form("Gemm", 13, deep, full(1, dtype, 3, 8192), transB=1)
    equations: dict[str, tuple[tuple[int, ...], ...]] = {
        "ij,jk->ik": ((3, 4), (4, 5)),
        "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
        "ij->ji": ((3, 4),),
        "ij->": ((3, 4),),
        "ii->i": ((4, 4),),
        "i,i": ((4,), (4,)),
        "...ij,...jk": ((2, 3, 4), (2, 4, 5)),
        "bhqd,bhkd->bhqk": ((1, 2, 3, 4), (1, 2, 5, 4)),
        "i,j->ij": ((3,), (4,)),
        "ijk,kl,lm->ijm": ((2, 3, 4), (4, 5), (5, 2)),
    }
    for (equation, each), dtype in itertools.product(equations.items(), ("float32", "float16")):
        yield form("Einsum", 12, *(random(dtype, *s, seed=n) for n, s in enumerate(each)), equation=equation)


def quantized() -> Iterator[Form]:
    for dtype, axis in itertools.product(("int8", "uint8"), (None, 0, 1, -1)):
        count = () if axis is None else ((4, 6)[axis],)
        scale, zero = random("float32", *count, seed=1, low=0.02, high=0.1), random(dtype, *count, seed=2)
        value = random("float32", 4, 6, low=-20, high=20)
        for opset in (10, 13, 19) if axis is None else (13, 19):
            given = {} if axis is None else {"axis": axis}
            yield form("QuantizeLinear", opset, value, scale, zero, fixed=2, **given)
            yield form("DequantizeLinear", opset, extreme(dtype, 4, 6), scale, zero, fixed=2, **given)
    yield form(
        "QuantizeLinear",
        13,
        np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, np.inf, -np.inf], "float32"),
        np.array(1, "float32"),
        np.array(0, "int8"),
        fixed=2,
    )
    yield form("DequantizeLinear", 13, extreme("int32", 4, 6), np.array(0.5, "float32"), fixed=1)
    for low, high in ((-4, 4), (2, 4), (-4, -1), (0, 0)):
        yield form("DynamicQuantizeLinear", 11, random("float32", 4, 6, low=low, high=high), outputs=3)
    for left, right in itertools.product(("uint8", "int8"), ("uint8", "int8")):
        a, b = (
            random(left, 3, 70, low=-128, high=255 if left == "uint8" else 127),
            random(right, 70, 5, seed=1, low=-128, high=127),
        )
        yield form("MatMulInteger", 10, a, b, np.array(3, left), np.array(1, right), fixed=3)
        yield form("MatMulInteger", 10, a, b, fixed=1)
        scales = [np.array(n, "float32") for n in (0.05, 0.02, 0.9)]
        yield form(
            "QLinearMatMul",
            10,
            a,
            scales[0],
            np.array(3, left),
            b,
            scales[1],
            np.array(1, right),
            scales[2],
            np.array(7, left),
            fixed=7,
        )
    image, weight = random("uint8", 1, 3, 6, 6, high=255), random("uint8", 4, 3, 3, 3, seed=1, high=255)
    yield form("ConvInteger", 10, image, weight, np.array(5, "uint8"), fixed=2, pads=(1, 1, 1, 1))
    yield form("ConvInteger", 10, image, weight, np.array(5, "uint8"), np.array(9, "uint8"), fixed=3, strides=(2, 2))


def recurrent() -> Iterator[Form]:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}
    for operator, direction in itertools.product(gates, ("forward", "reverse", "bidirectional")):
        count, hidden, size = 2 if direction == "bidirectional" else 1, 4, 3
        rows = gates[operator] * hidden
        weights = [random("float32", count, rows, n, seed=n, low=-0.5, high=0.5) for n in (size, hidden)]
        bias = random("float32", count, 2 * rows, seed=9, low=-0.5, high=0.5)
        value, lengths = random("float32", 5, 2, size), np.array([5, 3], "int32")
        state = [random("float32", count, 2, hidden, seed=n) for n in range(2 if operator == "LSTM" else 1)]
        outputs = 3 if operator == "LSTM" else 2
        named = {"hidden_size": hidden, "direction": direction}
        yield form(operator, 14, value, *weights, fixed=2, outputs=outputs, **named)
        yield form(operator, 7, value, *weights, bias, fixed=3, outputs=outputs, **named)
        yield Form(
            operator, 14, ("x", "w", "r", "b", "n", *(f"h{n}" for n in range(len(state)))),
            {"x": value, "n": lengths, **{f"h{n}": each for n, each in enumerate(state)}},
            {"w": weights[0], "r": weights[1], "b": bias}, named, outputs,
        )  # fmt: skip
        if operator == "GRU":
            yield form(operator, 14, value, *weights, bias, fixed=3, outputs=outputs, linear_before_reset=1, **named)
        yield form(operator, 14, value, *weights, bias, fixed=3, outputs=outputs, clip=0.3, **named)
        activations = {
            "LSTM": ["HardSigmoid", "Relu", "Softsign"],
            "GRU": ["HardSigmoid", "Softplus"],
            "RNN": ["Relu"],
        }[operator]
        yield form(
            operator, 14, value, *weights, bias, fixed=3, outputs=outputs, activations=activations * count, **named
        )
