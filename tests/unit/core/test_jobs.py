from __future__ import annotations

import pytest

from tuner_core.jobs import JobSpec


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        ("", ["conv2d", "conv2d1_relu", "dense"]),
        ("conv2d", ["conv2d", "conv2d1_relu"]),
        ("conv2d1,dense", ["conv2d1_relu", "dense"]),
        (" relu , dense,", ["conv2d1_relu", "dense"]),
        ("softmax,pool", []),
        (" , ", ["conv2d", "conv2d1_relu", "dense"]),
    ],
)
def test_only_names_operators_by_one_or_several_texts(only: str, wanted: list[str]) -> None:
    spec = JobSpec(model="a" * 64, model_name="m.onnx", shares=("cpu:1",), only=only)
    assert [name for name in ("conv2d", "conv2d1_relu", "dense") if spec.wants(name)] == wanted
