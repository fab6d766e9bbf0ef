"""A caller's model, in a file or in memory, as the file for the upload."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from fractune.models.conversion import is_model_script, json_of_script
from fractune.models.given_inputs import check_given
from fractune_core.errors import BadModel
from fractune_core.files.bundles import is_bundle
from fractune_core.files.scripts import REFUSAL
from fractune_core.model_inputs import SeveralShapes

if TYPE_CHECKING:
    import onnx
    import torch
    import tvm

ModelSource: TypeAlias = Union[str, os.PathLike[str], "onnx.ModelProto", "torch.export.ExportedProgram", "tvm.IRModule"]
"""A path, or a model in memory. These packages are not imported here: the owner of such a model has imported them."""


@contextlib.contextmanager
def model_file(model: ModelSource, *, run_script: bool = False, inputs: SeveralShapes | None = None) -> Iterator[Path]:
    """The model as a file until the block ends. A model in memory is written to a temporary folder, as `model.*`.

    With `run_script` the code of a Python file runs in a separate process, and the file is the module that it makes.
    Raises BadModel for a missing file, an object of another type, a model that cannot be written, and a Python file
    without `run_script`. Shapes in `inputs` that contradict the file raise BadModel too.
    """
    with _file(model, run_script=run_script) as path:
        check_given(path, inputs or {})
        yield path


@contextlib.contextmanager
def _file(model: ModelSource, *, run_script: bool) -> Iterator[Path]:
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    if path is not None:
        check_model_file(path)
    if path is not None and not is_model_script(path):
        yield path
        return
    if path is not None and not run_script:
        raise BadModel(f"{path.name}: {REFUSAL}")
    with tempfile.TemporaryDirectory(prefix="fractune-model-") as folder:
        yield _written(model, Path(folder)) if path is None else json_of_script(path, Path(folder))


def check_model_file(path: Path) -> None:
    """Raises BadModel if `path` is not a file, or is a bundle."""
    if path.is_dir():
        raise BadModel(f"{path}: this is a folder; name the model file in it")
    if not path.is_file():
        raise BadModel(f"{path}: no such model file")
    if is_bundle(path):
        raise BadModel(f"{path}: this is a bundle, which `fractune run` runs; name the model that it was made from")


def _written(model: object, folder: Path) -> Path:
    """A model in memory, as the file `model.*` in the folder. Raises BadModel."""
    suffix, write = _writer(model)
    path = folder / f"model{suffix}"
    try:
        write(model, path)
    except Exception as error:
        raise BadModel(f"a {type(model).__name__} cannot be written to a file: {error}") from error
    return path


def _writer(model: object) -> tuple[str, Callable[[Any, Path], None]]:
    """The suffix and the writing function for a model, by the name and package of its type."""
    for kind in type(model).__mro__:
        found = _WRITERS.get((kind.__module__.partition(".")[0], kind.__name__))
        if found is not None:
            return found
    accepted = "a path, an onnx.ModelProto, a program by torch.export, or a TVM IRModule"
    raise BadModel(f"an object of type {type(model).__name__} is not a model: pass {accepted}")


def _write_onnx(model: Any, path: Path) -> None:
    path.write_bytes(model.SerializeToString())


def _write_torch(model: Any, path: Path) -> None:
    sys.modules["torch"].export.save(model, path)


def _write_tvm(model: Any, path: Path) -> None:
    path.write_text(sys.modules["tvm"].ir.save_json(model), encoding="utf-8")


_WRITERS = {
    ("onnx", "ModelProto"): (".onnx", _write_onnx),
    ("torch", "ExportedProgram"): (".pt2", _write_torch),
    ("tvm", "IRModule"): (".json", _write_tvm),
}
