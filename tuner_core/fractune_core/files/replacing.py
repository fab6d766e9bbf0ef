"""A file that appears whole: a concurrent reader has the old file or the new one."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from fractune_core.errors import StateUnusable


@contextlib.contextmanager
def replacing_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that becomes `path` if the block ends well, with the permissions of the file there, and vanishes
    otherwise. Missing folders are made. Raises StateUnusable if it cannot be written.
    """
    draft = path.with_name(f".{path.name}.{threading.get_native_id()}")  # of no other process or thread
    try:
        if not path.parent.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        draft.unlink(missing_ok=True)  # of a thread that was killed
        with draft.open("xb") as file:  # in a folder of others it may be a link
            yield file
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(file.fileno(), path.stat().st_mode & 0o777)
        draft.replace(path)
    except OSError as error:
        raise StateUnusable(f"{path}: cannot be written ({error.strerror}); check the folder") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
