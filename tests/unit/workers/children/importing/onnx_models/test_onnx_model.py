"""What ONNX files are refused with which words, and which open shapes are settled how."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.onnx_models import onnx_model
from fractune_workers.children.rewriting.expressions import is_constant

Dim = int | str | None
FLOAT = TensorProto.FLOAT


def tensor(name: str, dims: list[Dim] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, FLOAT, dims)


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [tensor(nodes[-1].output[0], None)])
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


@pytest.fixture
def save(tmp_path: Path) -> Callable[[onnx.ModelProto | bytes], Path]:
    def write(contents: onnx.ModelProto | bytes) -> Path:
        path = tmp_path / "model.onnx"
        path.write_bytes(contents if isinstance(contents, bytes) else contents.SerializeToString())
        return path

    return write


Save = Callable[[onnx.ModelProto | bytes], Path]


def relu(*inputs: onnx.ValueInfoProto) -> onnx.ModelProto:
    names = [value.name for value in inputs]
    node = helper.make_node("Sum", names, ["y"]) if len(names) > 1 else helper.make_node("Relu", names, ["y"])
    return model([node], list(inputs))


def input_shapes(path: Path, shapes: dict[str, list[int]]) -> list[list[int]]:
    return [[int(dim) for dim in param.ty.shape] for param in load_model(path, shapes)["main"].params]


def refusal(path: Path, shapes: dict[str, list[int]] | None = None) -> str:
    with pytest.raises(BadModel) as caught:
        load_model(path, shapes)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{path.name}: ")
    return message


def test_a_missing_file(tmp_path: Path) -> None:
    assert "No such file" in refusal(tmp_path / "nothing.onnx")


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (b"", "is empty"),
        (b"hello, I am a letter\n", "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(64)), "is not an ONNX file"),
        (b"\xff" * 100, "is not an ONNX file"),
        (b"PK\x03\x04" + b"\0" * 60, "not a whole zip archive"),
        (b"{not json", "is not an IRModule as JSON"),
    ],
)
def test_what_is_no_model_is_said_to_be_none(save: Save, contents: bytes, words: str) -> None:
    assert words in refusal(save(contents))


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.05])
def test_a_truncated_file(save: Save, kept: float) -> None:
    whole = model(
        [helper.make_node("Gemm", ["x", "w"], ["y"])],
        [tensor("x", [1, 64])],
        {"w": np.ones((64, 64), np.float32)},
    ).SerializeToString()
    assert "truncated" in refusal(save(whole[: int(len(whole) * kept)]))


def test_weights_in_another_file(save: Save) -> None:
    bad = model(
        [helper.make_node("Gemm", ["x", "w"], ["y"])], [tensor("x", [1, 8])], {"w": np.ones((8, 8), np.float32)}
    )
    weight = bad.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../../etc/passwd")
    assert "weight 'w' lies in another file; save the model as one file" in refusal(save(bad))


def test_a_constant_in_another_file(save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's own tools would read it, from the folder where they run."""
    (tmp_path / "secret").write_bytes(bytes(32))
    monkeypatch.chdir(tmp_path)
    weight = numpy_helper.from_array(np.ones(8, np.float32), "c")
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="secret")
    nodes = [helper.make_node("Constant", [], ["c"], value=weight), helper.make_node("Add", ["x", "c"], ["y"])]
    assert "weight 'c' lies in another file" in refusal(save(model(nodes, [tensor("x", [1, 8])])))


def test_an_unsupported_operator_is_named_with_its_node(save: Save) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="fine"),
        helper.make_node("StringNormalizer", ["a"], ["b"], name="encoder/words"),
        helper.make_node("Det", ["b"], ["y"]),
    ]
    message = refusal(save(model(nodes, [tensor("x", [4, 4])])))
    assert "opset 17: cannot import node 'encoder/words' (StringNormalizer): no kernel" in message
    assert "also unsupported: Det" in message


def test_an_unsupported_operator_without_a_name_is_named_by_its_output(save: Save) -> None:
    message = refusal(save(model([helper.make_node("Det", ["x"], ["y"])], [tensor("x", [4, 4])])))
    assert "cannot import node with output 'y' (Det): no kernel computes this operator" in message


def test_an_operator_of_another_domain_is_another_operator(save: Save) -> None:
    made = model([helper.make_node("Relu", ["x"], ["y"], name="mine", domain="com.example")], [tensor("x", [4])])
    made.opset_import.append(helper.make_opsetid("com.example", 1))
    assert "node 'mine' (com.example.Relu): no kernel computes this operator" in refusal(save(made))


def test_a_node_that_the_importer_stumbles_over_is_named(save: Save) -> None:
    node = helper.make_node("Gemm", ["x", "w"], ["y"], name="head")
    message = refusal(save(model([node], [tensor("x", [1, 8])], {"w": np.ones((3, 8), np.float32)})))
    assert message.endswith(
        "node 'head' (Gemm): no kernel takes 'x' float32 [1, 8], 'w' float32 [3, 8]; "
        "export it with other types, shapes or attributes"
    )


def test_all_options_that_fix_open_dimensions_are_in_one_line(save: Save) -> None:
    node = helper.make_node("Add", ["input", "state"], ["y"])
    inputs = [tensor("input", ["?", "?"]), tensor("state", [2, "batch", 128]), tensor("last", ["batch"])]
    message = refusal(save(model([node], inputs)))
    assert "the inputs are input [?, ?], state [2, batch, 128], last [batch]; fix" in message
    assert message.endswith("; fix them with --input input=DIM,DIM --input state=2,DIM,128")


def test_constant_outputs_are_nothing_to_tune(save: Save) -> None:
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=FLOAT)]
    message = refusal(save(model(nodes, [tensor("x", [4, 4])])))
    assert "nothing to tune: its outputs are constants, such as that of node with output 'y' (Cast)" in message


@pytest.mark.parametrize(
    ("given", "what"),
    [
        (helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [2]), "text"),
        (helper.make_tensor_sequence_value_info("x", FLOAT, [2]), "of kind sequence"),
    ],
)
def test_an_input_of_another_kind_is_named_with_its_node(save: Save, given: onnx.ValueInfoProto, what: str) -> None:
    message = refusal(save(model([helper.make_node("Identity", ["x"], ["y"], name="it")], [given])))
    assert f"input 'x' of node 'it' (Identity) is {what}" in message


def test_a_dimension_of_zero_is_named_and_can_be_fixed(save: Save) -> None:
    path = save(relu(tensor("x", [0, 3])))
    message = refusal(path)
    assert "input 'x' has a dimension of 0: the inputs are x [0, 3]; no tensor may be empty" in message
    assert "fix it with --input x=" in message
    assert input_shapes(path, {"x": [2, 3]}) == [[2, 3]]


def test_an_input_of_unknown_rank_takes_any_shape(save: Save) -> None:
    path = save(relu(tensor("x", None)))
    assert "x [rank unknown]" in refusal(path)
    assert input_shapes(path, {"x": [2, 5]}) == [[2, 5]]


def test_a_name_that_is_no_input(save: Save) -> None:
    message = refusal(save(relu(tensor("x", ["batch", 3]))), {"y": [1, 3]})
    assert "no input is named 'y'; the inputs are x [batch, 3]" in message


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ([1, 3, 4], "has rank 2 [batch, 3], but 1,3,4 has 3"),
        ([1, 4], "dimension 1 is 3 in the model [batch, 3], but 1,4 makes it 4"),
        ([0, 3], "dimension 0 is not a size"),
        ([-1, 3], "dimension -1 is not a size"),
    ],
)
def test_shapes_that_contradict_the_model(save: Save, shape: list[int], words: str) -> None:
    message = refusal(save(relu(tensor("x", ["batch", 3]))), {"x": shape})
    assert words in message


def test_a_named_dimension_is_the_same_at_every_input(save: Save) -> None:
    path = save(relu(tensor("a", ["batch", 3]), tensor("b", ["batch", 3])))
    assert input_shapes(path, {"a": [2, 3]}) == [[2, 3], [2, 3]]
    assert "'b' has 4 at axis 0: batch (2) and 4 must be equal" in refusal(path, {"a": [2, 3], "b": [4, 3]})


def test_sums_of_names_are_solved_and_checked(save: Save) -> None:
    path = save(relu(tensor("ids", ["s", 1, 1]), tensor("mask", ["past + s", 1]), tensor("cache", ["past"])))
    for shapes in ({"ids": [2, 1, 1], "cache": [64]}, {"mask": [66, 1], "ids": [2, 1, 1]}):
        assert input_shapes(path, shapes) == [[2, 1, 1], [66, 1], [64]]
    wrong = {"ids": [2, 1, 1], "mask": [17, 1], "cache": [64]}
    assert "past + s (66) and 17 must be equal" in refusal(path, wrong)


def test_question_marks_are_no_names(save: Save) -> None:
    assert input_shapes(save(relu(tensor("x", ["?", 3, "?"]))), {"x": [1, 3, 7]}) == [[1, 3, 7]]


def test_fixed_shapes_need_no_words(save: Save) -> None:
    assert input_shapes(save(relu(tensor("x", [2, 3]))), {}) == [[2, 3]]


def test_shape_arithmetic_is_folded_away(save: Save) -> None:
    """Shape -> Cast -> Slice -> Cast -> Concat -> Reshape, as PaddlePaddle exports it: onnxslim stops half-way."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["s32"], to=TensorProto.INT32),
        helper.make_node("Slice", ["s32", "zero", "one"], ["first"]),
        helper.make_node("Cast", ["first"], ["first64"], to=TensorProto.INT64),
        helper.make_node("ConstantOfShape", ["one"], ["rest"], value=numpy_helper.from_array(np.array([-1]))),
        helper.make_node("Concat", ["first64", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    weights = {"zero": np.array([0]), "one": np.array([1])}
    mod = load_model(save(model(nodes, [tensor("x", ["n", 3, 5])], weights)), {"x": [2, 3, 5]})
    assert [int(dim) for dim in mod["main"].ret_ty.shape] == [2, 15]


def test_an_if_over_a_constant_takes_one_branch(save: Save) -> None:
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["a"])], "t", [], [tensor("a", None)])
    otherwise = helper.make_graph([helper.make_node("Det", ["x"], ["b"])], "e", [], [tensor("b", None)])
    node = helper.make_node("If", ["yes"], ["y"], then_branch=then, else_branch=otherwise)
    mod = load_model(save(model([node], [tensor("x", [2, 2])], {"yes": np.array(1, dtype=bool)})))
    assert "relu" in mod.script()
    assert "if " not in mod.script()


def test_layers_that_share_a_weight_have_one_copy(save: Save) -> None:
    nodes = [helper.make_node("Identity", ["w"], ["w_again"])]
    for at, weight in enumerate(("w", "w_again", "w")):
        nodes += [
            helper.make_node("MatMul", [f"x{at}", weight], [f"product{at}"]),
            helper.make_node("Add", [f"product{at}", f"b{at}"], [f"x{at + 1}"]),
        ]
    weights = {f"b{at}": np.full(64, at, np.float32) for at in range(3)}
    weights["w"] = np.random.default_rng(0).random((64, 64), np.float32)
    held: set[Any] = set()

    def visit(value: Any) -> None:
        if is_constant(value) and isinstance(value.ty, relax.TensorType) and value.ty.ndim > 1:
            held.add(value)

    relax.analysis.post_order_visit(load_model(save(model(nodes, [tensor("x0", [2, 64])], weights)))["main"], visit)
    assert [tuple(each.value.shape) for each in held] == [(64, 64)]


def test_inputs_that_no_node_reads_stay(save: Save) -> None:
    """Callers pass every input of the ONNX model. Slimming drops an input if no node reads its numbers."""
    nodes = [
        helper.make_node("Shape", ["shaped"], ["s"]),
        helper.make_node("Reshape", ["x", "s"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    inputs = [tensor("first", [1]), tensor("x", [2, 6]), tensor("shaped", [3, 4]), tensor("last", [2])]
    inputs.append(helper.make_tensor_value_info("text", TensorProto.STRING, [1]))
    names = [param.name for param in load_model(save(model(nodes, inputs)))["main"].params]
    assert names == ["first", "x", "shaped", "last"]


def test_a_refusal_that_names_the_node_has_no_notes_of_other_tools(save: Save) -> None:
    """ONNX's checker would add its own line about the other attribute."""
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], name="cell", direction="sideways", odd=1)
    weights = {"w": np.zeros((1, 16, 3), np.float32), "r": np.zeros((1, 16, 4), np.float32)}
    with pytest.raises(BadModel, match=r"'direction' is 'sideways'; write one of [a-z, ]*$"):
        load_model(save(model([node], [tensor("x", [5, 1, 3])], weights)))


def test_constants_are_computed_with_one_thread(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    onnxruntime: Any = pytest.importorskip("onnxruntime")
    threads: list[int] = []

    class Recorded(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run(self, *args: object) -> object:
            threads.append(self.get_session_options().intra_op_num_threads)
            return super().run(*args)

    monkeypatch.setattr(onnxruntime, "InferenceSession", Recorded)
    nodes = [helper.make_node("ConstantOfShape", ["dims"], ["w"]), helper.make_node("MatMul", ["x", "w"], ["y"])]
    load_model(save(model(nodes, [tensor("x", [1, 512])], {"dims": np.array([512, 512])})))
    assert threads == [1]


@pytest.mark.parametrize("place", [b"INPUT", b"NODE1", b"WIGHT", b"GRAPH", b"OUTPT", b"DIMEN"])
@pytest.mark.parametrize("name", [b"a\0bcd", b"a\ncde", b"a\x1b[2J", b"a\xff\xfecd", b"\xed\xa0\x80ab"])
def test_names_are_printable(save: Save, place: bytes, name: bytes) -> None:
    """Put into the bytes of a good file; protobuf takes them all."""
    weight = numpy_helper.from_array(np.ones((4, 8), np.float32), "WIGHT")
    node = helper.make_node("Add", ["INPUT", "WIGHT"], ["OUTPT"], name="NODE1")
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, ["DIMEN", 8]) for each in ("INPUT", "OUTPT"))
    made = helper.make_model(helper.make_graph([node], "GRAPH", [x], [y], [weight]))
    assert "export the model with names of at most 10,000 printable characters" in refusal(
        save(made.SerializeToString().replace(place, name))
    )


def test_remarks_may_have_several_lines(save: Save) -> None:
    made = relu(tensor("x", [2, 8]))
    made.doc_string = made.graph.node[0].doc_string = "two\nlines"
    helper.set_model_props(made, {"a\nkey": "a\nvalue"})
    load_model(save(made))


def test_slimming_does_not_infer_shapes_that_are_known(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would copy all weights for many a node: 11 of 16 s for a model of 85 MB."""
    inferred = list[object]()
    monkeypatch.setattr("onnxslim.core.shape_infer", inferred.append)
    load_model(save(relu(tensor("x", [2, 8]))))
    assert not inferred


def without_first(model: onnx.ModelProto) -> onnx.ModelProto:
    del model.graph.node[0]
    return model


def test_a_slimmed_model_that_lacks_a_node_is_not_taken() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["y"], ["z"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xz"]
    data = helper.make_model(helper.make_graph(nodes, "two", ends[:1], ends[1:])).SerializeToString()
    with mock.patch.object(onnx_model, "_slim", side_effect=without_first):
        text = str(onnx_model.load_onnx(data, {}, Limits(len(data))))
    assert "R.nn.relu" in text
