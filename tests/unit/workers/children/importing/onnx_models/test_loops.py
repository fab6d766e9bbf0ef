"""`Loop` and `Scan`: unrolled where the number of iterations is known, and refused with what to do where it is not."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fractune_core.errors import BadModel
from fractune_core.operators import RefusedNode, refused_node
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
X = np.arange(12, dtype=np.float32).reshape(3, 4)
value = helper.make_tensor_value_info


def loop_body(*, until: int | None = None, weights: dict[str, Array] | None = None) -> onnx.GraphProto:
    """a = a * step + x; stacks a; goes on while the count is below `until`."""
    nodes = [
        helper.make_node("Mul", ["a", "step"], ["scaled"]),
        helper.make_node("Add", ["scaled", "x"], ["b"]),
        helper.make_node("Identity", ["b"], ["seen"]),
    ]
    if until is None:
        nodes.append(helper.make_node("Identity", ["go"], ["more"]))
    else:
        nodes.append(helper.make_node("Less", ["at", "until"], ["more"]))
    graph = helper.make_graph(
        nodes,
        "body",
        [value("at", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [3, 4])],
        [
            value("more", TensorProto.BOOL, []),
            value("b", TensorProto.FLOAT, [3, 4]),
            value("seen", TensorProto.FLOAT, [3, 4]),
        ],
    )
    own = {"step": np.full((), 0.5, np.float32), **(weights or {})}
    if until is not None:
        own["until"] = np.array(until)
    graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in own.items())
    return graph


def check(folder: Path, model: onnx.ModelProto) -> None:
    """Against ONNX Runtime: ONNX's own reference keeps the first value of a state, and does not stack."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    for ours, theirs in zip(run_imported(model, {"x": X}), run_by_onnxruntime(path, {"x": X}), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


@pytest.mark.parametrize("opset", [11, 17])
def test_a_number_of_iterations(tmp_path: Path, opset: int) -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], body=loop_body())
    check(tmp_path, onnx_model([node], {"x": X}, {"n": np.array(4)}, opset))


def test_a_condition_that_follows_from_constants(tmp_path: Path) -> None:
    node = helper.make_node("Loop", ["", "yes", "x"], ["y", "all"], body=loop_body(until=2))
    check(tmp_path, onnx_model([node], {"x": X}, {"yes": np.ones((), bool)}))


def test_a_loop_in_a_loop(tmp_path: Path) -> None:
    inner = helper.make_node("Loop", ["n", "", "a"], ["b", "seen"], body=loop_body())
    body = helper.make_graph(
        [inner, helper.make_node("Identity", ["go"], ["more"])],
        "outer",
        [value("at", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [3, 4])],
        [value("more", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, [3, 4])],
    )
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    check(tmp_path, onnx_model([node], {"x": X}, {"n": np.array(3)}))


def scan(**attributes: Any) -> onnx.NodeProto:
    body = helper.make_graph(
        [helper.make_node("Add", ["s", "row"], ["t"]), helper.make_node("Neg", ["t"], ["out"])],
        "body",
        [value("s", TensorProto.FLOAT, None), value("row", TensorProto.FLOAT, None)],
        [value("t", TensorProto.FLOAT, None), value("out", TensorProto.FLOAT, None)],
    )
    return helper.make_node("Scan", ["first", "x"], ["last", "all"], body=body, num_scan_inputs=1, **attributes)


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"scan_input_axes": [1], "scan_output_axes": [1]},
        {"scan_input_directions": [1], "scan_output_directions": [1]},
    ],
    ids=["rows", "columns", "backwards"],
)
def test_a_scan_over_slices(tmp_path: Path, attributes: dict[str, Any]) -> None:
    length = 3 if "scan_input_axes" in attributes else 4
    check(tmp_path, onnx_model([scan(**attributes)], {"x": X}, {"first": np.zeros(length, np.float32)}))


def test_a_computed_number_of_iterations_is_refused() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["n"], to=TensorProto.INT64),
        helper.make_node("Loop", ["n", "", "x"], ["y", "all"], name="many", body=loop_body()),
    ]
    says = r"node 'many' \(Loop\): it runs as often as a computed number says; export"
    with pytest.raises(BadModel, match=says) as no:
        imported(onnx_model(nodes, {"x": X}))
    assert refused_node(str(no.value)) == RefusedNode("many", "", ())  # so ONNX Runtime may run it as a part


@pytest.mark.parametrize("between", [[], ["Squeeze", "Abs"]], ids=["itself", "computed from it"])
def test_a_number_of_iterations_from_an_input_is_fixed_by_a_constant(between: list[str]) -> None:
    names = ["n", *(f"{operator} of n" for operator in between)]
    nodes = [
        *(helper.make_node(made.split()[0], [read], [made]) for read, made in pairwise(names)),
        helper.make_node("Loop", [names[-1], "", "x"], ["y", "all"], name="many", body=loop_body()),
    ]
    with pytest.raises(
        BadModel, match=r"number says; make the input that decides it a constant with --input n=const:3, or"
    ):
        imported(onnx_model(nodes, {"x": X, "n": np.array(4)}))


def test_a_condition_from_an_input_is_fixed_by_a_constant() -> None:
    node = helper.make_node("Loop", ["n", "go", "x"], ["y", "all"], name="while", body=loop_body())
    with pytest.raises(
        BadModel, match=r"condition holds; make the input that decides it a constant with --input go=const:1, or"
    ):
        imported(onnx_model([node], {"x": X, "go": np.ones((), np.bool_)}, {"n": np.array(4)}))


def test_a_computed_condition_is_refused() -> None:
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["yes"], to=TensorProto.BOOL),
        helper.make_node("Loop", ["n", "yes", "x"], ["y", "all"], name="while", body=loop_body()),
    ]
    with pytest.raises(BadModel, match=r"node 'while' \(Loop\): it runs as long as a computed condition holds"):
        imported(onnx_model(nodes, {"x": X}, {"n": np.array(4)}))


def test_too_many_iterations_are_refused_before_they_are_made() -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], name="many", body=loop_body())
    with pytest.raises(BadModel, match=r"node 'many' \(Loop\) unrolled, has [\d,]{20,} nodes, and 30,000 is the limit"):
        imported(onnx_model([node], {"x": X}, {"n": np.array(2**60)}))


def steady(count: int, condition: list[onnx.NodeProto], inner: onnx.NodeProto | None = None) -> onnx.NodeProto:
    """A loop with a condition that its body computes by these nodes, as `more`."""
    body = helper.make_graph(
        [inner or helper.make_node("Add", ["a", "x"], ["b"]), *condition],
        "body",
        [value("at", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("a", TensorProto.FLOAT, [3, 4])],
        [value("more", TensorProto.BOOL, []), value("b", TensorProto.FLOAT, [3, 4])],
    )
    return helper.make_node("Loop", ["n" if count else "", "yes", "x"], ["y"], name="many", body=body)


PASSED_ON = [helper.make_node("Identity", ["go"], ["more"])]
CONSTANT = [helper.make_node("Constant", [], ["more"], value=numpy_helper.from_array(np.ones((), bool)))]


@pytest.mark.parametrize("condition", [PASSED_ON, CONSTANT], ids=["passed on", "constant"])
def test_a_condition_that_never_changes_is_foreseen(condition: list[onnx.NodeProto]) -> None:
    """The count alone decides, so no iteration is made."""
    weights = {"n": np.array(2**62), "yes": np.ones((), bool)}
    with pytest.raises(BadModel, match=r"node 'many' \(Loop\) unrolled, has [\d,]{20,} nodes, and 30,000 is the limit"):
        imported(onnx_model([steady(2**62, condition)], {"x": X}, weights))
    with pytest.raises(BadModel, match=r"node 'many' \(Loop\) never ends, for its condition never changes; export"):
        imported(onnx_model([steady(0, condition)], {"x": X}, {"yes": weights["yes"]}))


def test_loops_in_loops_are_foreseen() -> None:
    node = helper.make_node("Add", ["a", "x"], ["b"])
    for _ in range(8):
        node = steady(100, PASSED_ON, node)
        node.input[2], node.output[0] = "a", "b"
    node.input[2], node.output[0] = "x", "y"
    weights = {"n": np.array(100), "yes": np.ones((), bool)}
    with pytest.raises(BadModel, match=r"node 'many' \(Loop\) unrolled, has [\d,]{20,} nodes, and 30,000 is the limit"):
        imported(onnx_model([node], {"x": X}, weights))


@pytest.mark.parametrize("count", [3, -1])
def test_a_condition_that_never_changes(tmp_path: Path, count: int) -> None:
    nodes = [steady(count, PASSED_ON), helper.make_node("Neg", ["y"], ["z"])]
    check(tmp_path, onnx_model(nodes, {"x": X}, {"n": np.array(count), "yes": np.ones((), bool)}))


def test_a_negative_count_takes_no_nodes_off() -> None:
    nodes = [
        helper.make_node("Loop", ["less", "", "x"], ["w"], body=loop_body()),
        helper.make_node("Loop", ["n", "", "w"], ["y"], name="many", body=loop_body()),
    ]
    weights = {"less": np.array(-(2**62)), "n": np.array(2**20)}
    with pytest.raises(BadModel, match=r"node 'many' \(Loop\) unrolled, has [\d,]{8,} nodes, and 30,000 is the limit"):
        imported(onnx_model(nodes, {"x": X}, weights))


def test_a_long_name_is_shortened() -> None:
    node = helper.make_node("Loop", ["n", "", "x"], ["y", "all"], name="m" * 1000, body=loop_body())
    with pytest.raises(BadModel, match=r"node 'm{98} \.\.\. m{97}' \(Loop\) unrolled, has"):
        imported(onnx_model([node], {"x": X}, {"n": np.array(2**60)}))


@pytest.mark.parametrize("name", ["", "inner"])
def test_a_refusal_within_an_iteration_names_the_node_of_the_body(name: str) -> None:
    nodes = [
        helper.make_node("Identity", ["going"], ["goes"]),
        helper.make_node("Det", ["state"], ["next"], name),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        [value("at", TensorProto.INT64, []), value("going", TensorProto.BOOL, []), value("state", 1, [2, 2])],
        [value("goes", TensorProto.BOOL, []), value("next", 1, [2, 2])],
    )
    loop = helper.make_node("Loop", ["times", "", "x"], ["y"], body=body)
    with pytest.raises(BadModel) as caught:
        imported(onnx_model([loop], {"x": np.zeros((2, 2), np.float32)}, {"times": np.array(2)}))
    refused = refused_node(str(caught.value))
    assert refused is not None
    assert refused.is_node(name, "next", "Det")
    assert (refused.name, refused.output) == (name, "" if name else "next")
