"""What helps where the importer refuses a node of a model: ONNX Runtime may run it as a part of the model."""

from __future__ import annotations

from fractune.features.parts.parts import can_cut
from fractune_core.errors import BadModel
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import constants_in
from fractune_core.refusals import refused_node
from fractune_core.shares import Share


def may_cut(spec: JobSpec, error: BadModel) -> bool:
    """Whether the importer refused a node that ONNX Runtime may run as a part of the model.

    Raises BadModel that says so if ONNX Runtime is not installed here.
    """
    if not _has_parts(spec, error):
        return False
    if not can_cut():
        raise BadModel(f"{error}; or install 'fractune[onnxruntime]' here: then ONNX Runtime runs this node") from error
    return True


def with_remedy(spec: JobSpec, error: BadModel, remedy: str) -> BadModel:
    """The error with a `remedy` after it, if the model could be tuned in parts."""
    return BadModel(f"{error}; {remedy}") if _has_parts(spec, error) else error


def _has_parts(spec: JobSpec, error: BadModel) -> bool:
    on_cpu = all(Share.parse(share).device_kind == "cpu" for share in spec.shares)  # as ONNX Runtime's parts
    return on_cpu and refused_node(str(error)) is not None and not constants_in(spec.inputs)
