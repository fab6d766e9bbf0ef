"""A worker's folder for temporary files. What killed workers left behind is removed when the next one starts."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fractune_workers.locks.flock import lock, try_lock

_PREFIX = "fractune-scratch-"
_YOUNG_S = 60.0
"""a folder younger than this may not have been locked by its owner yet"""


@contextlib.contextmanager
def open_scratch_dir() -> Iterator[Path]:
    """A folder that is this process's until the block ends: it holds the kernel's lock on it, which dies with it."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _opened(Path(folder)) as descriptor:
        lock(descriptor)
        yield Path(folder)


def _sweep(parent: Path) -> None:
    for folder in parent.glob(f"{_PREFIX}*"):
        # Gone meanwhile, or another user's: none of ours.
        with contextlib.suppress(OSError), _opened(folder) as descriptor:
            if try_lock(descriptor) and time.time() - os.fstat(descriptor).st_mtime > _YOUNG_S:
                shutil.rmtree(folder)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
