"""DFT and STFT give NumPy's numbers; what does not fit a matrix is refused by name."""

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, run_reference

SIGNAL = np.random.default_rng(0).standard_normal((2, 12, 1)).astype(np.float32)
SPECTRUM = np.random.default_rng(1).standard_normal((2, 7, 2)).astype(np.float32)
TRANSFORMS: list[tuple[Any, dict[str, Any], dict[str, Any]]] = [
    (SIGNAL, {"onesided": 1}, {}),
    (SIGNAL, {}, {"length": np.array(16)}),
    (SIGNAL, {"onesided": 1}, {"length": np.array(9)}),
    (SPECTRUM, {}, {}),
    (SPECTRUM, {"inverse": 1}, {"length": np.array(7), "axis": np.array(1)}),
]


@pytest.mark.parametrize(("x", "attributes", "constants"), TRANSFORMS)
def test_a_transform(x: Any, attributes: dict[str, Any], constants: dict[str, Any]) -> None:
    model = onnx_model([helper.make_node("DFT", ["x", *constants], ["y"], **attributes)], {"x": x}, constants)
    np.testing.assert_allclose(run_imported(model, {"x": x})[0], run_reference(model, {"x": x})[0], atol=1e-5)


@pytest.mark.parametrize("length", [11, 12])
def test_half_a_spectrum_becomes_real_numbers(length: int) -> None:
    node = helper.make_node("DFT", ["x", "length"], ["y"], inverse=1, onesided=1)
    model = onnx_model([node], {"x": SPECTRUM}, {"length": np.array(length)})
    wanted = np.fft.irfft(SPECTRUM[..., 0] + 1j * SPECTRUM[..., 1], length, axis=1)[..., None]
    np.testing.assert_allclose(run_imported(model, {"x": SPECTRUM})[0], wanted, atol=1e-5)


@pytest.mark.parametrize("window", [(), (np.hanning(5).astype(np.float32),)])
def test_frames_of_a_signal(window: tuple[Any, ...]) -> None:
    constants = {"step": np.array(3), **({"window": window[0]} if window else {}), "length": np.array(5)}
    inputs = ["x", "step", "window" if window else "", "length"]
    model = onnx_model([helper.make_node("STFT", inputs, ["y"])], {"x": SIGNAL}, constants)
    frames = np.stack([SIGNAL[:, at : at + 5, 0] for at in range(0, 8, 3)], axis=1)
    wanted = np.fft.rfft(frames * (window[0] if window else 1))
    (made,) = run_imported(model, {"x": SIGNAL})
    np.testing.assert_allclose(made[..., 0] + 1j * made[..., 1], wanted, atol=1e-5)


def test_a_long_transform_is_refused() -> None:
    model = onnx_model([helper.make_node("DFT", ["x"], ["y"], "it")], {"x": np.zeros((1, 5000, 1), np.float32)})
    with pytest.raises(
        BadModel, match=r"node 'it' \(DFT\): 5000 samples to 5000 frequencies are too many for a matrix"
    ):
        imported(model)


@pytest.mark.parametrize(("step", "length"), [(3, 13), (0, 8)])
def test_frames_longer_than_the_signal_and_a_step_of_0_are_refused(step: int, length: int) -> None:
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"], "it")
    model = onnx_model([node], {"x": SIGNAL}, {"step": np.array(step), "length": np.array(length)})
    with pytest.raises(BadModel, match=rf"node 'it' \(STFT\): frames of {length} by {step} do not fit 12 samples"):
        imported(model)


@pytest.mark.parametrize(
    ("last", "constants", "words"),
    [
        (1, {"n": np.array(0)}, "it transforms 0 samples; export it with a length of 1 or more"),
        (1, {"n": np.array(-1)}, "it transforms -1 samples; export it with a length of 1 or more"),
        (3, {}, "its last axis has 3 numbers, and only 1 or 2 are one number; export the model again"),
        (1, {"n": np.array(8), "axis": np.array(2)}, "axis 2 is not one of the 2 axes of samples; export"),
    ],
)
def test_what_is_no_transform_is_refused(last: int, constants: dict[str, Any], words: str) -> None:
    x = np.zeros((2, 8, last), np.float32)
    model = onnx_model([helper.make_node("DFT", ["x", *constants], ["y"], "it")], {"x": x}, constants)
    with pytest.raises(BadModel, match=rf"node 'it' \(DFT\): {words}"):
        imported(model)


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
