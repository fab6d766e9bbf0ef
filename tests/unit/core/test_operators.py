from __future__ import annotations

import pytest

from fractune_core.operators import RefusedNode, node_text, refusal_text, refused_node, unknown_text


def refusal(name: str = "n", output: str = "y", why: str = "its input is empty") -> str:
    return f"m.onnx: {refusal_text(17, node_text(name, output, 'com.microsoft.CDist'), why)}"


def test_a_refusal_names_one_node() -> None:
    assert refused_node(refusal()) == RefusedNode("n", "", ())
    assert refused_node(refusal(name="")) == RefusedNode("", "y", ())


def test_a_refusal_of_operators_names_all_of_them() -> None:
    alone, several = refusal(why=unknown_text([])), refusal(why=unknown_text(["Loop", "ai.x.Y"]))
    assert refused_node(alone) == RefusedNode("n", "", ("com.microsoft.CDist",))
    assert refused_node(several) == RefusedNode("n", "", ("com.microsoft.CDist", "Loop", "ai.x.Y"))


@pytest.mark.parametrize("text", ["", "m.onnx: has nothing to tune", "cannot import node 'x", "node 'x' (Loop): no"])
def test_another_error_names_no_node(text: str) -> None:
    assert refused_node(text) is None


def test_the_node_is_found_again_by_its_name_or_its_output_or_its_operator() -> None:
    by_name, by_output = RefusedNode("n", "", ()), RefusedNode("", "y", ())
    assert by_name.is_node("n", "other", "Loop")
    assert not by_name.is_node("", "n", "Loop")
    assert by_output.is_node("", "y", "Loop")
    assert not by_output.is_node("y", "z", "Loop")
    assert RefusedNode("n", "", ("Loop",)).is_node("m", "z", "Loop")


def test_a_long_name_is_found_by_its_shortened_form() -> None:
    name = "layer" * 100
    found = refused_node(refusal(name=name))
    assert found is not None
    assert found.name != name
    assert found.is_node(name, "y", "Loop")
