"""Shapes that a caller gives, compared with those in the ONNX file before a server gets a job for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fractune.models.open_inputs import OpenShape, onnx_inputs
from fractune_core.errors import BadModel, FractuneError
from fractune_core.model_inputs import SeveralShapes, as_shapes, each_shape, shapes_in


def check_given(path: Path, inputs: SeveralShapes) -> None:
    """Raises BadModel for a shape with another number of axes than the file's, or another size of a fixed axis.

    A file that cannot be read here is left to the server.
    """
    if not inputs:
        return
    try:
        held = onnx_inputs(path)
    except FractuneError:  # no ONNX file, or no package to read it
        return
    for each in each_shape(inputs):
        for name, shape in shapes_in(as_shapes(each)).items():
            _check(name, shape, held.get(name, []))


def _check(name: str, given: Sequence[int], held: OpenShape) -> None:
    """No axes in the file mean that it does not say how many there are."""
    if not held:
        return
    shown = ",".join(map(str, given))
    in_file = ", ".join(str(dim) if dim else "?" for dim in held)
    if len(given) != len(held):
        raise BadModel(
            f"inputs: '{name}' gets {len(given)} axes ({shown}), and has {len(held)} in the model ([{in_file}]); "
            f"give {len(held)} sizes"
        )
    for axis, (size, dim) in enumerate(zip(given, held, strict=True)):
        if isinstance(dim, int) and dim > 0 and size != dim:
            raise BadModel(
                f"inputs: '{name}' gets {size} at axis {axis} ({shown}), which is {dim} in the model ([{in_file}]); "
                f"give {dim}"
            )
