"""Channels last for a GPU's tensor cores: their design space takes convolutions in NHWC alone."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from fractune_workers.children.rewriting.expressions import has_fixed_shapes, operator_of

_NARROW = frozenset({"bfloat16", "float16", "int8"})
"""types that a tensor core multiplies"""
_CONV = "nn.conv2d"
_CHANNELS_LAST = ["NHWC", "OHWI"]
"""of the image, and of the weights"""


def with_channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its convolutions of narrow types, and the values between them, in NHWC, as far as TVM can.

    TVM's pass gives up on a whole model for one operator of unknown layouts. Such a model is returned unchanged.
    """
    passes = tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertLayout({}, _layouts_of),
            relax.transform.FoldConstant(),  # weights are turned round once, here
        ]
    )
    try:
        return passes(mod)
    except (IndexError, RuntimeError):  # TVM's own errors are RuntimeErrors
        return mod


def _layouts_of(call: Any) -> dict[str, list[str]]:
    """The layouts of one call; TVM's pass requests them for every call."""
    if operator_of(call) != _CONV or str(call.args[0].ty.dtype) not in _NARROW:
        return {}
    # TVM's convolution in NHWC has no groups.
    return {f"relax.{_CONV}": _CHANNELS_LAST} if int(call.attrs.groups) == 1 and has_fixed_shapes(call) else {}
