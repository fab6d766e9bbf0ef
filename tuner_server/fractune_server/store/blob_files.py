"""The state folder: its lock, and its model and bundle files. Each file is whole or absent, as are parts of uploads."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from fractune_core.errors import BadBundle, BadModel, BadRequest, NotFound, StateUnusable
from fractune_core.files.bundles import SUFFIX, Bundle
from fractune_core.files.compared import Checked
from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_core.files.manifests import checked_of
from fractune_core.files.model_files import Interface, read_interface
from fractune_core.fleet.blobs import CHUNK_BYTES
from fractune_core.host.private_folders import warning_of_state
from fractune_core.served import is_disturbed

KEPT_S = 24 * 3600
"""a part that has not grown for this long is removed"""
KEPT_BYTES = 32 << 30
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


class BlobStore:
    """Any thread may call. Raises StateUnusable if the folder cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.parts = UploadParts(folder / "uploads")
        self._models = folder / "blobs"
        self._bundles = folder / "bundles"
        for path in (self._models, self._bundles):
            with errors_in_one_line(path):
                path.mkdir(parents=True, exist_ok=True)
                for torn in path.glob("tmp*"):
                    torn.unlink()

    def add_model(self, sha256: str, part: PartWriter) -> None:
        """Store a model file whose part is whole. Raises BadRequest if the digest does not match."""
        part.finish(self._models / sha256)

    def model(self, sha256: str) -> Iterator[bytes]:
        """The file in chunks. Raises NotFound."""
        return _read(self._models / sha256, f"the file of model {sha256} is gone; upload it again")

    def add_bundle(self, bundle: str, pieces: Iterable[bytes], count: Callable[[int], None] = lambda _: None) -> None:
        """Store a bundle whose pieces can all be read, and whose bytes `count` accepts. Raises what they raise."""
        size = 0
        with _Draft(self._bundles) as draft:
            for piece in pieces:
                draft.write(piece)
                size += len(piece)
            count(size)
            draft.publish(self.bundle_path(bundle))

    def add_times(
        self, bundle: str, timed: Mapping[str, float], others_cores: Mapping[str, float], served: Mapping[str, Any]
    ) -> None:
        """Write the times of the whole model into a bundle, in seconds by share, with the cores that other programs had
        meanwhile, and the best variants by share and goal. A disturbed time replaces no other one. Raises BadBundle.
        """
        with closing(Bundle(self.bundle_path(bundle))) as held:
            known: dict[str, Any] = {
                field: held.manifest.get(field, {}) for field in ("timed", "others_cores", "served")
            }
            kept = {
                share
                for share, cores in others_cores.items()
                if is_disturbed(cores) and share in known["timed"].keys() - held.disturbed_shares
            }
            new = {share: secs for share, secs in timed.items() if share not in kept}
            new_cores = {share: others_cores[share] for share in new}
            added = {"timed": new, "others_cores": new_cores, "served": served}
            merged: dict[str, Any] = {field: {**known[field], **found} for field, found in added.items()}
            if merged != known:
                with _Draft(self._bundles) as draft:
                    draft.fill(lambda file: held.copy_to(file, **merged))
                    draft.publish(self.bundle_path(bundle))

    def checked(self, bundle: str) -> Checked | None:
        """What the bundle holds of its check. Raises BadBundle."""
        with closing(Bundle(self.bundle_path(bundle))) as held:
            return checked_of(held.manifest)

    def check_inputs(self, sha256: str) -> None:
        """Raises BadRequest if an uploaded file is not one of arrays, NotFound if it is gone."""
        path = self._models / sha256
        if not path.exists():
            raise NotFound(f"the file {sha256} is gone; upload it again")
        InputFile(path, LABEL).close()

    def interface(self, sha256: str) -> Interface:
        """The inputs of an uploaded model. Raises BadModel for one that is not an ONNX file, NotFound if it is gone."""
        path = self._models / sha256
        if not path.exists():
            raise NotFound(f"the model {sha256} is gone; upload it again")
        found = read_interface(path)
        if found is None:
            raise BadModel("sizes need an ONNX file, and this model is none; give shapes of its inputs")
        return found

    def has_bundle(self, bundle: str) -> bool:
        """Whether the bundle exists and this version can open it; otherwise it is made again."""
        try:
            Bundle(self.bundle_path(bundle)).close()
        except BadBundle:
            return False
        return True

    def bundle(self, bundle: str) -> Iterator[bytes]:
        """The file in chunks. Raises NotFound."""
        return _read(self.bundle_path(bundle), f"no bundle '{bundle}'; a job names its bundle when it is done")

    def bundle_path(self, bundle: str) -> Path:
        return self._bundles / f"{bundle}{SUFFIX}"


class _Draft:
    """A file with a temporary name in `folder`, removed unless it is published."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __enter__(self) -> Self:
        with errors_in_one_line(self._folder):
            descriptor, name = tempfile.mkstemp(dir=self._folder)
        self._path = Path(name)
        self._file: BinaryIO = os.fdopen(descriptor, "wb")
        return self

    def write(self, chunk: bytes) -> None:
        self.fill(lambda file: file.write(chunk))

    def fill(self, write: Callable[[BinaryIO], object]) -> None:
        with errors_in_one_line(self._folder):
            write(self._file)

    def publish(self, path: Path) -> None:
        """Flush the file to the disk, then give it its name in one step."""
        with errors_in_one_line(self._folder):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._path.replace(path)

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _read(path: Path, missing: str) -> Iterator[bytes]:
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise NotFound(missing) from error
    with file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


_log = logging.getLogger(__name__)


class StateFolder(AbstractContextManager["StateFolder"]):
    """Holds the lock of a state folder until it is closed. Raises StateUnusable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (path / "lock").open("a+")
        except OSError as error:
            raise StateUnusable(
                f"state folder {path}: {error.strerror}; free some space there, or name another folder"
            ) from error
        self._take()
        if warning := warning_of_state(path):
            _log.warning("%s", warning)

    def _take(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise StateUnusable(
                f"state folder {self.path} is in use by another server (pid {holder}); stop it, or name another folder"
            ) from error
        try:
            self._lock.truncate(0)
            self._lock.write(str(os.getpid()))
            self._lock.flush()
        except OSError as error:
            self._lock.close()
            raise StateUnusable(f"state folder {self.path}: {error.strerror}; free some space there") from error

    def close(self) -> None:
        self._lock.close()

    def __exit__(self, *_: object) -> None:
        self.close()
