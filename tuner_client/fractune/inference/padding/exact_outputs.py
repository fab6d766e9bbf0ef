"""A model's ONNX file in ONNX Runtime, which runs inputs of any size as they are."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from fractune.inference.bucketed_model import BucketedModel
from fractune.inference.padding.padded_outputs import Exact
from fractune.inference.runtimes.sessions import open_session, settings_of
from fractune.inference.runtimes.variant import input_order, open_shapes
from fractune_core.errors import FractuneError
from fractune_core.files.compared import ONNX_RUNTIME

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


def exact_outputs(model: BucketedModel, onnx: Path) -> Exact | None:
    """Runs inputs of the bundle's `model` on all cores of its share; None where ONNX Runtime is missing, or cannot load
    the file.
    """
    if importlib.util.find_spec(ONNX_RUNTIME) is None:
        return None
    cpus = model.share.cpus[: model.share.units]
    try:
        settings, shapes = settings_of(ONNX_RUNTIME), open_shapes(model.inputs)
        session = open_session(ONNX_RUNTIME, onnx.read_bytes(), onnx.name, len(cpus), cpus, settings, shapes)
        names = input_order(model.bundle.manifest, session)
    except FractuneError:
        return None

    def run(inputs: dict[str, Array]) -> list[Array]:
        return session.run(dict(zip(names, (inputs[spec.name] for spec in model.inputs), strict=True)))

    return run
