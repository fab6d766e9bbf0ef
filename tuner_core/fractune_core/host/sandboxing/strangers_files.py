"""Files in a folder where a process may write that is not trusted: links, pipes and folders in place of a file."""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path

_PIECE_BYTES = 1 << 20


def copy_strangers_file(path: Path, to: Path, most_bytes: int) -> None:
    """Copy the file, at most `most_bytes`, to a new one. The other process must not be able to replace the folders.

    Raises OSError for anything but a file with this one name: links are not followed, and pipes are not waited for.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
            raise OSError(errno.EINVAL, "it is not a file of its own", str(path))
        with to.open("wb") as copy:
            while (piece := file.read(_PIECE_BYTES)) and copy.tell() <= most_bytes:
                copy.write(piece)
            size = copy.tell()
    if size > most_bytes:
        to.unlink()
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))


def remove_tree(path: Path) -> None:
    """Remove it, whatever it is, and what is in it, as far as that can be done; what links lead to stays."""
    with contextlib.suppress(OSError):
        path.unlink()
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):  # folders can be nested more deeply than Python calls
        subprocess.run(["rm", "-rf", "--", path], stderr=subprocess.DEVNULL, check=False)


def empty_dir(folder: Path) -> None:
    """Remove what is in it."""
    for each in list(folder.iterdir()):
        remove_tree(each)
