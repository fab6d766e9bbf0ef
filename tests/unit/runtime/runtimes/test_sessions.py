"""A model in another runtime by itself: what it takes, and what it cannot do. OpenVINO is tested where it is installed:
fractune does not depend on it.
"""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest

from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.files.compared import EXACT_ONNX_RUNTIME, ONNX_RUNTIME
from fractune_runtime.sessions import (
    Feeder,
    OnnxRuntimeSession,
    OpenVinoSession,
    is_quantized,
    settings_of,
    stream_settings,
)
from fractune_runtime.tvm_runtime.tensors import TensorSpec
from tests.support.processes.cli_process import write_model

Array = npt.NDArray[Any]
needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs the package openvino")
ENDS = [("a", 64), ("y", 8)]
WEIGHT = np.full((64, 8), 127, "int8")
"""times 255, neighbouring products sum up beyond 16 bits"""


def write_sum(path: Path, *dims: str | int, other: tuple[str | int, ...] = ()) -> Path:
    """`y = a + b`, both doubles and of the shape `dims`; or `b` of the shape `other`."""
    shapes = {"a": dims, "b": other or dims, "y": dims}
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.DOUBLE, each) for name, each in shapes.items()]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["y"])], "sum", ends[:2], ends[2:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_product(path: Path, weight: Array = WEIGHT) -> Path:
    """`y = a @ weight`: (rows, 64) of uint8 by int8, summed in int32."""
    ends = [
        onnx.helper.make_tensor_value_info("a", onnx.TensorProto.UINT8, (4, len(weight))),
        onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (4, weight.shape[1])),
    ]
    node = onnx.helper.make_node("MatMulInteger", ["a", "w"], ["y"])
    initializers = [onnx.numpy_helper.from_array(weight, "w")]
    graph = onnx.helper.make_graph([node], "product", ends[:1], ends[1:], initializers)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_packed_product(path: Path, level: int) -> tuple[Path, Array]:
    """`y = a @ weight` by a MatMulNBits with this `accuracy_level`: (3, 64) of floats; the file, and the weight."""
    numbers = np.arange(8 * 64).reshape(8, 64) % 15
    packed = (numbers[:, 0::2] | numbers[:, 1::2] << 4).astype("uint8").reshape(8, 2, 16)
    steps = np.linspace(0.1, 1, 8 * 2, dtype="float32").reshape(8, 2)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (3, size)) for name, size in ENDS]
    sizes: dict[str, Any] = {"K": 64, "N": 8, "bits": 4, "block_size": 32}
    node = onnx.helper.make_node(
        "MatMulNBits", ["a", "w", "s"], ["y"], domain="com.microsoft", accuracy_level=level, **sizes
    )
    weights = [onnx.numpy_helper.from_array(packed, "w"), onnx.numpy_helper.from_array(steps.reshape(-1), "s")]
    graph = onnx.helper.make_graph([node], "product", ends[:1], ends[1:], weights)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    weight: Array = (numbers - 8) * np.repeat(steps.astype("float64"), 32, axis=1)
    return path, weight.T


def test_fixed_shapes_need_no_words(tmp_path: Path) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", 2, 3), 1)
    assert model.input_specs({}) == [TensorSpec(name, "float64", (2, 3)) for name in ("a", "b")]


def test_a_named_dimension_is_the_same_at_every_input(tmp_path: Path) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", "batch", 3), 1)
    assert [spec.shape for spec in model.input_specs({"a": [4, 3]})] == [(4, 3), (4, 3)]
    with pytest.raises(BadModel, match=r"m.onnx: input 'a' has the open shape \['batch', 3\]; give it by --input a="):
        model.input_specs({})


@pytest.mark.parametrize("shapes", [{"b": [4, 3]}, {"a": [4, 3]}], ids=["its own", "by a name"])
def test_a_constant_has_the_shape_that_was_given(tmp_path: Path, shapes: dict[str, list[int]]) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", "batch", 3), 1)
    (constant,) = model.constants({"b": "1"}, shapes).values()
    assert constant.tolist() == np.ones((4, 3)).tolist()


def manifest_of(*inputs: str, **more: Any) -> dict[str, Any]:
    return {"inputs": [{"name": name} for name in inputs], "outputs": [{"name": "y"}], **more}


def test_a_session_is_fed_by_its_own_names_with_the_constants_of_the_bundle(tmp_path: Path) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", "rows", 3), 1)
    x = np.zeros((2, 3))
    for own in ("a", "renamed"):
        feed = Feeder(manifest_of(own, constants={"b": "5"}), model)({own: x})
        assert [each.tolist() for each in model.run(feed)] == [np.full((2, 3), 5.0).tolist()]


def test_an_input_that_the_runtime_dropped_is_left_out(tmp_path: Path) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", 2, 3), 1)
    x = np.ones((2, 3))
    feed = Feeder(manifest_of("a", "length", "b"), model)({"length": np.ones(1), "b": 2 * x, "a": x})
    assert model.run(feed)[0].tolist() == (3 * x).tolist()
    with pytest.raises(BadModel, match=r"the bundle has the inputs a, and m\.onnx has a, b"):
        Feeder(manifest_of("a"), model)
    with pytest.raises(BadModel, match=r"the bundle has 0 outputs, and m\.onnx has 1"):
        Feeder({**manifest_of("a", "b"), "outputs": []}, model)


def test_inputs_that_it_cannot_run_are_one_line(tmp_path: Path) -> None:
    model = OnnxRuntimeSession(write_sum(tmp_path / "m.onnx", "left", "right"), 1)
    ones = {"a": np.ones((2, 3)), "b": np.ones((2, 3))}
    (total,) = model.run(ones, ["y"])
    assert (total == 2).all()
    with pytest.raises(BadModel, match="ONNX Runtime cannot run it") as refused:
        model.run({**ones, "b": np.ones((5, 3))}, ["y"])
    assert "\n" not in str(refused.value)


def test_an_exact_session_sums_bytes_of_full_range_as_onnx_defines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    session = onnxruntime.InferenceSession

    def recorded(path: str, options: Any, **more: Any) -> Any:
        asked.append(options)
        return session(path, options, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    path, data = write_product(tmp_path / "m.onnx"), np.full((4, 64), 255, "uint8")
    (sums,) = OnnxRuntimeSession.exact(path, 1).run({"a": data}, ["y"])
    assert (sums == data.astype("int32") @ WEIGHT.astype("int32")).all()
    OnnxRuntimeSession(path, 1)
    exact, default = asked
    for setting, value in EXACT_ONNX_RUNTIME.items():
        assert exact.get_session_config_entry(setting) == value
        with pytest.raises(RuntimeError, match=setting):
            default.get_session_config_entry(setting)


def test_an_exact_session_does_not_round_the_data_of_weights_of_four_bits(tmp_path: Path) -> None:
    numbers, steps = np.arange(64 * 8) % 15 - 7, np.linspace(0.1, 1, 4 * 8, dtype="float32").reshape(4, 8)
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (3, size)) for name, size in ENDS]
    nodes = [
        onnx.helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=16),
        onnx.helper.make_node("MatMul", ["a", "d"], ["y"]),
    ]
    weights = [
        onnx.helper.make_tensor("w", onnx.TensorProto.INT4, (64, 8), numbers),
        onnx.numpy_helper.from_array(steps, "s"),
    ]
    graph = onnx.helper.make_graph(nodes, "product", ends[:1], ends[1:], weights)
    path = tmp_path / "m.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10), path)
    data = np.linspace(0, 1, 3 * 64, dtype="float32").reshape(3, 64) ** 2
    (product,) = OnnxRuntimeSession.exact(path, 1).run({"a": data}, ["y"])
    expected = data @ (numbers.reshape(64, 8) * np.repeat(steps, 16, axis=0))
    np.testing.assert_allclose(product, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert is_quantized(path)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_an_exact_session_rounds_the_data_of_packed_weights_only_to_bytes(tmp_path: Path, level: int) -> None:
    path, weight = write_packed_product(tmp_path / "m.onnx", level)
    data = np.linspace(0, 1, 3 * 64, dtype="float32").reshape(3, 64) ** 2
    (product,) = OnnxRuntimeSession.exact(path, 1).run({"a": data}, ["y"])
    expected = data.astype("float64") @ weight
    differs = float(np.abs(product - expected).max() / np.abs(expected).max())
    assert 1e-4 < differs < 1e-2 if level == 4 else differs < 1e-5
    assert is_quantized(path)


def test_a_file_is_quantized_by_its_operators_and_not_by_its_names(tmp_path: Path) -> None:
    assert is_quantized(write_product(tmp_path / "m.onnx"))
    assert not is_quantized(write_sum(tmp_path / "QuantizeLinear.onnx", "QuantizeLinear", 3))


def test_threads_of_a_session_that_serves_sleep(tmp_path: Path) -> None:
    path = write_sum(tmp_path / "sum.onnx", 4)
    key = "session.intra_op.allow_spinning"
    entries = {
        name: OnnxRuntimeSession(path, 2, settings)._session.get_session_options()
        for name, settings in [("default", {}), ("serving", settings_of(ONNX_RUNTIME, exact=False))]
    }
    assert entries["serving"].get_session_config_entry(key) == "0"
    with pytest.raises(RuntimeError, match="does not have configuration with key"):
        entries["default"].get_session_config_entry(key)


def test_several_streams_have_their_threads_each() -> None:
    assert stream_settings(2, 3) == {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "NUM_STREAMS": "3",
        "INFERENCE_NUM_THREADS": "6",
    }
    assert stream_settings(4, 1)["PERFORMANCE_HINT"] == "LATENCY"


def test_without_openvino_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(FractuneError, match=r"^OpenVINO is not installed here; install the package 'openvino'$"):
        OpenVinoSession(tmp_path / "m.onnx", 1)


@needs_openvino
def test_each_stream_has_a_call(tmp_path: Path) -> None:
    model = OpenVinoSession(write_model(tmp_path / "small.onnx"), 2, stream_settings(1, 2))
    assert model.version[:3].isdigit()
    calls = model.streams(model.random_feed({}), 2)
    assert len(calls) == 2
    assert all(len(call()) == 1 for call in calls)


@needs_openvino
def test_a_file_that_it_cannot_run_is_a_bad_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(BadModel, match=r"broken\.onnx: OpenVINO cannot load it"):
        OpenVinoSession(path, 1)


@needs_openvino
def test_a_constant_must_fit(tmp_path: Path) -> None:
    model = OpenVinoSession(write_model(tmp_path / "small.onnx"), 1)
    with pytest.raises(BadRequest, match="input 'x'"):
        model.constants({"x": "1,2,3"}, {})


@needs_openvino
def test_an_input_that_nothing_reads_and_one_of_two_names_are_no_obstacle() -> None:
    """OpenVINO drops the one, and names the other by the result of a Reshape that changes nothing."""
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ("n",)) for name in ("x", "unread", "y")]
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["size"]),
        onnx.helper.make_node("Reshape", ["x", "size"], ["a"]),
        onnx.helper.make_node("Exp", ["a"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "unread", ends[:2], ends[2:])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    model = OpenVinoSession(made.SerializeToString(), 1, name="m.onnx", shapes={"x": [4], "unread": [4]})
    zeros = np.zeros(4, np.float32)
    feed = Feeder(manifest_of("x", "unread"), model)({"x": zeros, "unread": zeros})
    assert list(feed) == ["x"]
    assert model.run(feed)[0].tolist() == [1.0] * 4
