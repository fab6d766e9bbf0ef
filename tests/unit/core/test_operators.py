"""Texts of operators, their names, and their implementations."""

import hashlib
from itertools import product
from typing import Any

import pytest

from fractune_core.errors import BadRequest
from fractune_core.names import check_file_name, explained_variant, plain_variant
from fractune_core.operators import (
    DIRECT,
    TRITON,
    WINOGRAD2,
    WINOGRAD4,
    RefusedNode,
    check_workload,
    implementation_of,
    is_exact,
    is_workload_hash,
    joined_workloads,
    node_text,
    parted_workloads,
    refusal_text,
    refused_node,
    text_of,
    trace_of,
    unknown_text,
    workload_hash,
)
from fractune_core.records import UNTUNED

GRAPH = {"root_index": 0, "nodes": [{"type": "None"}]}


@pytest.mark.parametrize("graphs", [{DIRECT: GRAPH}, {WINOGRAD2: {"nodes": []}, DIRECT: GRAPH}])
def test_workloads_are_parted_as_they_were_joined(graphs: dict[str, Any]) -> None:
    text = joined_workloads(graphs)
    assert parted_workloads(text) == graphs
    assert next(iter(parted_workloads(text))) == DIRECT


def test_an_operator_is_named_by_all_of_its_text() -> None:
    text = joined_workloads({DIRECT: GRAPH})
    name = workload_hash(text)
    assert name == hashlib.sha256(text.encode()).hexdigest()
    check_workload(name, text)
    for other in (text + " ", joined_workloads({DIRECT: GRAPH, WINOGRAD2: GRAPH}), ""):
        with pytest.raises(BadRequest, match=f"workload {name}: its text has another SHA-256"):
            check_workload(name, other)


@pytest.mark.parametrize("name", ["", "f" * 16, "F" * 64, "f" * 63, "f" * 65, "g" * 64, "f" * 64 + "\n"])
def test_only_a_whole_sha256_is_a_name(name: str) -> None:
    assert not is_workload_hash(name)
    with pytest.raises(BadRequest, match="that is not a workload hash"):
        check_workload(name, "")


TRACE = '[[["GetSBlock",[],["a:b","main"],["b0"]]],[]]'


@pytest.mark.parametrize("name", [DIRECT, TRITON, WINOGRAD2, WINOGRAD4])
def test_a_text_is_taken_apart_as_it_was_put_together(name: str) -> None:
    text = text_of(name, TRACE)
    assert (implementation_of(text), trace_of(text)) == (name, TRACE)


@pytest.mark.parametrize("text", [UNTUNED, TRACE, "not a trace: [", "no:colon", ":[]"])
def test_what_names_no_implementation_is_of_the_direct_one(text: str) -> None:
    assert (implementation_of(text), trace_of(text)) == (DIRECT, text)


def test_which_of_them_round_otherwise() -> None:
    names = [DIRECT, "split", TRITON, WINOGRAD2, WINOGRAD4]
    assert [is_exact(text_of(name, TRACE)) for name in names] == [True, True, False, False, False]


@pytest.mark.parametrize("name", ["m", "m.onnx", "two words.onnx", "é" * 100, "..onnx", "[red]x", "x" * 200])
def test_a_files_name_is_taken(name: str) -> None:
    check_file_name(name, "display_name")


@pytest.mark.parametrize(
    "name", ["", ".", "..", "/", "a/b", "../x", "a\0b", "a\nb", "\x1b[2J", "\u202e", "\udc80", "x" * 201, "é" * 101]
)
def test_what_is_no_files_name_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match=r"^display_name is '.*'; name the file by 1 to 200 bytes of printable UTF-8"):
        check_file_name(name, "display_name")


def test_a_name_that_is_too_long_is_quoted_in_part() -> None:
    with pytest.raises(BadRequest, match=r"is 'B+ \.\.\. B+';") as caught:
        check_file_name("B" * 2_000_000, "display_name")
    assert len(str(caught.value)) < 250


def test_a_variant_s_name_without_its_ends_is_its_share() -> None:
    for plain, end in product(("mps:25", "robust"), ("", "+attention", "+graph", "+attention+graph")):
        assert plain_variant(plain + end) == plain
    assert "full" not in map(plain_variant, ("full+graph+attention", "full+other"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("full", "'full'"),
        ("mps:25+graph", "'mps:25+graph' (CUDA graphs)"),
        ("full+attention", "'full+attention' (attention as one kernel)"),
        ("full+attention+graph", "'full+attention+graph' (attention as one kernel, CUDA graphs)"),
        ("mig:1g.10gb+me", "'mig:1g.10gb+me'"),
        ("robust+graph", "'robust+graph' (made for all shares, CUDA graphs)"),
    ],
)
def test_the_ends_of_a_variant_s_name_are_explained(name: str, text: str) -> None:
    assert explained_variant(name) == text


def refusal(name: str = "n", output: str = "y", why: str = "its input is empty") -> str:
    return f"m.onnx: {refusal_text(17, node_text(name, output, 'com.microsoft.CDist'), why)}"


def test_a_refusal_names_one_node_and_all_unknown_operators() -> None:
    assert refused_node(refusal()) == RefusedNode("n", "", ())
    assert refused_node(refusal(name="")) == RefusedNode("", "y", ())
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
