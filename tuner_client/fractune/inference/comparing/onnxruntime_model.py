"""An ONNX file in ONNX Runtime: the peer of a bundle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.tensors import TensorSpec
from fractune_core.errors import BadModel, FractuneError

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

NAME = "onnxruntime"
_TYPES = {"float": "float32", "double": "float64"}
"""ONNX Runtime's names that differ from ours"""


class OnnxRuntimeModel:
    """The ONNX file at `path`, run with `threads` threads on the CPUs that the process is confined to.

    Raises BadModel when ONNX Runtime cannot load it, FractuneError when it is not installed.
    """

    def __init__(self, path: Path, threads: int) -> None:
        try:
            import onnxruntime
        except ImportError as error:
            raise FractuneError("ONNX Runtime is not installed here; install 'fractune[onnxruntime]'") from error
        self.version = str(onnxruntime.__version__)
        self._name = path.name
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only: it warns of old files on every start
        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base
            message = str(error).partition("\n")[0]
            raise BadModel(
                f"{path.name}: ONNX Runtime cannot load it ({message}), so nothing can be compared"
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

    def input_specs(self, shapes: Mapping[str, Sequence[int]]) -> list[TensorSpec]:
        """The inputs, with `shapes` for open inputs. Raises BadModel for an input that stays open."""
        nodes = self._session.get_inputs()
        sizes = {
            dim: size
            for node in nodes
            for dim, size in zip(node.shape, shapes.get(node.name, ()), strict=False)
            if isinstance(dim, str)
        }
        return [self._spec(node, [sizes.get(dim, dim) for dim in node.shape], shapes.get(node.name)) for node in nodes]

    def _spec(self, node: Any, known: list[Any], given: Sequence[int] | None) -> TensorSpec:
        shape = known if given is None else list(given)
        if not all(isinstance(dim, int) for dim in shape):
            raise BadModel(
                f"{self._name}: input '{node.name}' has the open shape {node.shape}; "
                f"give it by --input {node.name}=1,3,224,224"
            )
        kind = node.type.removeprefix("tensor(").removesuffix(")")
        return TensorSpec(node.name, _TYPES.get(kind, kind), tuple(shape))
