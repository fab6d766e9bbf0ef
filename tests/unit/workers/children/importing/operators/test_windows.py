"""Pools and convolutions, padded as ONNX Runtime pads them: odd and even sizes, in one, two and three axes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
DRAW = np.random.default_rng(7)
KERNEL, STRIDES = [3, 2, 4], [2, 2, 3]
PADDINGS: list[dict[str, Any]] = [
    {"auto_pad": "SAME_UPPER"},
    {"auto_pad": "SAME_LOWER"},
    {"auto_pad": "SAME_LOWER", "ceil_mode": 1},
    {"auto_pad": "VALID", "ceil_mode": 1},
    {"pads": [0, 1]},
    {"pads": [1, 1], "ceil_mode": 1},
    {"pads": [0, 1], "ceil_mode": 1, "dilations": [2]},
]
POOLS: list[tuple[str, dict[str, Any]]] = [
    ("MaxPool", {}),
    ("AveragePool", {}),
    ("AveragePool", {"count_include_pad": 1}),
    ("LpPool", {"p": 3}),
]


def along(axes: int, attributes: dict[str, Any]) -> dict[str, Any]:
    """The attributes of one axis as those of several."""
    wide = dict(attributes)
    if "pads" in wide:
        wide["pads"] = [wide["pads"][0]] * axes + [wide["pads"][1]] * axes
    if "dilations" in wide:
        wide["dilations"] *= axes
    return wide


def compare(nodes: list[onnx.NodeProto], x: Array, weights: dict[str, Array]) -> None:
    """All nodes in one model: together they are compiled once."""
    outputs = [node.output[0] for node in nodes]
    model = onnx_model(nodes, {"x": x}, weights, opset=19, outputs=outputs)
    ours, theirs = run_imported(model, {"x": x}), run_by_onnxruntime(model, {"x": x})
    for name, mine, right in zip(outputs, ours, theirs, strict=True):
        assert mine.shape == right.shape, name
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("sizes", [[7], [8], [7, 6], [9, 7, 8]])
def test_pools(sizes: list[int]) -> None:
    axes = len(sizes)
    nodes = []
    for operator, own in POOLS:
        for padding in PADDINGS if axes == 1 else PADDINGS[1:6:2]:
            each = {**own, **along(axes, padding), "kernel_shape": KERNEL[:axes], "strides": STRIDES[:axes]}
            nodes.append(helper.make_node(operator, ["x"], [f"{operator} {own} {padding}"], **each))
    compare(nodes, DRAW.normal(size=(1, 2, *sizes)).astype(np.float32), {})


@pytest.mark.parametrize("sizes", [[7], [7, 6], [5, 6, 7]])
def test_convolutions(sizes: list[int]) -> None:
    axes = len(sizes)
    weights = {"w": DRAW.normal(size=(2, 2, *KERNEL[:axes])).astype(np.float32)}
    nodes = []
    for operator in ("Conv", "ConvTranspose"):
        for padding in PADDINGS[0:2] + PADDINGS[4:5]:
            each = {**along(axes, padding), "strides": STRIDES[:axes]}
            nodes.append(helper.make_node(operator, ["x", "w"], [f"{operator} {padding}"], **each))
    compare(nodes, DRAW.normal(size=(1, 2, *sizes)).astype(np.float32), weights)


@pytest.mark.parametrize("sizes", [[9], [6, 7]])
def test_a_transposed_convolution_by_steps_of_one_is_a_convolution(sizes: list[int]) -> None:
    axes = len(sizes)
    drawn = {"w": DRAW.normal(size=(4, 2, *KERNEL[:axes])), "b": DRAW.normal(size=4)}
    weights = {name: each.astype(np.float32) for name, each in drawn.items()}
    nodes = []
    for number, padding in enumerate([*PADDINGS[0:2], {"pads": [0, 1], "dilations": [2]}, {}]):
        attributes = along(axes, padding)
        nodes.append(helper.make_node("ConvTranspose", ["x", "w", "b"], [f"y{number}"], group=2, **attributes))
    x = DRAW.normal(size=(1, 4, *sizes)).astype(np.float32)
    compare(nodes, x, weights)
    model = onnx_model(nodes, {"x": x}, weights, opset=19, outputs=["y0"])
    assert "transpose" not in imported(model).script()


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (
            {"kernel_shape": [2, 2], "dilations": [2, 2], "auto_pad": "SAME_UPPER"},
            "auto_pad=SAME_UPPER of windows with dilations has another size in ONNX's text than in ONNX Runtime",
        ),
        ({"kernel_shape": [2]}, "its kernel, strides and dilations are not 2 numbers above 0; export it again"),
        ({"kernel_shape": [2, 2], "strides": [0, 1]}, "its kernel, strides and dilations are not 2 numbers above 0"),
    ],
)
def test_windows_that_are_refused(attributes: dict[str, Any], words: str) -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    with pytest.raises(BadModel, match=words):
        imported(onnx_model([helper.make_node("MaxPool", ["x"], ["y"], **attributes)], {"x": x}))
