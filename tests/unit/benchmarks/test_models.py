"""Models that the benchmarks make, of their own and from others."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support import models
from benchmarks.support.decoder_peers import TOKEN, OnnxRuntime
from benchmarks.support.decoders import MODELS, Sizes, write_decoder
from benchmarks.support.form_cases import run_form
from benchmarks.support.forms import language
from benchmarks.support.forms.form import Form
from benchmarks.support.made_models import fold_scaled_weights, save_with_weights
from benchmarks.support.models import find_model
from benchmarks.support.node_cases import PASSED, Outcome
from benchmarks.support.reference import expected_outputs
from benchmarks.support.transformer import Encoder
from fractune_workers.children.importing.model_file import load_variants
from fractune_workers.children.importing.passes import extract, prepare
from tests.support.unoptimized import outputs_of

SCALES = np.array([[0.5, 1, 2]], dtype="float32")


def scaled_product(path: Path) -> None:
    """A product with an int8 weight that is cast and multiplied by a scale for each column."""
    whole = np.arange(-6, 6, dtype="int8").reshape(4, 3)
    weights = [numpy_helper.from_array(whole, "w"), numpy_helper.from_array(SCALES, "scale")]
    nodes = [
        helper.make_node("Cast", ["w"], ["cast"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["cast", "scale"], ["scaled"]),
        helper.make_node("MatMul", ["x", "scaled"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 4), ("y", 3))]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)), path)


def test_scaled_weights_become_float32_weights(tmp_path: Path) -> None:
    scaled_product(tmp_path / "int8.onnx")
    model = onnx.load(tmp_path / "int8.onnx")
    fold_scaled_weights(model)
    assert [node.op_type for node in model.graph.node] == ["MatMul"]
    (weight,) = model.graph.initializer
    whole = np.arange(-6, 6).reshape(4, 3)
    assert (numpy_helper.to_array(weight) == whole * SCALES).all()


def test_a_made_model_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def save(source: Path, path: Path) -> None:
        made.append(source)
        path.write_bytes(b"model")

    monkeypatch.setattr(models, "MADE", tmp_path / "models")
    made_model = models._Made(save, ("matmul",), {"x": [1]}, source=lambda: tmp_path / "source.onnx")
    monkeypatch.setitem(models._MADE, "made", made_model)
    first, second = models.find_model("made"), models.find_model("made")
    assert (first.path.read_bytes(), first, made) == (b"model", second, [tmp_path / "source.onnx"])


def test_weights_that_a_model_computes_are_stored_in_its_file(tmp_path: Path) -> None:
    nodes = [
        helper.make_node(
            "ConstantOfShape", ["shape"], ["w"], value=numpy_helper.from_array(np.array([0.5], "float32"))
        ),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, size]) for name, size in (("x", 4), ("y", 3))]
    shape = numpy_helper.from_array(np.array([4, 3]), "shape")
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], [shape])), tmp_path / "small.onnx")
    save_with_weights(tmp_path / "small.onnx", tmp_path / "whole.onnx")
    graph = onnx.load(tmp_path / "whole.onnx").graph
    assert [node.op_type for node in graph.node] == ["MatMul"]
    (weight,) = [numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == "w"]
    assert np.array_equal(weight, np.full((4, 3), 0.5, "float32"))


def test_models_that_are_installed_need_no_download_and_their_open_inputs_are_options() -> None:
    magika = find_model("magika")
    assert magika.path.is_file()
    assert (magika.options, magika.kinds) == (["--input=bytes=1,2048"], ("conv2d", "matmul"))


def test_an_unknown_model_is_named_with_those_that_there_are() -> None:
    with pytest.raises(SystemExit, match=r"no model 'net'; there are squeezenet, .*, transformer$"):
        find_model("net")


SMALL = {
    "qwen": replace(MODELS["qwen"], layers=2, width=64, heads=4, inner=96, vocabulary=40, positions=32),
    "qwen of 4 bits": replace(MODELS["qwen"], layers=2, width=64, heads=4, inner=96, vocabulary=40, bits=4),
    "whisper": replace(MODELS["whisper"], layers=2, width=64, inner=96, vocabulary=40, source=9),
    "marian": replace(MODELS["marian"], layers=2, width=64, inner=96, vocabulary=40, source=9),
}


@pytest.mark.parametrize("sizes", SMALL.values(), ids=SMALL)
def test_a_step_continues_a_prompt(sizes: Sizes, tmp_path: Path) -> None:
    path = write_decoder(tmp_path / "m.onnx", sizes)
    runtime = OnnxRuntime(str(path), sizes, threads=1)
    ids = np.array([3, 1, 4, 1, TOKEN])
    whole = runtime.prefill(ids)
    runtime.prefill(ids[:-1])
    np.testing.assert_allclose(runtime.step(), whole, atol=0.05 if sizes.bits else 1e-4)
    given = sizes.shapes(1, 16)
    inputs = onnx.load(str(path), load_external_data=False).graph.input
    assert {each.name: len(each.type.tensor_type.shape.dim) for each in inputs} == {
        name: len(shape) for name, shape in given.items()
    }


PARAMETERS = ("scale", "bias", "mean", "var")


def test_a_normalisation_of_an_old_opset_applies_the_statistics_that_it_is_given(tmp_path: Path) -> None:
    values = dict(zip(PARAMETERS, ([2.0, 1.0], [0.5, 0.0], [1.0, 3.0], [4.0, 0.25]), strict=True))
    node = helper.make_node("BatchNormalization", ["x", *PARAMETERS], ["y"], epsilon=0.0, momentum=0.9)
    shape = [1, 2, 1, 2]
    graph = helper.make_graph(
        [node],
        "normalised",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [helper.make_tensor(name, TensorProto.FLOAT, [2], held) for name, held in values.items()],
    )
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)]), path)

    (found,) = expected_outputs(path, {"x": np.array([[[[1.0, 3.0]], [[3.0, 4.0]]]], np.float32)})

    assert found.tolist() == [[[[0.5, 2.5]], [[0.0, 2.0]]]]


_ALL = (
    language.rotary,
    language.norms,
    language.group_query,
    language.whole_attention,
    language.multi_head,
    language.packed_weights,
)
FAMILIES = {each.__name__: list(each()) for each in _ALL}


def failed(forms: list[Form]) -> dict[str, Outcome]:
    outcomes = {form.name: run_form(form) for form in forms}
    return {name: each for name, each in outcomes.items() if each != Outcome(PASSED)}


@pytest.mark.parametrize("family", FAMILIES)
def test_some_forms_pass(family: str) -> None:
    assert failed(list(itertools.islice(FAMILIES[family], 2, None, 8))) == {}


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_form_passes(family: str) -> None:
    assert failed(FAMILIES[family]) == {}


TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
TINY = Encoder(layers=2, width=16, heads=2, inner=32, length=8, vocabulary=10)


def test_it_computes_what_onnx_says_by_few_operators(tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    TINY.save(path)
    rng = np.random.default_rng(0)
    inputs = {
        "ids": rng.integers(0, TINY.vocabulary, (1, TINY.length)),
        "mask": np.ones((1, TINY.length), "int64"),
    }
    inputs["mask"][0, -2:] = 0

    (module,) = load_variants(path, {}).modules
    prepared = prepare(module, TARGET)
    (found,) = outputs_of(prepared, TARGET, *inputs.values())
    (expected,) = expected_outputs(path, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

    names = [operator.name for operator in extract(prepared, TARGET)]
    assert sum("matmul" in name for name in names) == 6  # two products of computed values, four forms of others
    assert not [name for name in names if "mean" in name or "erf" in name]
    assert [name for name in names if "softmax" in name] == ["softmax"]
