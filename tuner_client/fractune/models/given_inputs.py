"""Shapes and arrays that a caller gives, compared with the ONNX file before a server gets a job for it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from fractune.models.open_inputs import OpenShape, onnx_dtypes, onnx_inputs
from fractune_core.errors import BadModel, BadRequest, FractuneError
from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import SeveralShapes, as_shapes, constants_in, each_shape, shapes_in


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


def check_arrays(specs: Sequence[JobSpec], model: Path) -> None:
    """Raises BadRequest unless the file of arrays that a job names can be read, and has one for each input of `model`.

    What cannot be read of the model here is left to the server.
    """
    path = Path(specs[0].check_inputs) if specs[0].check_inputs else None
    if path is None:
        return
    if len(specs) > 1:
        raise BadRequest(f"{LABEL} {path}: it has one shape, and the model is tuned for several; leave it out")
    with contextlib.closing(InputFile(path, f"{LABEL} {path}")) as file:
        try:
            held, dtypes = onnx_inputs(model), onnx_dtypes(model)
        except FractuneError:  # no ONNX file, or no package to read it
            return
        given = specs[0].inputs
        shapes, constants = shapes_in(given), constants_in(given)
        file.check(
            [
                {"name": name, "dtype": dtypes[name], "shape": shapes.get(name) or _known(held[name])}
                for name in held
                if name not in constants and name in dtypes
            ]
        )


def _known(shape: OpenShape) -> list[int | None]:
    return [dim if isinstance(dim, int) and dim > 0 else None for dim in shape]


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
