from __future__ import annotations

from onnx import TensorProto, helper

from fractune.features.parts.cutting import crossing, names_read, part_numbers, static_shapes


def node(operator: str, reads: str, makes: str) -> object:
    return helper.make_node(operator, reads.split(), makes.split())


CHAIN = [node("Conv", "x w", "a"), node("CDist", "a a", "b"), node("MatMul", "b v", "c")]


def test_a_refused_node_parts_what_is_before_it_from_what_is_after_it() -> None:
    assert part_numbers(CHAIN, {1}) == [0, 1, 2]
    assert crossing(CHAIN, [0, 1, 2], ["c"]) == {0: ["a"], 1: ["b"], 2: ["c"]}


def test_a_first_refused_node_has_no_own_part_before_it() -> None:
    assert part_numbers([node("CDist", "x x", "a"), node("MatMul", "a v", "b")], {0}) == [1, 2]


def test_what_does_not_depend_on_the_refused_node_stays_in_the_first_part() -> None:
    nodes = [node("CDist", "x x", "a"), node("Conv", "x w", "b"), node("MatMul", "a b", "c")]
    assert part_numbers(nodes, {0}) == [1, 0, 2]
    assert crossing(nodes, [1, 0, 2], ["c"]) == {0: ["b"], 1: ["a"], 2: ["c"]}


def test_a_part_without_a_heavy_operator_is_not_worth_a_crossing() -> None:
    nodes = [node("Conv", "x w", "a"), node("CDist", "a a", "b"), node("Relu", "b", "c"), node("CDist", "c c", "d")]
    assert part_numbers(nodes, {1, 3}) == [0, 1, 1, 1]


def test_more_parts_than_a_bundle_may_have_become_one() -> None:
    nodes = [node("MatMul", "x w", "a0")]
    for place in range(5):
        nodes += [node("CDist", f"a{place} w", f"b{place}"), node("MatMul", f"b{place} w", f"a{place + 1}")]
    numbers = part_numbers(nodes, set(range(1, 10, 2)))
    assert numbers == [0, *[1] * 9, 2]


def test_a_node_reads_what_its_subgraphs_read() -> None:
    inner = helper.make_graph(
        [helper.make_node("Add", ["outer", "own"], ["sum"]), helper.make_node("Relu", ["sum"], ["r"])],
        "then",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [1])],
        [helper.make_tensor("own", TensorProto.FLOAT, [1], [1.0])],
    )
    assert names_read(helper.make_node("If", ["cond"], ["y"], then_branch=inner, else_branch=inner)) == {
        "cond",
        "outer",
    }


def test_a_shape_is_fixed_if_it_is_inferred_and_seen_in_every_run() -> None:
    inferred = {"a": (2, 3), "b": None, "c": (4,), "d": (0,)}
    runs = [{"a": (2, 3), "b": (1,), "c": (4,), "d": (0,), "e": (9,)}, {"a": (2, 3), "b": (1,), "c": (5,), "d": (0,)}]
    assert static_shapes(inferred, runs) == {"a": (2, 3)}
