"""Operators that compute each number by itself, with broadcasts, constants that must not be folded, and casts."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from onnx import helper

from benchmarks.support.forms.form import FLOATS, INTS, Array, Form, extreme, form, numbers_of, random, small, versions


def unary() -> Iterator[Form]:
    options: dict[str, list[dict[str, Any]]] = {
        "Elu": [{}, {"alpha": 0.3}],
        "Celu": [{}, {"alpha": 0.3}],
        "HardSigmoid": [{}, {"alpha": 0.3, "beta": 0.1}],
        "IsInf": [{}, {"detect_negative": 0}, {"detect_positive": 0}],
        "LeakyRelu": [{}, {"alpha": 0.3}],
        "Selu": [{}, {"alpha": 1.2, "gamma": 0.7}],
        "Shrink": [{}, {"lambd": 1.0, "bias": 0.5}],
        "ThresholdedRelu": [{}, {"alpha": 0.3}],
        "Gelu": [{}, {"approximate": "tanh"}],
    }
    plain = (
        "Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh Erf Exp Floor HardSwish Identity IsNaN Log Mish Neg "
        "Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh"
    )
    for operator in [*plain.split(), *options]:
        for opset, attributes in itertools.product(versions(operator), options.get(operator, [{}])):
            for dtype in FLOATS:
                yield from (form(operator, opset, value, **attributes) for value in numbers_of(dtype, 3, 13))
                if opset == versions(operator)[-1]:
                    made = (form(operator, opset, value, **attributes) for value in _small_and_near_one(dtype))
                    yield from (replace(each, by_onnx=operator in _IMPRECISE) for each in made)
    for operator, dtype in itertools.product(("Abs", "Neg", "Sign", "Relu", "Identity"), INTS):
        if operator != "Neg" or dtype != "uint8":
            yield from (form(operator, 14 if operator == "Relu" else 13, value) for value in numbers_of(dtype, 3, 13))
    yield form("Not", 7, random("bool", 3, 13))
    yield from (form("BitwiseNot", 18, extreme(dtype, 3, 13)) for dtype in INTS)


_IMPRECISE = ("Celu", "Elu", "Selu")
"""ONNX Runtime loses the digits of their small results, because it subtracts 1 from exponentials in float32"""


def _small_and_near_one(dtype: str) -> list[Array]:
    """Where a formula of logarithms and exponentials loses the digits of its result."""
    numbers = [small(dtype, size, 3, 13) for size in (1e-3, 1e-4, 1e-6)[: 2 if dtype == "float16" else 3]]
    return [*numbers, 1 + numbers[0], numbers[0] - 1, small(dtype, 0.05, 3, 13)]


BROADCASTS = [((2, 3, 5), (2, 3, 5)), ((2, 3, 5), (5,)), ((2, 3, 5), (1, 3, 1)), ((5,), (2, 3, 5)), ((2, 3, 5), ())]


_ARITHMETIC, _COMPARED = ("Add", "Sub", "Mul", "Div"), ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")


def binary() -> Iterator[Form]:
    for operator, (left, right) in itertools.product((*_ARITHMETIC, *_COMPARED, "Max", "Min"), BROADCASTS):
        for dtype in (*FLOATS, *INTS):
            second = random(dtype, *right, seed=1)
            yield form(operator, 13, random(dtype, *left), _divisor(second) if operator == "Div" else second)
    for operator, opset in itertools.product((*_ARITHMETIC, *_COMPARED[:3], "Max", "Min"), (7, 9, 14)):
        yield form(operator, opset, random("float32", 2, 3, 5), random("float32", 3, 1, seed=1))
    for operator, dtype in itertools.product((*_ARITHMETIC, "Max", "Min"), INTS):
        second = extreme(dtype, 3, 8, shift=1)
        yield form(operator, 14, extreme(dtype, 3, 8), _divisor(second) if operator == "Div" else second)
    for operator, count in itertools.product(("Max", "Min", "Sum", "Mean"), (1, 2, 4)):
        yield form(operator, 13, *(random("float32", *([3] if n % 2 else [2, 3]), seed=n) for n in range(count)))
    for opset, slope in itertools.product(versions("PRelu"), ((1,), (3, 1, 1), (2, 3, 4, 5), ())):
        yield form("PRelu", opset, random("float32", 2, 3, 4, 5), random("float32", *slope, seed=1), fixed=1)


def _divisor(value: Array) -> Array:
    """Without 0, and without -1, by which the lowest integer has no quotient."""
    wrong = value == 0 if value.dtype.kind == "f" else (value == 0) | (value.astype("int64") == -1)
    return np.where(wrong, np.array(3, value.dtype), value).astype(value.dtype)


def special_constants() -> Iterator[Form]:
    """A constant operand, as models have it, and an operand twice: no fold may ignore infinite numbers and NaN."""
    special = [0.0, -0.0, 1.0, -1.0, 2.0, np.inf, -np.inf, np.nan]
    with np.errstate(over="ignore"):
        given = {dtype: np.array([*special, 3.4e38, -3.4e38, 1.5e-38, -7.25]).astype(dtype) for dtype in FLOATS}
    for operator, constant, dtype in itertools.product((*_ARITHMETIC, *_COMPARED), special, FLOATS):
        value = np.array(constant, dtype)
        yield form(operator, 14, given[dtype], value, fixed=1)
        yield Form(operator, 14, ("c", "x"), {"x": given[dtype]}, {"c": value})
    for operator, dtype in itertools.product(("Sub", "Div", "Equal", "Less", "Max"), FLOATS):
        yield Form(operator, 14, ("x", "x"), {"x": given[dtype]})


def whole_numbers() -> Iterator[Form]:
    for dtype, fmod in itertools.product(INTS, (0, 1)):
        yield form("Mod", 13, random(dtype, 3, 8, low=-50, high=50), _divisor(random(dtype, 3, 8, seed=1)), fmod=fmod)
    yield from (form("Mod", 13, random(d, 3, 8), random(d, 3, 8, seed=1), fmod=1) for d in FLOATS)
    for operator in ("And", "Or", "Xor"):
        yield from (form(operator, 7, random("bool", *a), random("bool", *b, seed=1)) for a, b in BROADCASTS)
    for operator, dtype in itertools.product(("BitwiseAnd", "BitwiseOr", "BitwiseXor"), INTS):
        yield form(operator, 18, extreme(dtype, 3, 8), random(dtype, 3, 8))
    for direction, dtype in itertools.product(("LEFT", "RIGHT"), ("uint8", "uint32", "uint64")):
        yield form("BitShift", 11, extreme(dtype, 3, 8), random(dtype, 3, 8, high=7), direction=direction)


def powers() -> Iterator[Form]:
    for exponent in (0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0, 2.5, 10.0):
        for dtype in ("float32", "float64", "float16"):
            yield form("Pow", 13, random(dtype, 3, 8), np.array(exponent, dtype), fixed=1)
        yield form("Pow", 13, extreme("float32", 3, 8), np.array(exponent, "float32"), fixed=1)
    for base, power in itertools.product(("float32", "int32", "int64", "float64"), repeat=2):
        whole = power.startswith("int")
        yield form("Pow", 13, random(base, 3, 8, low=1), random(power, 3, 8, seed=1, low=0 if whole else -2, high=3))


def casts() -> Iterator[Form]:
    types = ("float32", "float16", "float64", "int8", "uint8", "int32", "int64", "bool")
    for source, target in itertools.product(types, types):
        low = 0 if target.startswith("uint") else -100
        value = random(source, 3, 9, low=low, high=100)
        yield form("Cast", 13, value, to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    for source, target in itertools.product(("float32", "float64"), ("float16", "float32")):
        yield form("Cast", 13, extreme(source, 3, 9), to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    for source, target in itertools.product(INTS, INTS):
        yield form("Cast", 13, extreme(source, 3, 9), to=helper.np_dtype_to_tensor_dtype(np.dtype(target)))
    for dtype, bounds in itertools.product(
        ("float32", "float16", "float64", "int8", "int32", "int64", "uint8"), ((1, 3), (None, 2), (2, None), (3, 1))
    ):
        limits = [None if each is None else np.array(each, dtype) for each in bounds]
        yield form("Clip", 13, random(dtype, 3, 9, low=-5, high=5), *limits, fixed=2)
        yield form("Clip", 13, extreme(dtype, 3, 9), *limits, fixed=2)
    yield form("Clip", 7, random("float32", 3, 9), min=-1.0, max=2.0)
    yield form("Clip", 7, extreme("float32", 3, 9), min=-1.0)
    yield from (form("Dropout", opset, random("float32", 3, 9)) for opset in (7, 10, 12, 13))
