"""Transcendental functions by polynomials: how far they are from NumPy's, and that their code calls no library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import prepare

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
X = np.linspace(-9, 9, 8192, dtype="float32")
erf = np.vectorize(math.erf)
op = relax.op


def softmax(x: Any) -> Any:
    powers = np.exp(x - x.max())
    return powers / powers.sum()


@pytest.mark.parametrize(
    ("compute", "reference"),
    [
        pytest.param(op.exp, np.exp, id="exp"),
        pytest.param(op.tanh, np.tanh, id="tanh"),
        pytest.param(op.erf, erf, id="erf"),
        pytest.param(op.sigmoid, lambda x: 1 / (1 + np.exp(-x)), id="sigmoid"),
        pytest.param(op.nn.silu, lambda x: x / (1 + np.exp(-x)), id="silu"),
        pytest.param(op.nn.gelu, lambda x: x * (1 + erf(x / 2**0.5)) / 2, id="gelu"),
        pytest.param(op.nn.softmax, softmax, id="softmax"),
    ],
)
def test_they_are_close(compute: Callable[..., Any], reference: Callable[..., Any]) -> None:
    result = computed(compute, X)
    expected = reference(X.astype("float64"))
    assert np.abs(result - expected).max() < 1e-6 * max(1.0, np.abs(expected).max())


@pytest.mark.parametrize("compute", [op.sigmoid, op.nn.silu])
def test_small_results_keep_their_digits(compute: Callable[..., Any]) -> None:
    x = np.linspace(-80, 0, 64, dtype="float32")
    wide = x.astype("float64")
    np.testing.assert_allclose(
        computed(compute, x), (wide if compute is op.nn.silu else 1) / (1 + np.exp(-wide)), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("compute", [op.erf, op.sigmoid, op.nn.silu, op.nn.gelu])
def test_other_types_are_close(compute: Callable[..., Any], dtype: str) -> None:
    narrow, exact = (computed(compute, X.astype(each)) for each in (dtype, "float32"))
    assert narrow.dtype == dtype
    np.testing.assert_allclose(narrow.astype("float32"), exact, rtol=2e-3, atol=1e-3)


def computed(compute: Callable[..., Any], x: Any) -> Any:
    builder, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [given]):
        builder.emit_func_output(builder.emit(compute(given)))
    mod = prepare(builder.get(), TARGET)
    return relax.VirtualMachine(relax.build(mod, TARGET), tvm.cpu())["main"](tvm.runtime.tensor(x)).numpy()
