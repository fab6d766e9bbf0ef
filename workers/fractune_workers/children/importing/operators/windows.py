"""Pools and convolutions whose padding ONNX leaves to their converter: it is worked out here, and TVM's gets numbers.

TVM's own rules for `auto_pad` round the size of a MaxPool down for SAME_LOWER, and its LpPool counts each window as a
whole where `ceil_mode` cuts the last ones.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from fractune_workers.children.importing.onnx_graph import text_of
from fractune_workers.children.importing.operators.onnx_node import Converter, OnnxNode, shape_of

_SAME = ("SAME_UPPER", "SAME_LOWER")
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}
"""by the number of axes"""


@dataclass(frozen=True)
class _Window:
    """What a pool or a convolution reads along one axis at once."""

    size: int
    """of the axis"""
    length: int
    """from the first element of the window to the last, both with it"""
    stride: int

    @property
    def same_padding(self) -> int:
        """Of both ends together, for one window at each stride."""
        return max(0, (-(-self.size // self.stride) - 1) * self.stride + self.length - self.size)

    def beyond(self, before: int, after: int) -> int:
        """Elements by which the last window reaches over the axis and its padding; a window begins before the end."""
        rest = (self.size + before + after - self.length) % self.stride
        begin = self.size + before + after - self.length - rest + self.stride
        return self.stride - rest if rest and begin < self.size + before else 0


def _conv(node: OnnxNode) -> Any:
    return node.by_tvm(_padded(node, shape_of(node.input(1))[2:])[0])


def _pool(node: OnnxNode) -> Any:
    return node.by_tvm(_padded_pool(node)[0])


def _lp_pool(node: OnnxNode) -> Any:
    """Zeros beside the input add nothing: what a last window reaches over the end becomes padding."""
    attributes, windows = _padded_pool(node)
    if attributes.pop("ceil_mode", 0):
        begins, ends = _halves(attributes["pads"])
        over = [each.beyond(*pads) for each, *pads in zip(windows, begins, ends, strict=True)]
        attributes["pads"] = (*begins, *(end + more for end, more in zip(ends, over, strict=True)))
    return node.by_tvm(attributes)


def _conv_transpose(node: OnnxNode) -> Any:
    """With `output_shape`, the padding follows from it."""
    attributes = dict(node.attributes)
    wanted = attributes.pop("output_shape", None)
    if not wanted:
        made = _unstrided(node)
        return node.by_tvm() if made is None else made
    sizes, kernel = shape_of(node.input(0))[2:], shape_of(node.input(1))[2:]
    ones, zeros = [1] * len(sizes), [0] * len(sizes)
    strides, dilations = attributes.get("strides", ones), attributes.get("dilations", ones)
    extra = attributes.get("output_padding", zeros)
    totals = [
        stride * (size - 1) + more + (length - 1) * dilation + 1 - out
        for stride, size, more, length, dilation, out in zip(
            strides, sizes, extra, kernel, dilations, wanted[-len(sizes) :], strict=True
        )
    ]
    if min(totals) < 0:
        raise node.refused(f"output_shape={list(wanted)} is larger than its input makes it; export it with padding")
    attributes["pads"] = _shared(totals, more_after=attributes.pop("auto_pad", b"") == b"SAME_UPPER")
    return node.by_tvm(attributes)


def _unstrided(node: OnnxNode) -> relax.Expr | None:
    """A transposed convolution by steps of 1 is a convolution with the weights turned around, which has faster kernels;
    None for another one.
    """
    weights, kernel = node.constant(1), shape_of(node.input(1))[2:]
    ones, zeros = [1] * len(kernel), [0] * len(kernel)
    steps = [
        *node.attributes.get("strides", ones),
        *(1 + more for more in node.attributes.get("output_padding", zeros)),
    ]
    if weights is None or len(kernel) not in _CONVOLUTIONS or set(steps) != {1}:
        return None
    dilations = list(node.attributes.get("dilations", ones))
    reaches = [by * (length - 1) for by, length in zip(dilations, kernel, strict=True)]
    pads = [reach - pad for reach, pad in zip(reaches * 2, _transposed_pads(node, reaches), strict=True)]
    if min(pads) < 0:
        return None
    groups, depth = int(node.attributes.get("group", 1)), weights.shape[0]
    turned = np.flip(weights, tuple(range(2, weights.ndim)))
    turned = turned.reshape(groups, depth // groups, -1, *kernel).swapaxes(1, 2).reshape(-1, depth // groups, *kernel)
    convolve, kernels = _CONVOLUTIONS[len(kernel)], relax.const(turned, str(turned.dtype))
    made = convolve(node.input(0), kernels, padding=pads, dilation=dilations, groups=groups)
    bias = node.optional(2)
    if bias is None:
        return made
    return relax.op.add(node.emit(made), node.emit(relax.op.reshape(bias, [1, -1, *ones])))


def _transposed_pads(node: OnnxNode, reaches: Sequence[int]) -> Sequence[int]:
    """Before and after all axes, of steps of 1."""
    mode, none = _mode(node), [0] * 2 * len(reaches)
    if mode.startswith("SAME"):
        return _shared(reaches, more_after=mode == "SAME_UPPER")
    return node.attributes.get("pads", none) if mode == "NOTSET" else none


def _padded_pool(node: OnnxNode) -> tuple[dict[str, Any], list[_Window]]:
    if _mode(node) in _SAME and set(node.attributes.get("dilations", ())) - {1}:
        raise node.refused(
            f"auto_pad={_mode(node)} of windows with dilations has another size in ONNX's text than in ONNX Runtime; "
            "export it with pads"
        )
    return _padded(node, node.attributes.get("kernel_shape", ()))


def _padded(node: OnnxNode, kernel: Sequence[int]) -> tuple[dict[str, Any], list[_Window]]:
    """The node's attributes with `pads` in place of `auto_pad`, and the windows of its axes."""
    sizes, ones = shape_of(node.input(0))[2:], (1,) * (len(shape_of(node.input(0))) - 2)
    strides, dilations = (node.attributes.get(name, ones) for name in ("strides", "dilations"))
    if {len(kernel), len(strides), len(dilations)} != {len(sizes)} or min(*kernel, *strides, *dilations) < 1:
        raise node.refused(f"its kernel, strides and dilations are not {len(sizes)} numbers above 0; export it again")
    windows = [
        _Window(size, (length - 1) * dilation + 1, stride)
        for size, length, dilation, stride in zip(sizes, kernel, dilations, strides, strict=True)
    ]
    attributes = {name: value for name, value in node.attributes.items() if name != "auto_pad"}
    attributes["kernel_shape"] = tuple(kernel)
    mode = _mode(node)
    if mode in _SAME:
        pads = _shared([each.same_padding for each in windows], more_after=mode == "SAME_UPPER")
        attributes |= {"pads": pads, "ceil_mode": 0}
    elif mode == "VALID" or "pads" not in attributes:
        attributes["pads"] = (0,) * (2 * len(sizes))
    return attributes, windows


def _shared(totals: Sequence[int], *, more_after: bool) -> tuple[int, ...]:
    """Pads before and after all axes, halves of these totals. Of an odd one the larger half is after the axis, or
    before it.
    """
    less, more = [total // 2 for total in totals], [total - total // 2 for total in totals]
    return (*less, *more) if more_after else (*more, *less)


def _halves(pads: Sequence[int]) -> tuple[Sequence[int], Sequence[int]]:
    return pads[: len(pads) // 2], pads[len(pads) // 2 :]


def _mode(node: OnnxNode) -> str:
    return text_of(node.attributes.get("auto_pad", "NOTSET"))


WINDOWS: Mapping[str, Converter] = {
    "AveragePool": _pool,
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "LpPool": _lp_pool,
    "MaxPool": _pool,
}
"""by ONNX's names"""
