"""The same model in ONNX Runtime, as a finalist beside a bundle."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.inference.model import Model
from fractune_core.errors import BadModel, BadRequest, FractuneError

if TYPE_CHECKING:
    from fractune.inference.tensors import Array


class OnnxRuntimeModel:
    """The ONNX file that `model` was made from, in ONNX Runtime with as many threads as `model` has.

    Its threads are on the CPUs that the process is confined to. Raises BadRequest when the file is not that one,
    BadModel when ONNX Runtime cannot load it, FractuneError when it is not installed.
    """

    def __init__(self, path: Path, model: Model) -> None:
        self._model = model
        _check_same(path, model)
        try:
            import onnxruntime
        except ImportError as error:
            raise FractuneError("--beside onnxruntime needs ONNX Runtime; install 'fractune[onnxruntime]'") from error
        self.version = str(onnxruntime.__version__)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = model.share.units
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only: it warns of old files on every start
        try:
            self._session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base
            message = str(error).partition("\n")[0]
            raise BadModel(f"{path.name}: ONNX Runtime cannot load it ({message}); compare without --beside") from error
        wanted = [node.name for node in self._session.get_inputs()]
        self._feed_names = _paired([spec.name for spec in model.inputs], wanted, "inputs")
        given = [node.name for node in self._session.get_outputs()]
        self._output_names = list(_paired([spec.name for spec in model.outputs], given, "outputs").values())

    def feed(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs of the bundle under ONNX Runtime's names."""
        return {self._feed_names[name]: array for name, array in inputs.items()}

    def run(self, feed: Mapping[str, Array]) -> list[Array]:
        """The outputs in the order of the bundle's."""
        outputs: list[Array] = self._session.run(self._output_names, feed)
        return outputs


def _check_same(path: Path, model: Model) -> None:
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadRequest(f"--model {path}: cannot be read ({error.strerror})") from error
    if digest != model.bundle.manifest["model"]["sha256"]:
        name = model.bundle.manifest["model"]["name"]
        raise BadRequest(
            f"--model {path}: not the file that {model.bundle.name} was made from ('{name}'); give that one"
        )


def _paired(ours: Sequence[str], theirs: Sequence[str], what: str) -> dict[str, str]:
    """Their name by ours: the same where all are the same, else by position. Raises BadRequest."""
    if set(ours) == set(theirs):
        return {name: name for name in ours}
    if len(ours) != len(theirs):
        raise BadRequest(
            f"the bundle has {len(ours)} {what}, ONNX Runtime finds {len(theirs)}; compare without --beside"
        )
    return dict(zip(ours, theirs, strict=True))
