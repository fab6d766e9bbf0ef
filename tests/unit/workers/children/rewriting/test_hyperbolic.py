"""Hyperbolic functions and their inverses keep the digits of small results, and of large ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import prepare

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
NUMBERS = np.array([*10.0 ** np.linspace(-7, 1.9, 40), 89, 1e9, 1e19, 3e38, np.inf, np.nan, 0])
X = np.concatenate([NUMBERS, -NUMBERS, 1 + NUMBERS, 1 - NUMBERS])
op = relax.op
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
TOLERANCES = {"float64": 1e-9, "float32": 1e-6, "float16": 2.0**-10}
LEAST = {"float64": 2.0**-126, "float32": 2.0**-126, "float16": 2.0**-14}
"""a processor may count smaller numbers as zero"""


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_they_keep_the_digits_of_their_type(dtype: str) -> None:
    with np.errstate(all="ignore"):
        x = X.astype(dtype)
        for found, (_, reference) in zip(computed(x), FUNCTIONS, strict=True):
            expected = reference(x.astype("float64")).astype(dtype).astype("float64")
            assert found.dtype == dtype
            np.testing.assert_allclose(found.astype("float64"), expected, TOLERANCES[dtype], LEAST[dtype])


def computed(x: Any) -> list[Any]:
    builder, given = relax.BlockBuilder(), relax.Var("x", relax.TensorType(x.shape, str(x.dtype)))
    with builder.function("main", [given]):
        builder.emit_func_output(relax.Tuple([builder.emit(compute(given)) for compute, _ in FUNCTIONS]))
    mod = prepare(builder.get(), TARGET)
    with tvm.transform.PassContext(opt_level=0):
        machine = relax.VirtualMachine(relax.build(mod, TARGET), tvm.cpu())
    return [each.numpy() for each in machine["main"](tvm.runtime.tensor(x))]
