"""Puts ONNX Runtime into the place of a bundle, in each Python process that has this folder on its path.

The servers stay as they are: the same queue, metrics and protocol are around either runtime.
ONNX_MODEL names the ONNX file, and ONNX_THREADS the threads of its session, which do not spin. BUNDLE is only checked.
"""

import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

from fractune_runtime import endpoint


class OnnxRuns:
    """One session, as its users run it: calls one after the other, each by all its threads."""

    throttled = None
    replicas = 1
    choice = SimpleNamespace(variant="onnxruntime", threads=0)

    def __init__(self, _path: str | os.PathLike[str], _options: Mapping[str, Any]) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ["ONNX_THREADS"])
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            os.environ["ONNX_MODEL"], options, providers=["CPUExecutionProvider"]
        )
        self.inputs, self.outputs = self._session.get_inputs(), self._session.get_outputs()
        self._thread = ThreadPoolExecutor(1)

    def submit(self, inputs: Mapping[str, Any]) -> Future[list[Any]]:
        return self._thread.submit(self._session.run, None, dict(inputs))

    def bucket(self, inputs: Mapping[str, Any]) -> str:
        del inputs
        return "all"

    def close(self) -> None:
        self._thread.shutdown()


if os.environ.get("ONNX_THREADS"):
    endpoint._runs_of = OnnxRuns  # type: ignore[assignment]  # noqa: SLF001  the one place where the runtimes part
