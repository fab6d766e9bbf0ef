from __future__ import annotations

import pytest

from benchmarks.support.models import MODELS, Operator, find_model, heavy


def named(*names: str) -> list[Operator]:
    return [Operator(name, 1, name, "{}") for name in names]


def test_heavy_operators_come_in_the_order_of_the_model() -> None:
    found = heavy(named("softmax", "fused_conv2d10_relu", "fused_conv2d2_add", "fused_conv2d_add"), ["conv2d"], 2)
    assert [operator.name for operator in found] == ["fused_conv2d_add", "fused_conv2d2_add"]


def test_kinds_come_in_the_order_given_and_a_name_counts_once() -> None:
    found = heavy(named("fused_matmul_conv2d", "fused_matmul1", "conv2d1"), ["conv2d", "matmul"], 9)
    assert [operator.name for operator in found] == ["fused_matmul_conv2d", "conv2d1", "fused_matmul1"]


def test_the_models_are_there_and_their_open_inputs_are_options() -> None:
    shipped = [name for name, each in MODELS.items() if each.install == "make setup"]
    assert all(find_model(name).path.is_file() for name in shipped)
    assert find_model("magika").options == ["--input=bytes=1,2048"]


def test_a_package_that_is_not_there_is_told_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"rapidocr_onnxruntime is not installed; run: .* --no-deps"):
        find_model("ocr_angle")
