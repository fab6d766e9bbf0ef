"""An ONNX file in OpenVINO, with a number of threads for each of its streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.inference.comparing.constant_inputs import constant_array
from fractune.inference.tvm_runtime.tensors import TensorSpec, random_inputs
from fractune_core.errors import BadModel, FractuneError

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


def stream_settings(threads: int, streams: int) -> dict[str, str]:
    """Of a compiled model whose streams answer requests side by side, each with so many threads."""
    hint = "LATENCY" if streams == 1 else "THROUGHPUT"
    return {
        "PERFORMANCE_HINT": hint,
        "NUM_STREAMS": str(streams),
        "INFERENCE_NUM_THREADS": str(threads * streams),
    }


class OpenVinoModel:
    """The ONNX file at `path`, compiled with `stream_settings`. `shapes` are for open dimensions, `constants` the
    numbers of inputs as text.

    Raises BadModel when OpenVINO cannot load it or an input stays open, FractuneError when it is not installed.
    """

    def __init__(
        self,
        path: Path,
        threads: int,
        streams: int = 1,
        shapes: Mapping[str, Sequence[int]] | None = None,
        constants: Mapping[str, str] | None = None,
    ) -> None:
        try:
            import openvino
        except ImportError as error:
            raise FractuneError("OpenVINO is not installed here; install the package 'openvino'") from error
        self.version = str(openvino.__version__).partition("-")[0]
        self._name, self._streams, self._constants = path.name, streams, constants or {}
        core = openvino.Core()
        try:
            model = core.read_model(str(path))
            if shapes:
                model.reshape({name: list(shape) for name, shape in shapes.items()})
            self._compiled: Any = core.compile_model(model, "CPU", stream_settings(threads, streams))
        except Exception as error:  # its exceptions have no common base
            message = str(error).strip().rpartition("\n")[2]
            raise BadModel(
                f"{path.name}: OpenVINO cannot load it ({message}); give an ONNX file that it runs"
            ) from error

    def calls(self) -> list[Callable[[], Any]]:
        """One for each stream; each runs one inference of the same inputs. Raises BadModel, BadRequest."""
        feed = self._feed()
        return [partial(self._compiled.create_infer_request().infer, feed) for _ in range(self._streams)]

    def _feed(self) -> dict[str, Array]:
        specs = list(map(self._spec, self._compiled.inputs))
        made = random_inputs([spec for spec in specs if spec.name not in self._constants])
        for spec in specs:
            if spec.name in self._constants:
                made[spec.name] = constant_array(spec.name, self._constants[spec.name], spec.dtype, spec.shape)
        return made

    def _spec(self, port: Any) -> TensorSpec:
        shape, name = port.partial_shape, port.any_name
        if not shape.is_static:
            raise BadModel(
                f"{self._name}: input '{name}' has the open shape {shape}; give it by --input {name}=1,3,224,224"
            )
        return TensorSpec(name, str(port.element_type.to_dtype()), tuple(shape.to_shape()))
