"""Bundles of small models, compiled for real, beside ONNX Runtime: right ones pass, and wrong ones name the node."""

import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper

from fractune_core.errors import BadRequest
from fractune_core.files.bundles import Bundle
from fractune_core.files.compared import Checked
from fractune_runtime.cpu import OnCpu
from fractune_runtime.sessions import OnnxRuntimeSession, open_session
from fractune_workers.children.checking import child as checking, comparing, references
from fractune_workers.children.checking.comparing import imported
from fractune_workers.children.checking.references import reference
from fractune_workers.children.importing.onnx_models.onnx_importer import CONVERTERS
from tests.support.denormals import flushes
from tests.support.onnx_models import onnx_model
from tests.support.real_bundle import compile_model
from tests.support.two_formats import of_two_formats

Array = npt.NDArray[Any]
Node = helper.make_node
F32 = np.float32
rng = np.random.default_rng(0)
IMAGE = np.zeros((1, 3, 12, 12), F32)
CONV = rng.standard_normal((8, 3, 3, 3)).astype(F32)
TABLE = rng.standard_normal((50, 4)).astype(F32)


def saved(
    folder: Path,
    nodes: Sequence[Any],
    inputs: Mapping[str, Array],
    weights: Mapping[str, Any] | None = None,
    **how: Any,
) -> Path:
    path = folder / "m.onnx"
    onnx.save(onnx_model(nodes, inputs, weights, **how), path)
    return path


def compiled(path: Path) -> Path:
    return compile_model(path, path.with_suffix(".fractune"), tuned=["cpu:1"])


def checked(model: Path, bundle: Path | None = None, given: Path | None = None) -> Checked:
    answer = checking.check(str(model), {}, str(bundle or compiled(model)), str(given or ""))
    assert "checked" in answer, answer
    return Checked.from_json(answer["checked"])


def difference(model: Path, bundle: Path | None = None) -> str:
    answer = checking.check(str(model), {}, str(bundle or compiled(model)))
    assert "differs" in answer, answer
    return str(answer["differs"])


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A convolution, an activation and a mean, and its bundle."""
    nodes = [
        Node("Conv", ["x", "w"], ["c"], name="first"),
        Node("Relu", ["c"], ["r"], name="second"),
        Node("Neg", ["r"], ["n"], name="third"),
        Node("ReduceMean", ["n"], ["y"], name="fourth", axes=[2, 3]),
    ]
    model = saved(tmp_path_factory.mktemp("network"), nodes, {"x": IMAGE}, {"w": CONV}, opset=17)
    return model, compiled(model)


def test_a_right_bundle_passes_on_all_sets_and_on_the_callers_own(network: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.full(IMAGE.shape, 255, F32))
    found = checked(*network, tmp_path / "own.npz")
    assert found.reference.startswith("ONNX Runtime ")
    assert list(found.sets) == ["the given inputs", "random", "random above zero", "zeros"]
    assert max(found.sets.values()) < 1e-5
    assert found.variants == ("cpu:1", "untuned")
    assert found.line.startswith(f"outputs equal {found.reference}'s on 4 sets of inputs (the given inputs, random")


def test_a_file_that_holds_another_model_in_onnx_runtimes_own_format_is_compared_as_onnx(tmp_path: Path) -> None:
    x = np.linspace(-1, 1, 8, dtype=F32).reshape(2, 4)
    visible, hidden = (onnx_model([Node(name, ["x"], ["y"])], {"x": x}, opset=17) for name in ("Neg", "Exp"))
    visible.ir_version = hidden.ir_version = 8
    path = tmp_path / "m.onnx"
    path.write_bytes(of_two_formats(visible, hidden, tmp_path))
    # By itself ONNX Runtime takes the hidden one.
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.exp(x), rtol=1e-5)
    assert set(checked(path).sets.values()) == {0.0}
    own = path.with_suffix(".ort")
    own.write_bytes(path.read_bytes())
    competing = open_session("onnxruntime", path.read_bytes(), "m.onnx", 1, [*os.sched_getaffinity(0)], {}, {})
    for outputs in (OnnxRuntimeSession(own, 1).run({"x": x}, ["y"]), competing.run({"x": x})):
        np.testing.assert_array_equal(outputs[0], -x)


def test_the_weights_of_a_large_model_are_read_where_they_lie(
    network: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "APART_FROM_BYTES", 1)
    monkeypatch.setattr(checking, "LEAST_BYTES", CONV.nbytes)
    assert CONV.tobytes() not in checking._outline(network[0])
    found = checked(*network)
    assert list(found.sets) == ["random", "random above zero", "zeros"]
    other = onnx.load(network[0])
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(CONV + F32(0.1), "w"))
    onnx.save(other, tmp_path / "m.onnx")
    assert "the bundle's output 'y' differs from ONNX Runtime's" in difference(tmp_path / "m.onnx", network[1])
    onnx.save(other, tmp_path / "n.onnx", save_as_external_data=True, location="m.onnx", size_threshold=0)
    answer = checking.check(str(tmp_path / "n.onnx"), {}, str(network[1]))
    assert answer["checked"]["reason"] == "n.onnx: cannot be read as one file"


def test_own_inputs_of_another_shape_are_refused(network: tuple[Path, Path], tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=np.zeros((1, 3), F32))
    with pytest.raises(BadRequest, match=r"input 'x' is float32\[1, 3\], and the model takes float32\[1, 3, 12, 12\]"):
        checked(*network, tmp_path / "own.npz")


def _not_negated(node: Any) -> list[Any]:
    return [node.input(0)]


@pytest.fixture(scope="module")
def wrong(network: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The network, and its bundle by a wrong converter."""
    model = tmp_path_factory.mktemp("wrong") / "m.onnx"
    model.write_bytes(network[0].read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONVERTERS, "Neg", _not_negated)
        return model, compiled(model)


def test_a_wrong_converter_is_named_by_the_files_own_node(
    wrong: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it the error goes on to the end."""
    monkeypatch.setitem(CONVERTERS, "Neg", _not_negated)
    text = difference(*wrong)
    assert text.startswith("m.onnx: the bundle's output 'y' differs from ONNX Runtime's by ")
    assert "on the inputs 'random' (variant cpu:1)" in text
    assert text.endswith("the first node that computes something else is node 'third' (Neg)")


def test_a_bundle_whose_code_alone_is_wrong_blames_its_schedules(wrong: tuple[Path, Path]) -> None:
    """A planted artifact: the bundle of another model under this one's name."""
    assert difference(*wrong).endswith("is imported right, so the schedules of this variant are wrong")


def test_extremes_find_what_random_numbers_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converter that cuts numbers off which no random input has."""
    monkeypatch.setitem(CONVERTERS, "Neg", lambda node: [_cut(node.input(0))])
    text = difference(saved(tmp_path, [Node("Neg", ["x"], ["y"])], {"x": IMAGE}))
    assert "on the inputs 'lowest'" in text


def _cut(value: Any) -> Any:
    from tvm import relax

    return relax.op.negative(relax.op.clip(value, -1e30, 1e30))


def test_ties_nan_small_outputs_and_steps_agree(tmp_path: Path) -> None:
    """Each of these looks wrong to a rule that only compares numbers."""
    product = rng.standard_normal((64, 8)).astype(F32)
    scores = [Node("Conv", ["x", "w"], ["c"]), Node("Add", ["c", "b"], ["s"]), Node("Sigmoid", ["s"], ["y"])]
    quantized = [
        Node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        Node("MatMulInteger", ["q", "w", "z"], ["i"]),
        Node("Cast", ["i"], ["f"], to=1),
        Node("Mul", ["f", "s"], ["y"]),
    ]
    image, rows, halves = {"x": IMAGE}, {"x": np.zeros((4, 64), F32)}, {"x": np.zeros((4, 64), np.float16)}
    conv, maxima = Node("Conv", ["x", "w"], ["c"]), Node("ArgMax", ["c"], ["y"], axis=3)
    cases: dict[str, tuple[list[Any], dict[str, Array], dict[str, Any]]] = {
        "ties": ([conv, maxima], image, {"w": CONV}),
        "nan": ([Node("Sqrt", ["x"], ["y"])], image, {}),
        "small": (scores, image, {"w": CONV * F32(0.01), "b": F32(-11.5)}),
        "steps": (quantized, rows, {"w": (product * 40).astype(np.int8)}),
        "half": ([Node("MatMul", ["x", "w"], ["y"])], halves, {"w": product.astype(np.float16)}),
        "rows": ([Node("Gather", ["w", "x"], ["y"])], {"x": np.zeros(5, np.int64)}, {"w": TABLE}),
    }
    for name, (nodes, inputs, weights) in cases.items():
        (tmp_path / name).mkdir()
        found = checked(saved(tmp_path / name, nodes, inputs, weights))
        assert {"random", "random above zero"} <= set(found.sets), (name, found)
        assert found.ranges == ({"x": (0, 9)} if name == "rows" else {})


def test_inputs_that_the_reference_refuses_are_skipped_and_said(tmp_path: Path) -> None:
    """A row beyond a table of one row, by a number that does not look like an index."""
    nodes = [Node("Cast", ["x"], ["i"], to=onnx.TensorProto.INT64), Node("Gather", ["w", "i"], ["y"])]
    nodes.append(Node("Neg", ["x"], ["n"]))
    model = saved(tmp_path, nodes, {"x": np.zeros(50, F32)}, {"w": TABLE[:1]}, outputs=["y", "n"])
    found = checked(model)
    assert "cannot run it" in found.skipped["random"]
    assert found.skipped["output 'y'"] == "it is the same on all inputs that were tried"
    assert "zeros" in found.sets
    assert "; not compared: random (ONNX Runtime cannot run it" in found.line


def test_indices_lie_within_a_table_of_one_row(tmp_path: Path) -> None:
    """As the number of the one image of a batch, which RoiAlign takes."""
    nodes = [Node("Gather", ["w", "x"], ["y"]), Node("Neg", ["z"], ["n"])]
    inputs: dict[str, Array] = {"x": np.zeros(5, np.int64), "z": np.zeros(5, F32)}
    model = saved(tmp_path, nodes, inputs, {"w": TABLE[:1]}, outputs=["y", "n"])
    assert {"random", "random above zero", "zeros"} <= checked(model).sets.keys()


def test_the_reference_computes_the_same_inputs_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The range of indices is found by numbers that are drawn again for the comparison."""
    ran: list[bytes] = []
    run = OnnxRuntimeSession.run

    def noted(self: OnnxRuntimeSession, feed: Any, *rest: Any) -> Any:
        ran.append(b"".join(feed[name].tobytes() for name in sorted(feed)))
        return run(self, feed, *rest)

    monkeypatch.setattr(OnnxRuntimeSession, "run", noted)
    ids, scale = np.zeros(3, np.int64), np.ones(4, F32)
    nodes = [Node("Gather", ["table", "ids"], ["g"]), Node("Mul", ["g", "scale"], ["y"])]
    found = checked(saved(tmp_path, nodes, {"ids": ids, "scale": scale}, {"table": TABLE}, opset=17))
    assert {"random", "random above zero"} <= set(found.sets)
    assert len(ran) == len(set(ran)) > 2


def test_without_onnx_runtime_a_small_file_is_compared_with_onnxs_reference(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found = checked(*network)
    assert found.reference == f"ONNX's reference {onnx.__version__}"
    assert "random" in found.sets
    monkeypatch.setattr(references, "MOST_REFERENCE_BYTES", 100)
    nothing = checked(*network)
    assert not nothing.sets
    assert "ONNX Runtime is not installed, and the file is larger than" in nothing.line
    assert nothing.line.startswith("the outputs were not compared with another runtime's: ")


def test_no_run_begins_after_the_deadline(network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "COMPARING_S", -1.0)
    found = checked(*network)
    assert not found.sets
    assert "were over" in found.line


def test_the_time_of_a_process_that_stands_still_does_not_count(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A measurement stops this process, and on a busy machine it has a small part of a core."""
    monkeypatch.setattr(time, "monotonic", itertools.count(step=100).__next__)
    found = checked(*network)
    assert "random" in found.sets
    assert "untuned" in found.variants
    assert not found.skipped


def test_a_slow_untuned_variant_is_compared_on_the_first_inputs(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparing, "UNTUNED_S", 1e-9)
    found = checked(*network)
    assert "untuned" in found.variants
    assert found.skipped["untuned beyond random inputs"] == "it is slow"
    assert "random" in found.sets


def test_an_untuned_variant_with_operators_known_as_slow_does_not_run(
    network: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, load_variant = list[str](), OnCpu.load_variant

    def load(self: OnCpu, name: str) -> Any:
        loaded.append(name)
        return load_variant(self, name)

    monkeypatch.setattr(OnCpu, "load_variant", load)
    monkeypatch.setattr(Bundle, "untuned_sum_s", lambda _: 18.4)
    found = checked(*network)
    assert (found.variants, loaded) == (("cpu:1",), ["cpu:1"])
    assert found.line.endswith("; not compared: untuned (its operators take 18 s)")


def test_a_model_that_is_not_onnx_is_named_as_not_compared(network: tuple[Path, Path], tmp_path: Path) -> None:
    other = tmp_path / "m.json"
    other.write_text("{}")
    assert checked(other, network[1]).reason == "only ONNX files are compared"


def test_outputs_that_say_nothing_are_not_found_equal(tmp_path: Path) -> None:
    """A bundle of another model could give them too."""
    never = [Node("Abs", ["x"], ["a"]), Node("Sub", ["minus", "a"], ["b"]), Node("Sqrt", ["b"], ["y"])]
    cases = {
        "NaN or infinite": (never, {"minus": F32(-1)}),
        "the same on all inputs that were tried": ([Node("Mul", ["x", "zero"], ["y"])], {"zero": F32(0)}),
    }
    for what, (nodes, weights) in cases.items():
        (folder := tmp_path / what.partition(" ")[0]).mkdir()
        found = checked(saved(folder, nodes, {"x": IMAGE}, weights))
        assert not found.is_equal
        assert found.reason == f"the reference's outputs are {what}; give inputs of your own by --check-inputs"


def test_one_of_two_outputs_may_say_nothing(tmp_path: Path) -> None:
    nodes = [Node("Neg", ["x"], ["y"]), Node("Mul", ["x", "zero"], ["z"])]
    found = checked(saved(tmp_path, nodes, {"x": IMAGE}, {"zero": F32(0)}, outputs=["y", "z"]))
    assert {"random", "zeros"} <= set(found.sets)
    assert found.skipped == {"output 'z'": "it is the same on all inputs that were tried"}
    assert found.line.endswith("; not compared: output 'z' (it is the same on all inputs that were tried)")


def test_a_number_that_the_model_needs_is_found(tmp_path: Path) -> None:
    """A rate, below which the outputs are NaN."""
    nodes = [Node("Sub", ["rate", "least"], ["d"]), Node("Sqrt", ["d"], ["s"]), Node("Mul", ["x", "s"], ["y"])]
    path = saved(tmp_path, nodes, {"x": IMAGE, "rate": np.zeros((), F32)}, {"least": F32(12000)})
    bundle = compiled(path)
    found = checked(path, bundle)
    assert found.ranges == {"rate": (16000, 16000)}
    assert {"random", "random above zero"} <= set(found.sets)
    assert found.skipped == {"zeros": "its outputs are NaN or infinite"}


def _by_reference(model: onnx.ModelProto) -> Any:
    return reference(0).open(model.SerializeToString(), ["y"])


def _by_importer(model: onnx.ModelProto) -> Any:
    return imported(model, {}, "llvm -mcpu=x86-64-v3")


@pytest.mark.parametrize("opened", [_by_reference, _by_importer])
def test_denormals_are_zero_in_a_run_alone(opened: Callable[[onnx.ModelProto], Any]) -> None:
    x = np.array([2e-38, 1.0], np.float32)
    model = onnx_model([helper.make_node("Mul", ["x", "half"], ["y"])], {"x": x}, {"half": np.array(0.5, np.float32)})
    run = opened(model)
    assert not flushes()
    assert run({"x": x})[0].tolist() == [0.0, 0.5]
    assert not flushes()
