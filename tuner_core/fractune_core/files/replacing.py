"""A file that appears whole: a concurrent reader has the old file or the new one."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fractune_core.errors import StateUnusable


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `path` if the block ends well, with the permissions of the file there, and vanishes
    otherwise. Raises StateUnusable if it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{threading.get_native_id()}")  # of no other process or thread
    try:
        with draft.open("wb") as file:
            yield file
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        draft.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


def check_folder(path: Path) -> None:
    """Raises StateUnusable if the folder of `path` takes no new file; for before work whose result would be lost."""
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> StateUnusable:
    return StateUnusable(f"{path}: cannot be written ({error.strerror}); check the folder")
