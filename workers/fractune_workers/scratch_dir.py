"""A process's folder for temporary files. The next process removes the folders that killed processes left."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from fractune_core.host.private_folders import remove_tree
from fractune_workers.locks.flock import lock, try_lock

_PREFIX, _NEW_PREFIX = "fractune-scratch-", "fractune-new-scratch-"
_YOUNG_S = 60.0
"""a new folder younger than this may not have been locked by its owner yet"""


@contextlib.contextmanager
def open_scratch_dir() -> Iterator[Path]:
    """A folder of this process until the block ends. The process holds the kernel's lock on it, which dies with it."""
    parent = Path(tempfile.gettempdir())
    _sweep(parent)
    new = Path(tempfile.mkdtemp(prefix=_NEW_PREFIX))
    with _opened(new) as descriptor:
        lock(descriptor)
        # Under this name it is always locked, or its owner has died.
        folder = new.rename(parent / new.name.replace(_NEW_PREFIX, _PREFIX))
        try:
            yield folder
        finally:
            remove_tree(folder)
    _sweep(parent)  # for a child that had to be killed at the end


@contextlib.contextmanager
def own_temporary_files() -> Iterator[None]:
    """Within the block, this process, its forks and the programs that it runs put temporary files into a scratch
    folder.
    """
    with open_scratch_dir() as folder:
        use_for_temporary_files(folder)
        yield


def use_for_temporary_files(folder: Path) -> None:
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)


def _sweep(parent: Path) -> None:
    for prefix, least_age_s in ((_PREFIX, 0.0), (_NEW_PREFIX, _YOUNG_S)):
        for folder in parent.glob(f"{prefix}*"):
            # Gone meanwhile, or another user's: none of ours.
            with contextlib.suppress(OSError), _opened(folder) as descriptor:
                found = os.fstat(descriptor)
                is_old = found.st_uid == os.getuid() and time.time() - found.st_mtime >= least_age_s
                if is_old and try_lock(descriptor):
                    remove_tree(folder)


@contextlib.contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
