"""Folders where other users, or a process that is not trusted, may write. A folder of the right name may be another
user's, and a file in it a link or a pipe.
"""

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import IO, Any

from fractune_core.errors import StateUnusable

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


_OTHERS = stat.S_IRWXG | stat.S_IRWXO
OWN_UMASK = 0o077
"""of a process that writes models, secrets and logs of its user"""


def private_path(name: str) -> Path:
    """The path of the user's folder `name`: in the user's runtime folder (XDG_RUNTIME_DIR), else among temporary files.

    A process without a session has no XDG_RUNTIME_DIR, and finds the same folder where it usually is.
    """
    known = (os.environ.get("XDG_RUNTIME_DIR"), f"/run/user/{os.getuid()}")
    found = (Path(folder) for folder in known if folder and is_private(Path(folder)))
    return next(found, Path(tempfile.gettempdir())) / name


def make_private(folder: Path) -> Path:
    """The folder, made if need be, for this user alone. Raises StateUnusable if it is another user's, or none."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if is_own and found.st_mode & _OTHERS:
            folder.chmod(0o700)
    except OSError as error:
        raise StateUnusable(f"folder {folder}: {error.strerror}; remove it, or set TMPDIR") from error
    if not is_own:
        raise StateUnusable(f"{folder} is a link or belongs to another user; have it removed, or set TMPDIR")
    return folder


def is_private(folder: Path) -> bool:
    """Whether it is a folder, and no link to one, that only this user may read and write."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & _OTHERS


def warning_of_state(folder: Path) -> str:
    """One line about a state folder that others may read or write; empty if there are none."""
    mode = stat.S_IMODE(folder.stat().st_mode)
    if not mode & _OTHERS:
        return ""
    return f"state folder {folder}: others may open it (mode {mode:o}); close it by 'chmod 700 {folder}'"


def open_plain(path: Path, mode: str) -> IO[Any]:
    """As `path.open(mode)`, for a regular file only: no link is followed, and no pipe is waited for. Raises OSError."""
    return open(path, mode, encoding=None if "b" in mode else "utf-8", opener=_plain)


def _plain(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise PermissionError(f"{path} is not a regular file")
