"""A model file in ONNX Runtime or OpenVINO, run on arrays in place.

Threads do not spin while they wait: the share may serve others too.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from fractune_core.errors import BadModel, FractuneError, first_line
from fractune_core.files.compared import EXACT_ONNX_RUNTIME, ONLY_ONNX, ONNX_RUNTIME, OPENVINO

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array

_SETTINGS: dict[str, dict[str, str]] = {
    ONNX_RUNTIME: {"session.intra_op.allow_spinning": "0"},
    OPENVINO: {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"},
}
_EXACT: dict[str, dict[str, str]] = {
    ONNX_RUNTIME: EXACT_ONNX_RUNTIME,
    OPENVINO: {"EXECUTION_MODE_HINT": "ACCURACY"},
}
"""By default ONNX Runtime's products of bytes may saturate; OpenVINO computes in bfloat16, and rounds data to 8 bits
where weights have 8 bits, also with INFERENCE_PRECISION_HINT=f32"""


def settings_of(runtime: str, *, exact: bool = True) -> dict[str, str]:
    """The settings beside the number of threads. `exact`: all products as ONNX defines them."""
    return {**_SETTINGS[runtime], **(_EXACT[runtime] if exact else {})}


def keep_forever(held: object) -> None:
    """For a forked child: the threads of its parent's sessions are not there, and whatever ends them waits for them.
    So the sessions stay, also when the interpreter ends, and the handlers of the libraries do not run after it.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
    libc = ctypes.CDLL(None)
    libc.on_exit(libc["_exit"], None)  # called with the status, before the handlers that were registered earlier


class RuntimeMissing(FractuneError):
    """A runtime is not installed, or cannot be imported."""


class Session(Protocol):
    """A loaded model. No two threads may call it at the same time."""

    version: str
    input_names: list[str]
    output_names: list[str]

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs in their order. Raises BadModel."""
        ...


def open_session(
    runtime: str,
    model: bytes,
    name: str,
    threads: int,
    cpus: Sequence[int],
    settings: Mapping[str, str],
    shapes: Mapping[str, Sequence[int]],
) -> Session:
    """A session of the runtime with `threads` threads on `cpus`. `shapes` are those of its inputs.

    Raises BadModel if it cannot load the model, RuntimeMissing.
    """
    made: list[Session] = []
    failed: list[BaseException] = []

    def make() -> None:
        try:
            os.sched_setaffinity(0, cpus)  # of this thread; the runtime's threads inherit it
            kind = _OnnxRuntime if runtime == ONNX_RUNTIME else _OpenVino
            session: Session = kind(model, name, threads, settings, shapes)
            made.append(session)
        except BaseException as error:  # noqa: BLE001  it is raised again in the caller's thread
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class _OnnxRuntime:
    def __init__(
        self, model: bytes, name: str, threads: int, settings: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        del shapes  # it runs any
        try:
            from onnxruntime import InferenceSession, SessionOptions, __version__
        except Exception as error:  # a broken installation raises anything
            raise _missing("ONNX Runtime", "'fractune[onnxruntime]'", error) from error
        self.version = str(__version__)
        self._name = name
        options = SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3  # errors only: it warns of old files on every start
        for key, value in {**settings, **ONLY_ONNX}.items():
            options.add_session_config_entry(key, value)
        try:
            self._session: Any = InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base
            raise BadModel(f"{name}: ONNX Runtime cannot load it ({first_line(error)})") from error
        self.input_names = [str(node.name) for node in self._session.get_inputs()]
        self.output_names = [str(node.name) for node in self._session.get_outputs()]

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        try:
            outputs: list[Array] = self._session.run(self.output_names, feed)
        except Exception as error:
            raise BadModel(f"{self._name}: ONNX Runtime cannot run it ({first_line(error)})") from error
        return outputs


class _OpenVino:
    def __init__(
        self, model: bytes, name: str, threads: int, settings: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
    ) -> None:
        try:
            from openvino import Core, __version__
        except Exception as error:
            raise _missing("OpenVINO", "the package 'openvino'", error) from error
        self.version = str(__version__).partition("-")[0]
        self._name = name
        core = Core()
        try:
            read = core.read_model(model)
            read.reshape({each: list(shape) for each, shape in shapes.items()})
            compiled = core.compile_model(read, "CPU", {**settings, "INFERENCE_NUM_THREADS": str(threads)})
        except Exception as error:  # its exceptions have no common base
            message = str(error).strip().rpartition("\n")[2]
            raise BadModel(f"{name}: OpenVINO cannot load it ({message})") from error
        self.input_names = [port.any_name for port in compiled.inputs]
        self.output_names = [next(iter(port.names), f"output{at}") for at, port in enumerate(compiled.outputs)]
        self._request: Any = compiled.create_infer_request()

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        try:
            found = self._request.infer(dict(feed), share_inputs=True)
        except Exception as error:
            raise BadModel(f"{self._name}: OpenVINO cannot run it ({first_line(error)})") from error
        return [found[at] for at in range(len(self.output_names))]


def _missing(runtime: str, package: str, error: Exception) -> RuntimeMissing:
    if isinstance(error, ModuleNotFoundError):
        return RuntimeMissing(f"{runtime} is not installed here; install {package}")
    return RuntimeMissing(f"{runtime} is installed here and cannot be imported ({first_line(error)}); install it again")
