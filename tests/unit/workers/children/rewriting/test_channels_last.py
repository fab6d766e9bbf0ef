"""Channels last for a GPU: which convolutions, and what stays as it is."""

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_workers.children.importing.passes import with_channels_last
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import inputs_of

op = relax.op
HOST = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})


def image(dtype: str, groups: int = 1, *, unknown: bool = False) -> tvm.IRModule:
    """Two convolutions with a bias and a pooling between them; `unknown`: and an operator without a layout."""
    builder, rng = relax.BlockBuilder(), np.random.default_rng(0)
    x = relax.Var("x", relax.TensorType([1, 8, 6, 6], dtype))

    def weight(*shape: int) -> Any:
        return relax.const(rng.standard_normal(shape).astype(dtype))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(op.nn.conv2d(x, weight(16, 8 // groups, 3, 3), padding=1, groups=groups))
            y = builder.emit(op.add(y, weight(1, 16, 1, 1)))
            y = builder.emit(op.nn.max_pool2d(y, (2, 2)))
            y = builder.emit(op.nn.conv2d(y, weight(16, 16, 3, 3), padding=1))
            y = builder.emit(op.stack([y, y], axis=0)) if unknown else y
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.get()


def layouts(mod: tvm.IRModule) -> list[str]:
    """Of each convolution."""
    found: list[str] = []

    def note(expr: Any) -> None:
        if isinstance(expr, relax.Call) and getattr(expr.op, "name", "") == "relax.nn.conv2d":
            found.append(str(expr.attrs.data_layout))

    relax.analysis.post_order_visit(mod["main"], note)
    return found


@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_convolutions_of_narrow_types_have_their_channels_last(dtype: str) -> None:
    assert layouts(with_channels_last(image(dtype))) == ["NHWC", "NHWC"]


def test_others_stay_as_they_are() -> None:
    assert layouts(with_channels_last(image("float32"))) == ["NCHW", "NCHW"]
    assert layouts(with_channels_last(image("float16", groups=2))) == ["NCHW", "NHWC"]


def test_a_model_that_the_pass_gives_up_on_stays_whole() -> None:
    assert layouts(with_channels_last(image("float16", unknown=True))) == ["NCHW", "NCHW"]


def test_it_computes_the_same() -> None:
    mod = image("float16")
    (x,) = inputs_of(mod)
    outputs = (outputs_of(each, HOST, x.astype("float16"))[0] for each in (mod, with_channels_last(mod)))
    expected, found = (output.astype("float64") for output in outputs)
    assert np.abs(expected).max() > 1
    np.testing.assert_allclose(found, expected, atol=1e-2 * np.abs(expected).max())
