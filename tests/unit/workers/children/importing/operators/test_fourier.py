"""DFT and STFT give NumPy's numbers; what does not fit a matrix is refused by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from fractune_core.errors import BadModel
from tests.support.onnx_models import imported, onnx_model, run_imported, run_reference

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


def test_frames_longer_than_the_signal_are_refused() -> None:
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"], "it")
    model = onnx_model([node], {"x": SIGNAL}, {"step": np.array(3), "length": np.array(13)})
    with pytest.raises(BadModel, match=r"node 'it' \(STFT\): frames of 13 by 3 do not fit 12 samples"):
        imported(model)


def test_a_step_of_0_is_refused() -> None:
    node = helper.make_node("STFT", ["x", "step", "", "length"], ["y"], "it")
    model = onnx_model([node], {"x": SIGNAL}, {"step": np.array(0), "length": np.array(8)})
    with pytest.raises(BadModel, match=r"node 'it' \(STFT\): frames of 8 by 0 do not fit 12 samples"):
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
