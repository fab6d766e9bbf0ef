"""The reference computes without denormals, as bundles do, and the process does not notice."""

from __future__ import annotations

import numpy as np
from onnx import helper

from fractune_workers.children.checking.references import reference
from tests.support.denormals import flushes
from tests.support.onnx_models import onnx_model


def test_denormals_are_zero_in_a_session_alone() -> None:
    x = np.array([2e-38, 1.0], np.float32)
    model = onnx_model([helper.make_node("Mul", ["x", "half"], ["y"])], {"x": x}, {"half": np.array(0.5, np.float32)})
    run = reference(0).open(model.SerializeToString(), ["y"])
    assert not flushes()
    assert run({"x": x})[0].tolist() == [0.0, 0.5]
    assert not flushes()
