"""Output files of commands: an unwritable path is found before the work, and files appear whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.bundles import SUFFIX
from fractune_core.files.fused import SUFFIX as FUSED

_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def check_free(path: Path, *, force: bool) -> None:
    """Raises BadRequest if `path` exists and may not be replaced."""
    if path.exists() and not force:
        raise BadRequest(f"{path} exists; pass --force to replace it, or another path")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[str]]:
    """A text file that becomes `path` if the block ends well, and vanishes otherwise.

    Raises StateUnusable if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _draft(path) as file:
            yield file
    except OSError as error:
        raise StateUnusable(f"cannot write {path}: {error.strerror}") from error


def as_cell(value: object) -> object:
    """A value for a CSV. A text that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def write_new(option: str, path: Path, text: str) -> None:
    """Write the file that `option` names, which appears whole. Raises BadRequest if it exists, also as a link to a
    missing file, and StateUnusable if it cannot be written.
    """
    if os.path.lexists(path):
        raise BadRequest(f"{option} {path}: the file exists; remove it, or name another")
    try:
        with _draft(path) as file:
            file.write(text)
    except OSError as error:
        raise StateUnusable(f"{option} {path}: cannot write it ({error.strerror}); name another file") from error


@contextlib.contextmanager
def _draft(path: Path) -> Iterator[IO[str]]:
    """A text file beside `path` that becomes it if the block ends well. Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.unlink(missing_ok=True)
        with draft.open("x", encoding="utf-8", newline="") as file:  # in a folder of others it may be a link
            yield file
        draft.replace(path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_writable(option: str, path: Path) -> None:
    """Raises StateUnusable before any work if the file that `option` names cannot be written.

    Its parent folders need not exist.
    """
    if path.is_dir():
        raise StateUnusable(f"{option} {path}: this is a folder; pass a file")
    folder = path.absolute().parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        why = f"the folder {folder} cannot be written ({error.strerror})"
        raise StateUnusable(f"{option} {path}: {why}; pass another path") from error


_MODEL_SUFFIXES = (".onnx", ".pt2", ".json", ".py", FUSED)


def bundle_file(out: str | os.PathLike[str], model_name: str) -> Path:
    """The file for a model's bundle: `out` itself (`*.fractune`), or `<model>.fractune` in the folder `out`.

    Raises BadRequest if `out` has the name of a model file, which would become a folder.
    """
    path = _checked(out)
    return path if path.suffix == SUFFIX else path / f"{Path(model_name).stem}{SUFFIX}"


def named_bundle_file(out: str | os.PathLike[str] | None, model_name: str) -> Path:
    """The file `out`, or `<model>.fractune` in the folder `out` if it exists; None = in the current folder.

    Raises BadRequest if `out` has the name of a model file, which would be overwritten.
    """
    path = _checked(out or ".")
    return path / f"{Path(model_name).stem}{SUFFIX}" if path.is_dir() and path.suffix != SUFFIX else path


def _checked(out: str | os.PathLike[str]) -> Path:
    path = Path(out).absolute()
    if path.suffix in _MODEL_SUFFIXES and not path.is_dir():
        raise BadRequest(f"--out {out}: this is the name of a model; write NAME{SUFFIX}, or a folder for the bundle")
    return path
