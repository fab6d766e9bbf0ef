"""Channels last for a GPU's tensor cores: their design space takes convolutions in NHWC, and no others."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from fractune_workers.children.layouts.expressions import has_fixed_shapes, operator_of

_NARROW = frozenset({"bfloat16", "float16", "int8"})
"""types of which a tensor core multiplies"""
_CONV = "nn.conv2d"
_CHANNELS_LAST = ["NHWC", "OHWI"]
"""of the image, and of the weights"""


def with_channels_last(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with its convolutions of narrow types, and what lies between them, in NHWC, as far as TVM can.

    Its pass gives up on a whole model for one operator whose layouts it does not know: such a model stays as it is.
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
    except (IndexError, RuntimeError):  # the latter is what TVM's own errors are
        return mod


def _layouts_of(call: Any) -> dict[str, list[str]]:
    """What TVM asks of every call."""
    if operator_of(call) != _CONV or str(call.args[0].ty.dtype) not in _NARROW:
        return {}
    # TVM's convolution in NHWC has no groups.
    return {f"relax.{_CONV}": _CHANNELS_LAST} if int(call.attrs.groups) == 1 and has_fixed_shapes(call) else {}
