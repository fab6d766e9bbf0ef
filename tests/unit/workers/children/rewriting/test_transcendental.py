"""Transcendental functions by polynomials: how far they are from NumPy's, and that their code calls no library."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import prepare

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
X = np.linspace(-9, 9, 8192, dtype="float32")
TOLERANCES = {"float16": (2e-3, 1e-3), "bfloat16": (0.03, 0.02), "float64": (2e-3, 1e-3)}
"""relative and absolute, to float32"""
SPECIAL = np.array([-np.inf, -4, -0.0, 0, 1e-30, 0.3, 2, 1e30, np.inf, np.nan])
erf = np.vectorize(math.erf)
op = relax.op


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


CLOSE: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (op.exp, np.exp),
    (op.tanh, np.tanh),
    (op.erf, erf),
    (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    (op.nn.silu, lambda x: x / (1 + np.exp(-x))),
    (op.nn.gelu_tanh, lambda x: x * (1 + np.tanh((2 / np.pi) ** 0.5 * (x + 0.044715 * x**3))) / 2),
    (op.nn.gelu, lambda x: x * (1 + erf(x / 2**0.5)) / 2),
    (op.nn.softmax, softmax),
]


def test_they_are_close() -> None:
    found = all_computed([compute for compute, _ in CLOSE], X)
    for number, (result, (_, reference)) in enumerate(zip(found, CLOSE, strict=True)):
        expected = reference(X.astype("float64"))
        assert np.abs(result - expected).max() < 1e-6 * max(1.0, np.abs(expected).max()), number


@pytest.mark.parametrize("compute", [op.sigmoid, op.nn.silu])
def test_small_results_keep_their_digits(compute: Callable[..., Any]) -> None:
    x = np.linspace(-80, 0, 64, dtype="float32")
    wide = x.astype("float64")
    np.testing.assert_allclose(
        computed(compute, x), (wide if compute is op.nn.silu else 1) / (1 + np.exp(-wide)), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_types_are_close(dtype: str) -> None:
    functions = [op.erf, op.sigmoid, op.nn.silu, op.nn.gelu]
    for narrow, exact in zip(*(all_computed(functions, X.astype(each)) for each in (dtype, "float32")), strict=True):
        assert narrow.dtype == dtype
        np.testing.assert_allclose(narrow.astype("float32"), exact, *TOLERANCES[dtype])


@pytest.mark.parametrize("target", [TARGET, tvm.target.Target("nvidia/nvidia-h100")], ids=["cpu", "gpu"])
@pytest.mark.parametrize(("exponent", "is_product"), [(2, True), (3, True), (4, True), (5, False)])
def test_small_powers_are_products(exponent: float, target: tvm.target.Target, *, is_product: bool) -> None:
    mod = prepare(module(power(exponent, "float32"), X), target)
    assert ("T.pow" not in mod.script()) == is_product


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_powers_are_rounded_as_their_type(dtype: str) -> None:
    x = np.array([-9, -1.7, -1e-3, -0.0, 0, 1e-3, 1.7, 9, np.inf, -np.inf, np.nan], dtype)
    few_roundings = {"float64": 1e-15, "float32": 3e-7, "float16": 1e-3, "bfloat16": 8e-3}
    exponents = (2, 3, 4)
    for exponent, result in zip(exponents, all_computed([power(n, dtype) for n in exponents], x), strict=True):
        with np.errstate(under="ignore"):
            expected = (x.astype("float64") ** exponent).astype(dtype).astype("float64")
        assert str(result.dtype) == dtype
        found = result.astype("float64")
        np.testing.assert_allclose(found, expected, rtol=few_roundings[dtype])
        np.testing.assert_array_equal(np.signbit(found[:-1]), np.signbit(expected[:-1]))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_roots_are_powers_at_special_numbers_too(dtype: str) -> None:
    x, exponents = SPECIAL.astype(dtype), (0.5, -0.5)
    for exponent, found in zip(exponents, all_computed([power(n, dtype) for n in exponents], x), strict=True):
        with np.errstate(all="ignore"):
            expected = x ** np.full(x.shape, exponent, dtype)  # of one number it takes the root
        np.testing.assert_allclose(found, expected, rtol=3e-7)
        np.testing.assert_array_equal(np.signbit(found[2:-1]), np.signbit(expected[2:-1]))


def test_no_function_of_the_c_library_is_called() -> None:
    functions = [op.exp, op.tanh, op.erf, op.sigmoid, op.nn.silu, op.nn.gelu, op.nn.gelu_tanh, op.nn.softplus]
    functions += [power(each, "float32") for each in (2, 3, 4, 0.5, -0.5)]
    assembly = relax.build(prepare(module(lambda x: relax.Tuple([each(x) for each in functions]), X), TARGET), TARGET)
    code = assembly.mod.imports[0].inspect_source("ll")
    assert not re.findall(r"call [^@]*@(exp|erf|tanh|pow|log)f?\(", code)
    assert not re.findall(r"@llvm\.(exp|pow|log)[0-9]*\.", code)


def test_numbers_of_exponents_that_widen_the_result_are_powers_still() -> None:
    exponent = relax.const(np.full((2, 1), 3, "float32"))
    found = computed(lambda x: op.power(x, exponent), X[:4])
    np.testing.assert_allclose(found, np.stack([X[:4] ** 3] * 2), rtol=1e-6)


def power(exponent: float, dtype: str) -> Callable[..., Any]:
    return lambda x: op.power(x, relax.const(np.array(exponent, dtype), dtype))


def computed(compute: Callable[..., Any], x: Any) -> Any:
    return all_computed([compute], x)[0]


def all_computed(functions: Sequence[Callable[..., Any]], x: Any) -> list[Any]:
    """Optimized: where LLVM fuses products and sums, the results have more digits."""
    mod = prepare(module(lambda given: relax.Tuple([each(given) for each in functions]), x), TARGET)
    machine = relax.VirtualMachine(relax.build(mod, TARGET), tvm.cpu())
    return [each.numpy() for each in machine["main"](tvm.runtime.tensor(x))]


def module(compute: Callable[..., Any], x: Any) -> tvm.IRModule:
    builder, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [given]):
        builder.emit_func_output(builder.emit(compute(given)))
    return builder.get()


NUMBERS = np.array([*10.0 ** np.linspace(-7, 1.9, 40), 89, 1e9, 1e19, 3e38, np.inf, np.nan, 0])
POINTS = np.concatenate([NUMBERS, -NUMBERS, 1 + NUMBERS, 1 - NUMBERS])
FUNCTIONS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (op.acos, np.arccos),
    (op.acosh, np.arccosh),
    (op.asin, np.arcsin),
    (op.asinh, np.arcsinh),
    (op.atan, np.arctan),
    (op.atanh, np.arctanh),
    (op.cosh, np.cosh),
    (op.sinh, np.sinh),
    (op.nn.softplus, lambda x: np.logaddexp(x, 0)),
]
TOLERATED = {"float64": 1e-9, "float32": 1e-6, "float16": 2.0**-10}
LEAST = {"float64": 2.0**-126, "float32": 2.0**-126, "float16": 2.0**-14}
"""a processor may count smaller numbers as zero"""


@pytest.mark.parametrize("dtype", TOLERATED)
def test_they_keep_the_digits_of_their_type(dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = POINTS.astype(dtype)
        for found, (_, reference) in zip(all_computed([f for f, _ in FUNCTIONS], x), FUNCTIONS, strict=True):
            expected = reference(x.astype("float64")).astype(dtype).astype("float64")
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype("float64"), expected, TOLERATED[dtype], LEAST[dtype])
