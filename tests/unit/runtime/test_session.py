"""The session of ONNX Runtime's manner, beside the real one."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import fractune
from fractune_core.errors import BadRequest
from tests.unit.conftest import Small


def test_the_same_program_over_both(small: Small) -> None:
    ours = fractune.InferenceSession(small.bundle, providers=["CPUExecutionProvider"])
    theirs = onnxruntime.InferenceSession(str(small.model), providers=["CPUExecutionProvider"])
    for nodes, others in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(node.name, node.shape, node.type) for node in nodes] == [
            (node.name, node.shape, node.type) for node in others
        ]
    feed = {ours.get_inputs()[0].name: np.full((1, 4, 16, 16), 0.5, "float32")}
    for names in (None, ["y"]):
        for output, expected in zip(ours.run(names, feed), theirs.run(names, feed), strict=True):
            np.testing.assert_allclose(output, expected, rtol=1e-4)


def test_another_provider_is_refused(small: Small) -> None:
    with pytest.raises(BadRequest, match=r"small\.fractune runs by CPUExecutionProvider; name that"):
        fractune.InferenceSession(small.bundle, providers=["CUDAExecutionProvider"])


def test_an_output_that_is_not_there_is_told(small: Small) -> None:
    session = fractune.InferenceSession(str(small.bundle), share="cpu:1")
    with pytest.raises(BadRequest, match="the model has no output 'z'; it gives y"):
        session.run(["z"], session.model.random_inputs())
