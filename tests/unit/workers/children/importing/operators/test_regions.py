"""RoiAlign in its forms, as ONNX Runtime computes it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from tests.support.onnx_models import onnx_model, run_by_onnxruntime, run_imported

CORNERS = np.array(
    [[0, 0, 9, 13], [2, 3, 7.5, 8.1], [5, 5, 4, 4], [-3, -2, 3, 4], [6, 6, 20, 20], [1, 1, 1, 1]], np.float32
)
"""Among them regions that reach over the edges, of no size, and with their corners exchanged"""


@pytest.mark.parametrize("opset", [10, 16])
@pytest.mark.parametrize("samples", [0, 2])
def test_regions(opset: int, samples: int) -> None:
    x = np.random.default_rng(3).normal(size=(2, 2, 8, 9)).astype(np.float32)
    given = {"x": x, "corners": CORNERS, "images": np.array([0, 1, 0, 1, 0, 1])}
    modes = ["", "half_pixel", "output_half_pixel"] if opset >= 16 else [""]
    nodes = []
    for mode in modes:
        for scale in (1.0, 0.3):
            node = helper.make_node("RoiAlign", list(given), [f"{mode} {scale}"], output_height=3, output_width=2)
            node.attribute.append(helper.make_attribute("sampling_ratio", samples))
            node.attribute.append(helper.make_attribute("spatial_scale", scale))
            if mode:
                node.attribute.append(helper.make_attribute("coordinate_transformation_mode", mode))
            nodes.append(node)
    model = onnx_model(nodes, given, opset=opset, outputs=[node.output[0] for node in nodes])
    for node, ours, right in zip(nodes, run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-5, err_msg=node.output[0])
