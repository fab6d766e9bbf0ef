"""Whether some process holds a lock file: the kernel knows, and forgets those who die."""

from __future__ import annotations

import fcntl
from pathlib import Path


def is_locked(path: Path) -> bool:
    """Whether anybody, this process too, holds an exclusive lock on the file. A file that is not there is held by
    nobody.
    """
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False
