"""Models are compared without denormals, as bundles run, and the process does not notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from fractune_workers.children.checking.comparing import imported
from fractune_workers.children.checking.references import reference
from tests.support.denormals import flushes
from tests.support.onnx_models import onnx_model


def _by_reference(model: onnx.ModelProto) -> Any:
    return reference(0).open(model.SerializeToString(), ["y"])


def _by_importer(model: onnx.ModelProto) -> Any:
    return imported(model, {}, "llvm -mcpu=x86-64-v3")


@pytest.mark.parametrize("opened", [_by_reference, _by_importer])
def test_denormals_are_zero_in_a_run_alone(opened: Callable[[onnx.ModelProto], Any]) -> None:
    x = np.array([2e-38, 1.0], np.float32)
    model = onnx_model([helper.make_node("Mul", ["x", "half"], ["y"])], {"x": x}, {"half": np.array(0.5, np.float32)})
    run = opened(model)
    assert not flushes()
    assert run({"x": x})[0].tolist() == [0.0, 0.5]
    assert not flushes()
