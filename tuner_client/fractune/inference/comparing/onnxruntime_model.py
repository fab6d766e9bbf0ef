"""An ONNX file in ONNX Runtime: the peer of a bundle.

By default ONNX Runtime's products of unsigned by signed bytes saturate where the processor has no VNNI. Products with
weights of 4 bits round their data to 8 bits: behind a DequantizeLinear always, in a MatMulNBits if the node has
`accuracy_level=4`. Then the outputs are not those of the model. An exact session computes all these products as they
are defined.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.inference.comparing.constant_inputs import constant_array
from fractune.inference.tvm_runtime.tensors import TensorSpec, numpy_dtype
from fractune_core.errors import BadModel, FractuneError
from fractune_core.files.compared import EXACT_ONNX_RUNTIME, ONLY_ONNX

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

NAME = "onnxruntime"
NO_SPINNING = {"session.intra_op.allow_spinning": "0"}
"""threads that wait for work sleep"""
_QUANTIZING = (
    *("QuantizeLinear", "DynamicQuantizeLinear", "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"),
    *("DynamicQuantizeMatMul", "MatMulIntegerToFloat", "DynamicQuantizeLSTM", "QAttention", "QGemm"),
    *("DequantizeLinear", "MatMulNBits"),
)
"""Operators that compute with quantized numbers, or make them"""
_OP_TYPE = 0x22
"""The field `op_type` of a node, as protobuf writes it: this byte, the length, the name"""
_OPERATORS = re.compile(b"|".join(re.escape(bytes([_OP_TYPE, len(name)]) + name.encode()) for name in _QUANTIZING))
_ROUNDING = re.compile(rb"(\x0a\x0eaccuracy_level\x18)[\x02-\x04]")
"""The attribute of a MatMulNBits that lets it round its data, as protobuf writes it: name and number. No setting of a
session overrides it."""
_TYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names that differ from ours"""


def is_quantized(path: Path) -> bool:
    """Whether the ONNX file computes with quantized numbers."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _OPERATORS.search(data) is not None


class OnnxRuntimeModel:
    """The ONNX file at `path`, run with `threads` threads on the CPUs that the process is confined to.

    `exact`: products of quantized numbers as ONNX defines them. `optimized`: with ONNX Runtime's changes of the graph.
    `spinning`: idle threads keep their cores busy for a while, as by default.

    Raises BadModel when ONNX Runtime cannot load it, FractuneError when it is not installed.
    """

    def __init__(
        self, path: Path, threads: int, *, exact: bool = False, optimized: bool = True, spinning: bool = True
    ) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise FractuneError("ONNX Runtime is not installed here; install 'fractune[onnxruntime]'") from error
        self.version = str(onnxruntime.__version__)
        self.exact = exact
        self._name = path.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # it warns of old files on every start, and its errors are exceptions too
        if not optimized:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        settings = {**ONLY_ONNX, **(EXACT_ONNX_RUNTIME if exact else {}), **({} if spinning else NO_SPINNING)}
        for key, value in settings.items():
            options.add_session_config_entry(key, value)
        try:
            model = _without_rounding(path) if exact else str(path)
            self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base
            message = str(error).partition("\n")[0]
            raise BadModel(
                f"{path.name}: ONNX Runtime cannot load it ({message}); give an ONNX file that it runs"
            ) from error
        self.input_names = [str(node.name) for node in self._session.get_inputs()]
        self.output_names = [str(node.name) for node in self._session.get_outputs()]

    def run(self, feed: Mapping[str, Array], output_names: Sequence[str]) -> list[Array]:
        """These outputs in this order. Raises BadModel when ONNX Runtime cannot run the model on these inputs."""
        try:
            outputs: list[Array] = self._session.run(output_names, feed)
        except Exception as error:
            message = str(error).partition("\n")[0]
            raise BadModel(f"{self._name}: ONNX Runtime cannot run it ({message})") from error
        return outputs

    def constants(self, numbers: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
        """The inputs that are constants in the bundle (name -> numbers as text), as ONNX Runtime takes them. `shapes`
        are for open dimensions of all inputs. Raises BadRequest for numbers that do not fit.
        """
        sizes = self._sizes(shapes)
        made = {}
        for node in self._session.get_inputs():
            if node.name in numbers:
                dtype = str(numpy_dtype(self._type(node)))
                known: Sequence[Any] = shapes.get(node.name) or [sizes.get(dim, dim) for dim in node.shape]
                dims = [dim if isinstance(dim, int) else None for dim in known]
                made[node.name] = constant_array(node.name, numbers[node.name], dtype, dims)
        return made

    def input_specs(self, shapes: Mapping[str, Sequence[int]], constants: Collection[str] = ()) -> list[TensorSpec]:
        """The inputs but the `constants`, with `shapes` for open ones. Raises BadModel for an input that stays open."""
        nodes = [node for node in self._session.get_inputs() if node.name not in constants]
        sizes = self._sizes(shapes)
        return [self._spec(node, [sizes.get(dim, dim) for dim in node.shape], shapes.get(node.name)) for node in nodes]

    def _sizes(self, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
        """Of dimensions by their names: equal names have equal sizes."""
        return {
            dim: size
            for node in self._session.get_inputs()
            for dim, size in zip(node.shape, shapes.get(node.name, ()), strict=False)
            if isinstance(dim, str)
        }

    def _spec(self, node: Any, known: list[Any], given: Sequence[int] | None) -> TensorSpec:
        shape = known if given is None else list(given)
        if not all(isinstance(dim, int) for dim in shape):
            raise BadModel(
                f"{self._name}: input '{node.name}' has the open shape {node.shape}; "
                f"give it by --input {node.name}=1,3,224,224"
            )
        return TensorSpec(node.name, self._type(node), tuple(shape))

    def _type(self, node: Any) -> str:
        kind = str(node.type).removeprefix("tensor(").removesuffix(")")
        return _TYPES.get(kind, kind)


def _without_rounding(path: Path) -> str | bytes:
    """The file for a session in which every MatMulNBits computes in float32: its path, or its bytes if they differ."""
    data, changed = _ROUNDING.subn(lambda found: found[1] + b"\x01", path.read_bytes())
    return data if changed else str(path)
