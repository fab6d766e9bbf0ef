"""Parts of model files that are not yet whole, by sender and digest of the file."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fractune_core.errors import BadRequest, StateUnusable

KEPT_S = 24 * 3600
"""a part that has not grown for this long is removed"""
KEPT_BYTES = 8 << 30
"""limit of all parts together; beyond it the parts that have not grown for the longest time are removed"""


class UploadParts:
    """A folder of parts, each named by its sender and its file's SHA-256. They outlive the server.

    Any thread may call. Several uploads of a file by one sender write into the same part, each from an offset that
    existed when it began. So a sender can resume after a cut before the server has noticed the cut.
    Raises StateUnusable if the folder cannot be written.
    """

    def __init__(self, folder: Path, *, kept_s: float = KEPT_S, kept_bytes: int = KEPT_BYTES) -> None:
        self._folder = folder
        self._kept_s = kept_s
        self._kept_bytes = kept_bytes
        self._lock = threading.Lock()
        self._open: dict[str, _Part] = {}
        """parts of the uploads in progress, by name"""
        with errors_in_one_line(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def received(self, owner: str, sha256: str) -> int:
        """Number of bytes that have arrived, from the start of the file."""
        try:
            return (self._folder / _name(owner, sha256)).stat().st_size
        except FileNotFoundError:
            return 0

    def kept(self, owner: str) -> dict[str, int]:
        """Sizes of this sender's parts in bytes, by SHA-256."""
        prefix = _name(owner, "")
        with errors_in_one_line(self._folder):
            sizes = {path.name: stat.st_size for path, stat in self._by_age()}
        return {name.removeprefix(prefix): size for name, size in sizes.items() if name.startswith(prefix)}

    @contextlib.contextmanager
    def open(self, owner: str, sha256: str, *, offset: int, size: int) -> Iterator[PartWriter]:
        """Resume the part of a file of `size` bytes at byte `offset`, or begin it. Old parts may be removed for it.

        Raises BadRequest if the part has less than `offset` bytes.
        """
        name = _name(owner, sha256)
        with self._lock:
            part = self._open.get(name)
            if part is None or part.is_over:
                part = self._open[name] = _Part(self._folder / name)
            part.writers += 1
        try:
            with errors_in_one_line(self._folder):
                self._make_room(size - offset)
                writer = PartWriter(part, sha256, offset)
            with contextlib.closing(writer):
                yield writer
        finally:
            with self._lock:
                part.writers -= 1
                if not part.writers and self._open.get(name) is part:
                    del self._open[name]

    def drop_old(self) -> None:
        """Remove parts that have not grown for long."""
        with contextlib.suppress(OSError):  # an upload reports such errors
            self._make_room(0)

    def _make_room(self, size: int) -> None:
        """Remove parts without an upload: old ones, and as many others as `size` more bytes need."""
        with self._lock:
            found = self._by_age()
            total = size + sum(stat.st_size for _, stat in found)
            for path, stat in found:
                is_old = time.time() - stat.st_mtime > self._kept_s
                if path.name not in self._open and (is_old or total > self._kept_bytes):
                    path.unlink(missing_ok=True)
                    total -= stat.st_size

    def _by_age(self) -> list[tuple[Path, os.stat_result]]:
        """Parts that have not grown for the longest time first."""
        found = []
        for path in self._folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append((path, path.stat()))
        return sorted(found, key=lambda each: each[1].st_mtime)


@dataclass
class _Part:
    """A part, shared by the uploads that write to it."""

    path: Path
    writers: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    """held for each write, and during the final check, so that the checked bytes do not change"""
    stored: bool = False
    refused: str = ""
    """why the part was thrown away"""

    @property
    def is_over(self) -> bool:
        return self.stored or bool(self.refused)

    def throw_away(self, why: str) -> None:
        self.refused = why
        self.path.unlink(missing_ok=True)


class PartWriter:
    """The position of an upload in a part. Every call raises BadRequest after the part was thrown away."""

    def __init__(self, part: _Part, sha256: str, offset: int) -> None:
        self._part = part
        self._sha256 = sha256
        self._offset = offset
        self._descriptor: int | None = None
        with part.lock:
            if not part.is_over:
                self._descriptor = _open_at(part, offset)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)

    def write(self, data: bytes) -> bool:
        """Append `data` at the upload's position; False if another upload has completed the file meanwhile."""
        with self._part.lock:
            descriptor = self._checked()
            if descriptor is None:
                return False
            rest = memoryview(data)
            try:
                with errors_in_one_line(self._part.path.parent):
                    while rest:
                        written = os.pwrite(descriptor, rest, self._offset)
                        self._offset += written
                        rest = rest[written:]
            except StateUnusable as error:  # free the space on a full disk
                self._part.throw_away(str(error))
                raise
        return True

    def finish(self, to: Path) -> None:
        """Turn the part into the file `to`; if the digest does not match, throw the part away."""
        with self._part.lock, errors_in_one_line(self._part.path.parent):
            descriptor = self._checked()
            if descriptor is None:
                return
            with self._part.path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != self._sha256:
                self._part.throw_away(
                    f"the bytes have SHA-256 {found}, not {self._sha256}; all of them were thrown away: upload it again"
                )
            self._checked()
            os.fsync(descriptor)
            self._part.path.replace(to)
            self._part.stored = True

    def _checked(self) -> int | None:
        """Descriptor to write to; None if the file is already stored."""
        if self._part.refused:
            raise BadRequest(self._part.refused)
        return None if self._part.stored else self._descriptor


def _open_at(part: _Part, offset: int) -> int:
    """A descriptor of the part's file with at least `offset` bytes, and no more unless another upload writes to it."""
    descriptor = os.open(part.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    received = os.fstat(descriptor).st_size
    if offset > received:
        os.close(descriptor)
        raise BadRequest(f"the upload resumes at byte {offset}, and {received} have arrived; call GetUpload first")
    if part.writers == 1:
        os.ftruncate(descriptor, offset)
    return descriptor


def _name(owner: str, sha256: str) -> str:
    return f"{owner or 'anybody'}.{sha256}"


@contextlib.contextmanager
def errors_in_one_line(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StateUnusable(f"{folder}: {error.strerror}; free some space there, or make it writable") from error
