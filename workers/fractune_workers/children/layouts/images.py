"""Layout rules of pooling and resizing: operators over images in blocks."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax

from fractune_workers.children.layouts.kernels import direct
from fractune_workers.children.layouts.kernels.direct import Window
from fractune_workers.children.layouts.planner import CHANNELS, Made, Planner, is_image
from fractune_workers.children.rewriting.expressions import shape_of

_MOST_TAPS = 49
"""of a pooling window that is written out"""


def _image(planner: Planner, call: Any) -> tuple[Any, str, int] | None:
    """The image of an operator over images in blocks, the name of its layout, and of how many parts it is."""
    known = planner.in_blocks(call.args[0])
    if known is None or not is_image(known[1]) or str(call.attrs.layout) != "NCHW":
        return None
    return known[0], f"NCHW{known[1].size}c", known[1].parts


def pool(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    attrs = call.attrs
    kernel = tuple(int(extent) for extent in attrs.pool_size)
    if image is None or str(attrs.out_layout) != "NCHW" or math.prod(kernel) > _MOST_TAPS:
        return None
    made = planner.blocks(shape_of(call), CHANNELS, image[2])
    options: dict[str, Any] = {"kernel": kernel, "window": Window.of(attrs), "extents": made.shape[2:]}
    if call.op.name == "relax.nn.max_pool2d":
        return planner.kernel(direct.max_pool2d, image[0], name="max_pool2d", **options), made
    # At the edges of such an image, the mean counts other elements.
    if attrs.ceil_mode or options["window"].dilation != (1, 1):
        return None
    options["of_padding"] = bool(attrs.count_include_pad)
    return planner.kernel(direct.avg_pool2d, image[0], name="avg_pool2d", **options), made


def adaptive_pool(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    if image is None:
        return None
    value = relax.op.nn.adaptive_avg_pool2d(image[0], call.attrs.output_size, layout=image[1])
    return value, planner.blocks(shape_of(call), CHANNELS, image[2])


def resize(planner: Planner, call: Any) -> Made:
    image = _image(planner, call)
    if image is None:
        return None
    attrs = call.attrs
    value = relax.op.image.resize2d(
        image[0],
        call.args[1],
        roi=[float(edge) for edge in attrs.roi],
        layout=image[1],
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
    )
    return value, planner.blocks(shape_of(call), CHANNELS, image[2])
