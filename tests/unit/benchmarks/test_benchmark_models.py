from __future__ import annotations

import pytest

from benchmarks.support.models import Operator, find_model, heavy


def named(*names: str) -> list[Operator]:
    return [Operator(name, 1, name, "{}") for name in names]


def test_heavy_operators_come_in_the_order_of_the_model() -> None:
    found = heavy(named("softmax", "fused_conv2d10_relu", "fused_conv2d2_add", "fused_conv2d_add"), ["conv2d"], 2)
    assert [operator.name for operator in found] == ["fused_conv2d_add", "fused_conv2d2_add"]


def test_kinds_come_in_the_order_given_and_a_name_counts_once() -> None:
    found = heavy(named("fused_matmul_conv2d", "fused_matmul1", "conv2d1"), ["conv2d", "matmul"], 9)
    assert [operator.name for operator in found] == ["fused_matmul_conv2d", "conv2d1", "fused_matmul1"]


def test_models_that_are_installed_need_no_download_and_their_open_inputs_are_options() -> None:
    magika = find_model("magika")
    assert magika.path.is_file()
    assert (magika.options, magika.kinds) == (["--input=bytes=1,2048"], ("conv2d", "matmul"))


def test_an_unknown_model_is_named_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no model 'net'; there are squeezenet, .*, transformer$"):
        find_model("net")
