"""Files that options name. An output that cannot be written is found before the work, and appears whole. An input has
a limit.
"""

import contextlib
import errno
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.files.bundles import SUFFIX
from fractune_core.files.new_bundle import NewBundle

_MOST_BYTES = 16 << 20
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


def read_small(path: Path) -> bytes:
    """The content of a file that people write, such as a key. Raises OSError, also above 16 MiB: an option may name a
    device that never ends.
    """
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


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


def new_bundle(
    out: str | os.PathLike[str] | None, model_name: str, *, force: bool, runtimes: Iterable[str] = ()
) -> NewBundle:
    """The file `out` for a bundle; None = `<model>.fractune` in the current folder. Other `runtimes` are timed beside
    it afterwards.

    Raises BadRequest if it does not end in `.fractune`, StateUnusable if it cannot be written.
    """
    default = f"{Path(model_name).stem}{SUFFIX}"
    path = Path(default if out is None else out).absolute()
    if path.suffix != SUFFIX:
        given = Path(out or "")
        other = given.with_suffix(SUFFIX) if given.suffix and not given.is_dir() else given / default
        raise BadRequest(f"--out {out}: this is not the name of a bundle; write a file such as {other}")
    check_writable("--out", path)
    return NewBundle(path, force, frozenset(runtimes))
