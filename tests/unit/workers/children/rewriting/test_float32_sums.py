"""Sums of float16 products in float32: their values, and what stays as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.rewriting.float32_sums import with_float32_sums

op = relax.op
HOST = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
ONES = 4096
"""terms of a sum, which stays at 2048 when they are added up one by one in float16"""


def convolution(image: Any, weights: Any) -> Any:
    return op.nn.conv2d(image, weights, data_layout="NHWC", kernel_layout="OHWI")


CASES = [
    pytest.param(op.matmul, [1, ONES], [ONES, 1], id="product"),
    pytest.param(convolution, [1, 8, 8, 64], [1, 8, 8, 64], id="convolution"),
]


def module(call: Callable[[Any, Any], Any], shapes: list[list[int]], dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call(*params)))
        builder.emit_func_output(result)
    return builder.get()


def output(mod: tvm.IRModule) -> Any:
    ones = [tvm.runtime.tensor(np.ones([int(dim) for dim in each.ty.shape], "float16")) for each in mod["main"].params]
    return relax.VirtualMachine(relax.build(mod, HOST), tvm.cpu())["main"](*ones).numpy()


@pytest.mark.parametrize(("call", "left", "right"), CASES)
def test_a_long_sum_loses_no_terms_and_keeps_its_type(call: Any, left: list[int], right: list[int]) -> None:
    mod = module(call, [left, right], "float16")
    wide = output(with_float32_sums(mod))
    assert (output(mod).item(), wide.item(), str(wide.dtype)) == (2048, ONES, "float16")


@pytest.mark.parametrize(("call", "left", "right"), CASES)
def test_other_types_stay_as_they_are(call: Any, left: list[int], right: list[int]) -> None:
    mod = module(call, [left, right], "float32")
    tvm.ir.assert_structural_equal(with_float32_sums(mod), mod)
