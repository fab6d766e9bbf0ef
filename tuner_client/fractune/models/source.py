"""A caller's model, in a file or in memory, as the file for the upload."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, Union

from fractune.local.programs import require
from fractune.local.stack import own_env
from fractune.models.external_data import write_one_file
from fractune_core.errors import BadModel, BadRequest, some_of
from fractune_core.files.bundles import is_bundle
from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_core.files.model_files import SCRIPT_REFUSED, is_script, read_interface
from fractune_core.jobs import JobSpec
from fractune_core.model_inputs import Dim, SeveralShapes, as_shapes, constants_in, each_shape, shapes_in

if TYPE_CHECKING:
    import onnx
    import torch
    import tvm


def is_onnx(path: Path) -> bool:
    """Whether it is an ONNX file. Raises BadModel for a damaged one."""
    return read_interface(path) is not None


def onnx_dtypes(path: Path) -> dict[str, str]:
    """The types of the inputs of numbers by name, as NumPy's. Raises BadModel for a file that is not ONNX."""
    found = read_interface(path)
    if found is None:
        raise BadModel(f"{path.name}: it is not an ONNX file")
    return {each.name: each.dtype for each in found.inputs if each.dtype}


def check_given(path: Path, inputs: SeveralShapes) -> None:
    """Raises BadModel for an input that the ONNX file does not have, and for another number of axes or another size of
    a fixed axis than in the file. A file of another format is left to the server.
    """
    found = read_interface(path) if inputs else None
    if found is None:
        return
    held = {each.name: each for each in found.inputs}
    for each in each_shape(inputs):
        given = as_shapes(each)
        unknown = [name for name in (*shapes_in(given), *constants_in(given)) if name not in held]
        if unknown:
            known = some_of(f"'{each.name}' {each.shape_text}" for each in found.inputs) or "none"
            raise BadModel(f"inputs: no input is named '{unknown[0]}'; the inputs are {known}")
        for name, shape in shapes_in(given).items():
            _check(name, shape, held[name].shape)


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
        found = read_interface(model)
        if found is None:
            return
        given = specs[0].inputs
        shapes, constants = shapes_in(given), constants_in(given)
        file.check(
            [
                {"name": each.name, "dtype": each.dtype, "shape": shapes.get(each.name) or _known(each.shape or ())}
                for each in found.inputs
                if each.name not in constants and each.dtype
            ]
        )


def _known(shape: Sequence[Dim]) -> list[int | None]:
    return [dim if isinstance(dim, int) else None for dim in shape]


def _check(name: str, given: Sequence[int], held: Sequence[Dim] | None) -> None:
    """None: the file does not say how many axes there are."""
    if held is None:
        return
    shown = ",".join(map(str, given))
    in_file = ", ".join(str(dim) if dim else "?" for dim in held)
    if len(given) != len(held):
        raise BadModel(
            f"inputs: '{name}' gets {len(given)} axes ({shown}), and has {len(held)} in the model ([{in_file}]); "
            f"give {len(held)} sizes"
        )
    for axis, (size, dim) in enumerate(zip(given, held, strict=True)):
        if isinstance(dim, int) and size != dim:
            raise BadModel(
                f"inputs: '{name}' gets {size} at axis {axis} ({shown}), which is {dim} in the model ([{in_file}]); "
                f"give {dim}"
            )


_SUFFIX = ".py"
_HEAD_BYTES = 1 << 16


def is_model_script(path: Path) -> bool:
    """Whether the model file is Python code, by its name or its beginning; False if it cannot be read. A pipe is not
    opened: its writer may never come.
    """
    if path.suffix == _SUFFIX:
        return True
    if not path.is_file():
        return False
    with contextlib.suppress(OSError), path.open("rb") as file:
        return is_script(file.read(_HEAD_BYTES))
    return False


def json_of_script(path: Path, folder: Path) -> Path:
    """Run the code of the file with the caller's rights, and write its only IRModule to `folder`.

    A line on standard error announces it, and the code prints there too. Returns the JSON file, with the name of the
    script. Raises BadModel if the code fails or makes no module or several, and FractuneError if TVM is not installed.
    """
    require("local", "tvm")
    sys.stderr.write(f"{path.name}: running this file's Python code on this machine, to get its IRModule\n")
    sys.stderr.flush()
    out, error_file = folder / f"{path.stem}.json", folder / "error"
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "fractune.models.script_child",
            str(os.getpid()),
            str(path.absolute()),
            str(out),
            str(error_file),
        ],
        env={**os.environ, **own_env()},
        stdin=subprocess.DEVNULL,
        stdout=2,  # standard error: standard output is for results
        check=False,
    )
    if error_file.exists():
        raise BadModel(f"{path.name}: {error_file.read_text(encoding='utf-8')}")
    if ended.returncode != 0 or not out.exists():
        raise BadModel(f"{path.name}: its code ended the process with code {ended.returncode}, before it was read")
    return out


ModelSource: TypeAlias = Union[str, os.PathLike[str], "onnx.ModelProto", "torch.export.ExportedProgram", "tvm.IRModule"]
"""A path, or a model in memory. These packages are not imported here: the owner of such a model has imported them."""


@contextlib.contextmanager
def model_file(
    model: ModelSource, *, run_script: bool = False, inputs: SeveralShapes | None = None, greedy: bool = False
) -> Iterator[Path]:
    """The model as one file until the block ends. A model in memory, and an ONNX model with its weights in files beside
    it, are written to a temporary folder, the first as `model.*`.

    With `run_script` the code of a Python file runs in a separate process, and the file is the module that it makes.
    Raises BadModel for a missing file, an object of another type, a model that cannot be written, and a Python file
    without `run_script`. Shapes in `inputs` that contradict the file raise BadModel too. `greedy` is that of
    `write_one_file`.
    """
    with _file(model, run_script=run_script) as path, _with_tokens(path, greedy=greedy) as made:
        check_given(made, inputs or {})
        yield made


@contextlib.contextmanager
def _with_tokens(path: Path, *, greedy: bool) -> Iterator[Path]:
    if not greedy:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fractune-model-") as folder:
        write_one_file(path, Path(folder) / path.name, greedy=True)
        yield Path(folder) / path.name


@contextlib.contextmanager
def _file(model: ModelSource, *, run_script: bool) -> Iterator[Path]:
    path = Path(model) if isinstance(model, str | os.PathLike) else None
    if path is not None:
        check_model_file(path)
    script = path is not None and is_model_script(path)
    if path is not None and script and not run_script:
        raise BadModel(f"{path.name}: {SCRIPT_REFUSED}")
    if path is not None and not script and not _lies_in_several_files(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="fractune-model-") as folder:
        yield _one_file(model, path, Path(folder), script=script)


def _lies_in_several_files(path: Path) -> bool:
    found = read_interface(path)
    return found is not None and bool(found.in_another_file)


def _one_file(model: object, path: Path | None, folder: Path, *, script: bool) -> Path:
    if path is None:
        return _written(model, folder)
    if script:
        return json_of_script(path, folder)
    write_one_file(path, folder / path.name)
    return folder / path.name


def check_model_file(path: Path) -> None:
    """Raises BadModel if `path` is not a file, or is a bundle."""
    if path.is_dir():
        raise BadModel(
            f"{path}: this is a folder; name the model file in it (the commands tune and inspect take folders, and in "
            "Python tune_folder and inspect_folder)"
        )
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
