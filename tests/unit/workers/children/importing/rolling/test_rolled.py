"""Unrolled recurrences become LSTM, GRU and RNN, with the numbers of ONNX Runtime. All other nodes stay."""

import contextlib
import time
import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from onnx import TensorProto, helper, numpy_helper

from fractune_workers.children.compiling import child
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_fold import Folding
from fractune_workers.children.importing.rolling import rolled
from fractune_workers.children.importing.rolling.rolled import roll_up
from fractune_workers.children.recurrent.kernel import RECURRENCE
from fractune_workers.children.recurrent.recurrence import MASKED
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, together
from tests.support.unrolled import Way, Written, unrolled

Array = npt.NDArray[Any]
CELLS = ("LSTM", "GRU", "RNN")
INSIDE = ("Sigmoid", "Tanh", "Relu", "MatMul", "Gemm")
"""operators of a cell"""
MIXED = ("z*h+(1-z)*n", "(h-n)*z+n", "n+z*(h-n)", "(1-u)*h+u*n", "h+u*(n-h)")


@pytest.fixture(autouse=True)
def _no_error_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rolled._log, "info", lambda *texts: pytest.fail(str(texts)))


def as_rolled(model: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(model)
    limits = Limits(made.ByteSize())
    Folding(made, limits).run()
    roll_up(made, limits)
    return made


def counts(model: onnx.ModelProto, names: Sequence[str] = CELLS) -> int:
    kinds = Counter(node.op_type for node in model.graph.node)
    return sum(kinds[name] for name in names)


def check(model: onnx.ModelProto, feed: Mapping[str, Array], cells: int, left: int = 0) -> onnx.ModelProto:
    """The model rolled up: `cells` recurrences are in it, `left` operators of unrolled cells, and its outputs are those
    of the model.
    """
    made = as_rolled(model)
    has_masks = any(node.domain == MASKED for node in made.graph.node)
    found = run_imported(model, feed) if has_masks else run_by_onnxruntime(made, feed)
    for ours, theirs in zip(found, run_by_onnxruntime(model, feed), strict=True):
        assert ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert (counts(made), counts(made, INSIDE)) == (cells, left)
    return made


def check_way(way: Way, cells: int = 1, left: int = 0, seed: int = 0) -> onnx.ModelProto:
    written = unrolled(way, seed)
    return check(written.model(), written.inputs, cells, left)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("product", ["Gemm", "MatMul", "joined", "apart", "before"])
def test_the_ways_of_exporters(cell: str, product: str) -> None:
    check_way(Way(cell, product=product, resets_product=product != "joined"))


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    way=st.builds(
        Way,
        cell=st.sampled_from(CELLS),
        steps=st.integers(3, 5),
        batch=st.sampled_from([1, 3]),
        product=st.sampled_from(["Gemm", "MatMul", "joined", "apart", "before"]),
        bias=st.sampled_from(["two", "one", "none"]),
        gates=st.sampled_from(["Split", "Slice", "wide"]),
        slices=st.sampled_from(["Gather", "Slice", "Split", "given"]),
        keeps_axis=st.booleans(),
        batch_first=st.booleans(),
        backwards=st.sampled_from(["", "index", "Slice"]),
        first=st.sampled_from(["zeros", "given"]),
        mixed=st.sampled_from(MIXED),
        resets_product=st.booleans(),
        peepholes=st.booleans(),
        couples_forget=st.booleans(),
        outputs=st.sampled_from(["stack", "turned", "each"]),
        layers=st.integers(1, 2),
        both=st.booleans(),
    ),
    seed=st.integers(0, 1000),
)
def test_any_way_of_writing_it(way: Way, seed: int) -> None:
    check_way(way, cells=way.layers, seed=seed)


MASKED_WAYS = [
    Way("LSTM", mask="Where", batch=3, both=True, product="before"),
    Way("GRU", mask="padding", batch=3, layers=2, batch_first=True, outputs="last", first="given"),
    Way("RNN", mask="Mul", batch=3, backwards="Slice", product="MatMul", outputs="each", keeps_axis=True),
    Way("LSTM", mask="zeros", steps=3, backwards="index", outputs="memory", first="given"),
    Way("GRU", mask="zeros", steps=5, batch=3, resets_product=False, outputs="turned"),
]


@pytest.mark.parametrize("ways", [MASKED_WAYS[:3], MASKED_WAYS[3:]])
def test_rows_that_keep_their_states_where_a_mask_is_0(ways: Sequence[Way]) -> None:
    written = [unrolled(way, seed) for seed, way in enumerate(ways)]
    for each in written:
        assert any(node.domain == MASKED for node in as_rolled(each.model()).graph.node)
    check(*together([(each.model(), each.inputs) for each in written]), cells=sum(way.layers for way in ways))


@settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(
    way=st.builds(
        Way,
        cell=st.sampled_from(CELLS),
        steps=st.integers(3, 5),
        batch=st.sampled_from([1, 3]),
        product=st.sampled_from(["Gemm", "MatMul", "before"]),
        keeps_axis=st.booleans(),
        batch_first=st.booleans(),
        backwards=st.sampled_from(["", "index", "Slice"]),
        first=st.sampled_from(["zeros", "given"]),
        resets_product=st.booleans(),
        outputs=st.sampled_from(["stack", "turned", "each"]),
        layers=st.integers(1, 2),
        both=st.booleans(),
        mask=st.sampled_from(["Where", "padding", "Mul", "zeros"]),
    )
)
def test_any_way_of_writing_a_mask_is_rolled_up(way: Way) -> None:
    made = as_rolled(unrolled(way).model())
    assert (counts(made), counts(made, INSIDE)) == (way.layers, 0)


def test_rows_that_keep_a_changed_state_are_no_recurrence() -> None:
    """The state that they keep is not the one that the step reads."""

    def halved(written: Written, _at: int, state: str) -> str:
        return str(written.op("Mul", state, written.constant(0.5)))

    for mask in ("Where", "zeros"):
        way = Way("RNN", mask=mask)
        written = unrolled(way, change=halved)
        assert counts(as_rolled(written.model())) == 0


def distributed(order: Sequence[int], *, axis: int = 0, biases: Sequence[str] = ()) -> tuple[onnx.ModelProto, Array]:
    """A dense layer of each step in this order, as Keras's TimeDistributed is written, and what it is given."""
    rng = np.random.default_rng(0)
    weights: dict[str, Array] = {name: rng.standard_normal(4).astype("float32") for name in ("b", "other")}
    weights |= {"w": rng.standard_normal((5, 4)).astype("float32"), "axis": np.array([axis])}
    weights |= {f"i{at}": np.array(at) for at in order}
    nodes = []
    for at in order:
        operands = {"Gather": [f"x i{at}", {"axis": axis}], "MatMul": ["w", {}], "Add": [(*biases, *"b" * 9)[at], {}]}
        name = ""
        for kind, (more, options) in {**operands, "Tanh": ["", {}], "Unsqueeze": ["axis", {}]}.items():
            nodes.append(helper.make_node(kind, f"{name} {more}".split(), [f"{kind}{at}"], **options))
            name = f"{kind}{at}"
    nodes.append(helper.make_node("Concat", [f"Unsqueeze{at}" for at in order], ["y"], axis=axis))
    given = rng.standard_normal((3, 2, 5) if axis == 0 else (2, 3, 5)).astype("float32")
    return onnx_model(nodes, {"x": given}, weights, 17, outputs=["y"]), given


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0)])
@pytest.mark.parametrize("axis", [0, 1])
def test_one_product_of_all_steps_that_do_not_follow_from_each_other(order: Sequence[int], axis: int) -> None:
    model, given = distributed(order, axis=axis)
    check(model, {"x": given}, cells=0, left=2)


def test_steps_with_another_bias_stay() -> None:
    model, given = distributed((0, 1, 2), biases=["b", "other"])
    check(model, {"x": given}, cells=0, left=6)


@pytest.mark.parametrize("cell", CELLS)
def test_the_last_states_alone_are_read(cell: str) -> None:
    check_way(Way(cell, outputs="memory", first="given"))
    check_way(Way(cell, outputs="last", backwards="Slice", batch=2))


def test_states_from_constants_are_computed_before_and_the_first_step_with_them() -> None:
    """Their product is a constant, in which they are not seen any more."""
    check_way(Way(steps=5, first="constant", batch=2), left=6)


@pytest.mark.parametrize(
    ("cell", "activations"),
    [
        ("RNN", ("Relu",)),
        ("RNN", ("Softsign",)),
        ("LSTM", ("HardSigmoid", "Tanh", "Softplus")),
        ("LSTM", ("Sigmoid", "Relu", "Elu")),
        ("LSTM", ("Tanh", "Tanh", "Tanh")),
        ("GRU", ("HardSigmoid", "LeakyRelu")),
        ("GRU", ("Sigmoid", "ThresholdedRelu")),
    ],
)
def test_other_activations(cell: str, activations: tuple[str, ...]) -> None:
    check_way(Way(cell, activations=activations))


def test_the_importer_makes_the_kernel_of_an_lstm_a_gru_and_an_rnn() -> None:
    """Those of ONNX's own operators, so their numbers are right too; two layers have one kernel."""
    ways = [
        Way("LSTM", both=True, layers=2, batch=2),
        Way("LSTM", product="joined", gates="wide", peepholes=True, first="given", outputs="memory"),
        Way("GRU", backwards="Slice", batch_first=True, batch=2, mixed="(h-n)*z+n"),
        Way("GRU", resets_product=False, mixed="(1-u)*h+u*n", activations=("Sigmoid", "LeakyRelu"), batch=2),
        Way("RNN", slices="given", activations=("Relu",), outputs="each"),
    ]
    written = [unrolled(way) for way in ways]
    model, _ = together([(each.model(), each.inputs) for each in written])
    kernels = [each for each in imported(model).functions.values() if each.attrs and RECURRENCE in each.attrs]
    assert len(kernels) == 5


def test_a_gpu_has_no_kernel_of_a_recurrence_and_computes_its_steps(tmp_path: Path) -> None:
    path = tmp_path / "unrolled.onnx"
    path.write_bytes(unrolled(Way(steps=2)).model().SerializeToString())
    names = {each["name"] for each in child.ingest(str(path), {}, "cuda:sm_90", "sm_90")["operators"]}
    assert any("matmul" in name for name in names)


def test_two_directions_are_one_node_and_a_turned_stack_is_not_turned_again() -> None:
    """As torch writes a reversed layer: inputs and outputs are turned."""
    model = unrolled(Way(both=True, outputs="each")).model()
    assert counts(as_rolled(model)) == 1
    written = unrolled(Way(backwards="Slice", outputs="turned"))
    bounds = [written.constant([number]) for number in (-1, -(2**31), 0, -1)]
    written.outputs.append(written.op("Slice", written.outputs.pop(), *bounds))
    made = check(written.model(), written.inputs, 1)
    assert not counts(made, ["Slice", "Concat"])


# ---- Loop and Scan


def body_of(way: Way) -> tuple[onnx.GraphProto, Written]:
    """A step of the cell: (input, state, cell's state) to (state, cell's state, state)."""
    written = unrolled(replace(way, steps=1, slices="given", first="given", outputs="memory"))
    data, *states = written.inputs
    names = [*written.outputs, written.op("Identity", written.outputs[0])]
    kind = TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, kind, None) for name in (*states, data)]
    graph = helper.make_graph(
        written.nodes, "body", inputs, [helper.make_tensor_value_info(name, kind, None) for name in names]
    )
    graph.initializer.extend(numpy_helper.from_array(each, name) for name, each in written.weights.items())
    return graph, written


def test_a_scan_of_a_cell() -> None:
    body, written = body_of(Way(batch=2))
    _, *states = written.inputs
    feed = {"X": np.random.default_rng(1).standard_normal((4, 2, 5)).astype(np.float32)}
    first = {name: written.inputs[name] for name in states}
    scan = helper.make_node(
        "Scan", [*states, "X"], ["h", "c", "Y"], body=body, num_scan_inputs=1, scan_input_directions=[1]
    )
    model = onnx_model([scan], feed | first, opset=17, outputs=["h", "c", "Y"])
    check(model, feed | first, 1)


def test_a_loop_of_a_cell() -> None:
    """As tf2onnx writes a layer of keras: a count among the states, and the input by its index."""
    body, written = body_of(Way(product="MatMul"))
    data, *states = written.inputs
    del body.input[:]
    kinds = {"at": TensorProto.INT64, "go": TensorProto.BOOL, **dict.fromkeys(states, TensorProto.FLOAT)}
    shapes = {"at": [], "go": [], **{name: [1, 6] for name in states}}
    body.input.extend(helper.make_tensor_value_info(name, kind, shapes[name]) for name, kind in kinds.items())
    gather = helper.make_node("Gather", ["X", "at"], [data])
    nodes = [gather, helper.make_node("Identity", ["go"], ["goes on"]), *body.node]
    del body.node[:]
    body.node.extend(nodes)
    outputs = [helper.make_tensor_value_info("goes on", TensorProto.BOOL, []), *body.output]
    del body.output[:]
    body.output.extend(outputs)
    feed = {"X": np.random.default_rng(1).standard_normal((4, 1, 5)).astype(np.float32)}
    weights = {"count": np.array(4), "yes": np.ones((), bool), "zeros": np.zeros((1, 6), np.float32)}
    loop = helper.make_node("Loop", ["count", "yes", "zeros", "zeros"], ["h", "c", "Y"], body=body)
    check(onnx_model([loop], feed, weights, opset=17, outputs=["h", "c", "Y"]), feed, 1)


# ---- almost a recurrence


def test_a_step_with_another_weight_is_left_and_those_around_it_are_rolled_up() -> None:
    written = unrolled(Way("RNN", steps=7, first="given", product="MatMul", bias="none"))
    products = [node for node in written.nodes if node.op_type == "MatMul"]
    products[6].input[1] = written.constant(written.weights[products[6].input[1]] * 1.01)
    check(written.model(), written.inputs, 2, left=3)


def test_a_step_with_another_bias_or_activation_begins_another_chain() -> None:
    written = unrolled(Way("RNN", steps=6, first="given"))
    gemms = [node for node in written.nodes if node.op_type == "Gemm"]
    gemms[6].input[2] = written.constant(written.weights[gemms[6].input[2]] + 0.25)
    check(written.model(), written.inputs, 2, left=3)
    written = unrolled(Way("RNN", steps=6, first="given"))
    [node for node in written.nodes if node.op_type == "Tanh"][3].op_type = "Sigmoid"
    check(written.model(), written.inputs, 2, left=3)


def test_a_changed_state_begins_another_chain() -> None:
    def halved(written: Written, at: int, state: str) -> str:
        return str(written.op("Mul", state, written.constant(0.5))) if at == 2 else state

    for cell in ("GRU", "RNN"):
        written = unrolled(Way(cell, steps=6, first="given"), change=halved)
        check(written.model(), written.inputs, 2)


def test_a_skip_connection_is_no_cell() -> None:
    def skipping(written: Written, at: int, state: str) -> str:
        return str(written.op("Add", state, "x0")) if at % 2 else state

    written = unrolled(Way("RNN", steps=6, width=6, first="given", slices="given"), change=skipping)
    check(written.model(), written.inputs, 3)


def test_a_state_of_a_cell_that_is_read_in_between_ends_the_chain() -> None:
    def read(written: Written, at: int, state: str) -> str:
        if at == 2:
            written.outputs.append(written.op("Neg", written.memory))
        return state

    written = unrolled(Way(steps=6, first="given"), change=read)
    check(written.model(), written.inputs, 2)


def test_a_gate_that_is_read_by_others_leaves_its_step_as_it_is() -> None:
    written = unrolled(Way(steps=5, first="given"))
    gate = [node for node in written.nodes if node.op_type == "Sigmoid"][6].output[0]
    written.outputs.append(written.op("Neg", gate))
    check(written.model(), written.inputs, 2, left=7)


def test_inputs_that_follow_from_the_states_are_no_recurrence() -> None:
    """As in a decoder that reads what it said."""
    written = unrolled(Way("RNN", steps=2, first="given", slices="given", width=6))
    nodes = list(written.nodes)
    h = next(node.output[0] for node in nodes if node.op_type == "Tanh")
    told = written.op("Exp", h)
    second = [node for node in nodes if "x1" in node.input]
    for node in second:
        node.input[:] = [told if name == "x1" else name for name in node.input]
    del written.inputs["x1"]
    written.nodes.insert(nodes.index(second[0]), written.nodes.pop())
    check(written.model(), written.inputs, 0, left=6)


def test_a_forget_gate_of_another_form_is_no_coupled_one() -> None:
    written = unrolled(Way(steps=4, first="given"))
    for forget in [node for node in written.nodes if node.op_type == "Sigmoid"][1::3]:
        forget.input[0] = written.given(1, 6)
    check(written.model(), written.inputs, 0, left=28)


def test_chains_that_need_each_other_are_left() -> None:
    """Each would be rolled up alone: x2 of the one follows from h1 of the other, and the other way round."""
    one = unrolled(Way("RNN", steps=3, first="given", slices="given", width=6, outputs="each"), seed=1)
    states = [node.output[0] for node in one.nodes if node.op_type == "Tanh"]
    other = unrolled(Way("RNN", steps=3, first="given", slices="given", width=6, outputs="each"), seed=2)
    renamed = onnx.compose.add_prefix(other.model(), "o")
    nodes = [*one.model().graph.node, *renamed.graph.node]
    weights = {**one.weights, **{f"o{name}": each for name, each in other.weights.items()}}
    feed = {**one.inputs, **{f"o{name}": each for name, each in other.inputs.items()}}
    for node in nodes:
        replaced = {"x1": f"o{states[0]}", "ox1": states[0]}
        node.input[:] = [replaced.get(name, name) for name in node.input]
    del feed["x1"], feed["ox1"]
    model = onnx_model(nodes, feed, weights, opset=17, outputs=[*one.outputs, *(f"o{n}" for n in other.outputs)])
    check(model, feed, 0, left=18)


def test_a_matrix_that_other_nodes_read_too_is_no_chain() -> None:
    """A network with the same layer twice has no input in between."""
    written = Written(Way(), np.random.default_rng(0))
    matrix, state = written.random(6, 6), written.given(1, 6)
    for _ in range(4):
        state = written.op("Relu", written.op("MatMul", state, matrix))
    written.outputs.append(state)
    check(written.model(), written.inputs, 0, left=8)


# ---- files of any kind


def test_weights_are_not_multiplied() -> None:
    """Chains with ever other columns of one matrix would need more than the file has."""
    written = Written(Way(), np.random.default_rng(0))
    matrix, units = written.random(600, 600), 500

    def product(value: str, row: int, column: int) -> Any:
        part = matrix
        for axis, begin in enumerate((row, column)):
            part = written.op("Slice", part, *map(written.constant, ([begin], [begin + units], [axis])))
        return written.op("MatMul", value, part)

    for at in range(20):
        state = written.given(1, units)
        for _ in range(3):
            data = written.given(1, units)
            state = written.op("Tanh", written.op("Add", product(data, at, at), product(state, at + 50, at)))
        written.outputs.append(state)
    made = as_rolled(written.model())
    assert counts(made) > 0
    assert made.ByteSize() < 3 * written.model().ByteSize()


def test_deep_and_wide_graphs_take_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        written = Written(Way(), np.random.default_rng(0))
        matrix, value = written.random(4, 4), written.given(1, 4)
        total = value
        for at in range(size // 4):
            value = written.op("Tanh", written.op("MatMul", value, matrix))
            total = written.op(("Add", "Mul")[at % 2], total, written.op("Sigmoid", written.op("Sub", value, total)))
        written.outputs.append(total)
        model = written.model()
        Folding(model, Limits(model.ByteSize())).run()
        start = time.process_time()
        roll_up(model, Limits(model.ByteSize()))
        return time.process_time() - start

    seconds(200)
    assert seconds(4_000) < 12 * max(seconds(1_000), 0.03)


def test_products_of_many_joined_tensors_take_time_in_proportion() -> None:
    """A kilobyte of nodes can read a million tensors by one name."""

    def seconds(size: int) -> float:
        written = Written(Way(), np.random.default_rng(0))
        joined, matrix = written.op("Concat", *[written.given(1, 1)] * size, axis=1), written.random(size, 1)
        written.outputs.append(written.op("Sum", *(written.op("MatMul", joined, matrix) for _ in range(size))))
        model = written.model()
        Folding(model, Limits(model.ByteSize())).run()
        start = time.process_time()
        roll_up(model, Limits(model.ByteSize()))
        return time.process_time() - start

    assert seconds(800) < 8 * max(seconds(200), 0.05)


def test_a_recurrence_over_the_begin_of_a_long_input_needs_little_memory() -> None:
    written = unrolled(Way("RNN", steps=3, width=1, first="given"))
    model = written.model()
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1_000_000
    Folding(model, Limits(model.ByteSize())).run()
    tracemalloc.start()
    roll_up(model, Limits(model.ByteSize()))
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert counts(model) == 1
    assert most_bytes < 10_000_000


@pytest.mark.parametrize("cell", CELLS)
def test_a_file_with_changed_nodes_stays_as_it_is_or_right(cell: str) -> None:
    """Operators, attributes and inputs are changed at random; ONNX Runtime tells which models are still valid."""
    rng, valid = np.random.default_rng(5), 0
    for seed in range(60):
        written = unrolled(Way(cell, steps=3, first="given", mixed=MIXED[seed % 5]), seed)
        node = written.nodes[rng.integers(len(written.nodes))]
        if node.attribute and rng.random() < 0.3:
            node.attribute[0].i = int(rng.integers(-2, 3))
        elif rng.random() < 0.5:
            node.op_type = str(rng.choice(["Add", "Sub", "Mul", "Tanh", "Sigmoid"]))
        else:
            other = written.nodes[rng.integers(written.nodes.index(node) + 1)]
            node.input[int(rng.integers(len(node.input)))] = other.input[int(rng.integers(len(other.input)))]
        model = written.model()
        with contextlib.suppress(Exception):  # ONNX Runtime refuses such files in many ways
            expected = run_by_onnxruntime(model, written.inputs)
            valid += 1
            for ours, theirs in zip(run_by_onnxruntime(as_rolled(model), written.inputs), expected, strict=True):
                if not np.allclose(ours, theirs, atol=1e-5):
                    pytest.fail(f"model {seed} has other outputs")
    assert valid > 10
