"""The way from a model file to its operators, for one model or for several variants of it."""

from __future__ import annotations

import tvm

from fractune_core.errors import BadModel
from fractune_workers.children.fusing.difference import first_difference
from fractune_workers.children.fusing.fuse import Fused, fused
from fractune_workers.children.fusing.onnx_difference import first_onnx_difference
from fractune_workers.children.importing.model_file import Variants
from fractune_workers.children.importing.passes import prepare


def prepare_variants(loaded: Variants, target: tvm.target.Target, implementation: str = "") -> Fused:
    """As `prepare` of `importing/passes.py`; several variants, each prepared by itself, become one module.

    Layouts are planned before, so that it is kernels over blocks that get the axis of slots. Raises BadModel for
    variants that are not built alike, with the first difference.
    """
    modules = [prepare(module, target, implementation) for module in loaded.modules]
    if not loaded.slots:
        return Fused(modules[0], ())
    for number in range(1, len(modules)):
        clause = first_difference(modules[0], modules[number])
        if clause:
            raise BadModel(_refusal(loaded, number, clause))
    return fused(modules, loaded.places)


def _refusal(loaded: Variants, number: int, clause: str) -> str:
    """In the words of the model's file where that shows the difference; simplifying may have made it, too."""
    shown = first_onnx_difference(loaded.files[0], loaded.files[number]) or f"when simplified, {clause}"
    return (
        f"'{loaded.names[number]}' is not built as '{loaded.names[0]}' is: {shown}; variants of one model differ in "
        "their weights alone"
    )
