"""The first table's peers by PyTorch, and those of whole models: the calls that a GPU gets, made on the processor."""

import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm

from benchmarks.gpu.table.operations import Operation
from benchmarks.gpu.table.peers import PeerMissing, Task, by_torch, imported_torch
from benchmarks.gpu.table.whole import WHOLE, as_torch, by_onnxruntime, by_torch_compile, halved
from benchmarks.support.transformer import Encoder
from fractune_workers.children.tvm_api.processor import cpu_processor

pytestmark = pytest.mark.long

CPU = "cpu"
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is an extra")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which torch.compile needs for a CPU")

PRODUCT = Operation("product", "made up", (33, 65), (65, 17))
WINDOW = Operation("window", "made up", (2, 3, 9, 8), (4, 3, 3, 3), stride=2)


@needs_torch
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("operation", "channels_last"), [(PRODUCT, False), (WINDOW, False), (WINDOW, True)], ids=["product", "nchw", "nhwc"]
)
def test_torch_computes_the_operator(operation: Operation, dtype: str, *, channels_last: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(dtype) for shape in (operation.x, operation.w))
    if channels_last:
        x, w = (np.moveaxis(each, 1, -1).copy() for each in (x, w))
    expected = operation.result(x, w, channels_last=channels_last)
    x, w, y = (tvm.runtime.tensor(each) for each in (x, w, np.full(expected.shape, np.nan, dtype)))
    peer = by_torch(Task(operation, dtype, channels_last, x, w, y, cpu_processor()), CPU)
    peer.call()
    np.testing.assert_allclose(
        peer.output(), expected, atol=(2e-3 if dtype == "float16" else 1e-6) * abs(expected).max()
    )
    assert peer.by.startswith("PyTorch ")


@needs_torch
def test_torch_without_a_gpu_is_missing() -> None:
    if imported_torch(CPU).cuda.is_available():
        pytest.skip("PyTorch sees a GPU here")
    with pytest.raises(PeerMissing, match=r"PyTorch \S+ sees no GPU"):
        imported_torch("cuda")


def save_small_encoder(path: Path) -> None:
    Encoder(layers=1, width=32, heads=2, inner=64, length=16, vocabulary=50).save(path)
    onnx.save(halved(onnx.load(path)), path)


def save_small_resnet(path: Path) -> None:
    """A block of a ResNet between its first and its last layers."""
    rng = np.random.default_rng(0)
    shapes = {"stem": (8, 3, 3, 3), "block": (8, 8, 3, 3), "dense": (5, 8), "bias": (5,)}
    norms = dict.fromkeys(("scale", "shift", "mean"), (8,))
    weights = {name: rng.standard_normal(shape).astype("float32") / 4 for name, shape in (shapes | norms).items()}
    weights |= {"variance": np.ones(8, "float32"), "flat": np.array([1, 8])}
    window: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    node = onnx.helper.make_node
    nodes = [
        node("Conv", ["x", "stem"], ["a"], strides=[2, 2], **window),
        node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MaxPool", ["c"], ["d"], strides=[2, 2], **window),
        node("Conv", ["d", "block"], ["e"], **window),
        node("Sum", ["d", "e"], ["f"]),
        node("AveragePool", ["f"], ["g"], kernel_shape=[4, 4]),
        node("Reshape", ["g", "flat"], ["h"]),
        node("Gemm", ["h", "dense", "bias"], ["i"], transB=1),
        node("Softmax", ["i"], ["y"], axis=1),
    ]
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 16, 16]), ("y", [1, 5]))
    )
    initial = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "block", [x], [y], initial),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.save(halved(model), path)


def opened(path: Path) -> tuple[dict[str, Any], Any]:
    """Inputs of the model, and its output by ONNX Runtime."""
    session, rng = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]), np.random.default_rng(0)
    inputs = {
        each.name: np.ones(each.shape, "int64") if "int64" in each.type else rng.random(each.shape).astype("float16")
        for each in session.get_inputs()
    }
    return inputs, session.run(None, inputs)[0]


def assert_alike(output: Any, expected: Any) -> None:
    assert (output.dtype, output.shape) == (expected.dtype, expected.shape)
    wide = expected.astype("float32")
    np.testing.assert_allclose(output.astype("float32"), wide, rtol=0, atol=5e-3 * np.abs(wide).max())


@needs_torch
@pytest.mark.parametrize("save", WHOLE.values(), ids=WHOLE)
def test_torch_computes_the_whole_models_node_by_node(save: Callable[[Path], None], tmp_path: Path) -> None:
    save(tmp_path / "model.onnx")
    inputs, expected = opened(tmp_path / "model.onnx")
    torch = imported_torch(CPU)
    run = as_torch(torch, onnx.load(tmp_path / "model.onnx"), CPU)
    assert_alike(run(*map(torch.from_numpy, inputs.values())).numpy(), expected)


@needs_torch
@needs_compiler
@pytest.mark.parametrize("save", [save_small_encoder, save_small_resnet])
def test_peers_of_a_whole_model_compute_it(save: Callable[[Path], None], tmp_path: Path) -> None:
    """With the operators of both models, because `torch.compile` takes minutes for one of them on a processor."""
    path = tmp_path / "model.onnx"
    save(path)
    inputs, expected = opened(path)
    for peer in (by_onnxruntime(path, inputs, CPU), by_torch_compile(path, inputs, CPU)):
        peer.call()
        assert_alike(peer.output(), expected)
