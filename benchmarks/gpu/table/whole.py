"""ResNet-50 and BERT-base in float16 for the first table, as ONNX files with random weights, and as functions of torch.

The sides run the same file: fractune its bundle, ONNX Runtime the file itself on its CUDA provider, and PyTorch the
nodes of the file one by one, compiled by `torch.compile`. No GPU has run this yet.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from benchmarks.gpu.table.peers import CUDA, Contestant, PeerMissing, imported_torch
from benchmarks.support.models import find_model
from benchmarks.support.transformer import Encoder

_PROVIDERS = {CUDA: "CUDAExecutionProvider", "cpu": "CPUExecutionProvider"}


def save_resnet(path: Path) -> None:
    """ONNX's own file, whose weights are all the same number, with random ones."""
    model = onnx.load(find_model("resnet50").path)
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    rng = np.random.default_rng(0)
    for node in [each for each in model.graph.node if each.op_type == "ConstantOfShape"]:
        dims, (value,) = tuple(shapes[node.input[0]]), numpy_helper.to_array(node.attribute[0].t)
        spread = (2.0 / prod(dims[1:])) ** 0.5 if len(dims) > 1 else 0.0
        weights = spread * rng.standard_normal(dims) if spread else np.full(dims, value)
        model.graph.initializer.append(numpy_helper.from_array(weights.astype("float32"), node.output[0]))
        model.graph.node.remove(node)
    onnx.save(halved(model), path)


def save_bert(path: Path) -> None:
    Encoder(layers=12, width=768, inner=3072, vocabulary=30522).save(path)
    onnx.save(halved(onnx.load(path)), path)


WHOLE: dict[str, Callable[[Path], None]] = {"ResNet-50": save_resnet, "BERT-base": save_bert}


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float16 in the place of float32."""
    graph = model.graph
    attributes = [each for node in graph.node for each in node.attribute]
    for tensor in (*graph.initializer, *(each.t for each in attributes if each.HasField("t"))):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("float16"), tensor.name))
    for each in attributes:
        if each.name == "to" and each.i == TensorProto.FLOAT:
            each.i = TensorProto.FLOAT16
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def by_torch_compile(path: Path, inputs: Mapping[str, Any], device: str = CUDA) -> Contestant:
    """On a processor (`cpu`) in a test. Raises PeerMissing."""
    torch = imported_torch(device)
    run = torch.compile(as_torch(torch, onnx.load(path), device), fullgraph=True)
    given = [torch.from_numpy(each).to(device) for each in inputs.values()]
    wait = torch.cuda.synchronize if device == CUDA else torch.cpu.synchronize
    made: list[Any] = [None]

    def call() -> None:
        made[0] = run(*given)
        wait()

    call()
    return Contestant(call, lambda: made[0].cpu().numpy(), f"PyTorch {torch.__version__}")


def by_onnxruntime(path: Path, inputs: Mapping[str, Any], device: str = CUDA) -> Contestant:
    """On a processor (`cpu`) in a test. Raises PeerMissing."""
    try:
        import onnxruntime
    except ImportError as error:
        raise PeerMissing("ONNX Runtime is not installed") from error
    provider = _PROVIDERS[device]
    if provider not in onnxruntime.get_available_providers():
        raise PeerMissing(f"ONNX Runtime {onnxruntime.__version__} has no {provider}: install onnxruntime-gpu")
    session = onnxruntime.InferenceSession(path, providers=[provider])
    if provider not in session.get_providers():
        raise PeerMissing(f"ONNX Runtime {onnxruntime.__version__} cannot start its {provider}")
    binding, name = session.io_binding(), session.get_outputs()[0].name
    for each, array in inputs.items():
        binding.bind_ortvalue_input(each, onnxruntime.OrtValue.ortvalue_from_numpy(array, device, 0))
    binding.bind_output(name, device)

    def call() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    return Contestant(call, lambda: binding.copy_outputs_to_cpu()[0], f"ONNX Runtime {onnxruntime.__version__}")


MODEL_PEERS = {"torch.compile": by_torch_compile, "onnxruntime": by_onnxruntime}


def as_torch(torch: Any, model: onnx.ModelProto, device: str) -> Callable[..., Any]:
    """The model as a function of its inputs, in the order of the file; only the operators of these two models."""
    graph, functional = model.graph, torch.nn.functional
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    known = {  # numbers are Python's: `torch.compile` takes a divisor of attention for one
        name: each.tolist() if each.dtype == np.int64 or each.ndim == 0 else torch.from_numpy(each.copy()).to(device)
        for name, each in arrays.items()
    }
    names = [value.name for value in graph.input if value.name not in known]
    steps = [(_step(torch, functional, node), list(node.input), node.output[0]) for node in graph.node]
    result = graph.output[0].name

    def run(*inputs: Any) -> Any:
        values = known | dict(zip(names, inputs, strict=True))
        for step, given, made in steps:
            values[made] = step(*(values[name] for name in given))
        return values[result]

    return run


def _step(torch: Any, functional: Any, node: Any) -> Callable[..., Any]:
    said = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    window = {"stride": said.get("strides", [1, 1]), "padding": said.get("pads", [0] * 4)[:2]}
    steps: dict[str, Callable[..., Any]] = {
        "Add": operator.add, "Sum": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": operator.truediv,
        "MatMul": torch.matmul, "Pow": operator.pow, "Erf": torch.erf, "Sqrt": torch.sqrt, "Relu": torch.relu,
        "AveragePool": partial(functional.avg_pool2d, kernel_size=said.get("kernel_shape"), **window),
        "MaxPool": partial(functional.max_pool2d, kernel_size=said.get("kernel_shape"), **window),
        "Conv": partial(functional.conv2d, **window),
        "BatchNormalization": lambda x, scale, bias, mean, variance: functional.batch_norm(
            x, mean, variance, scale, bias, eps=said.get("epsilon", 1e-5)
        ),
        "Cast": lambda x: x.half(),
        "Gather": lambda table, ids: table[ids],
        "Gemm": lambda x, w, b: functional.linear(x, w if said.get("transB") else w.T, b),
        "ReduceMean": lambda x: x.mean(said["axes"], keepdim=True),
        "Reshape": lambda x, shape: x.reshape(shape),
        "Softmax": lambda x: torch.softmax(x, said.get("axis", 1)),
        "Transpose": lambda x: _transposed(x, said["perm"]),
        "Unsqueeze": _unsqueezed,
    }  # fmt: skip
    return steps[node.op_type]


def _unsqueezed(x: Any, axes: Sequence[int]) -> Any:
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def _transposed(x: Any, axes: Sequence[int]) -> Any:
    """As PyTorch's own models transpose keys: `torch.compile` (2.14) fails at an attention with one permutation."""
    *outer, one, other = axes
    return x.permute(*outer, other, one).transpose(-2, -1) if one > other else x.permute(axes)
