"""Parts are named after their model."""

from __future__ import annotations

import pytest

from fractune.features.parts.cutting import is_part_of, part_name


@pytest.mark.parametrize("model", ["encoder.onnx", "model", "a.part1.onnx", "v1.2"])
def test_a_part_is_known_by_its_name(model: str) -> None:
    assert is_part_of(part_name(model, 12), model)
    assert not is_part_of(part_name(model, 12), f"other-{model}")


@pytest.mark.parametrize("name", ["encoder.onnx", "encoder.part.onnx", "encoder.partx.onnx", "encoder.part01.onnx", ""])
def test_any_other_name_is_of_no_part(name: str) -> None:
    assert not is_part_of(name, "encoder.onnx")
