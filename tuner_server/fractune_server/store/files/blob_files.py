"""Model and bundle files in the state folder: each is whole or absent."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, Self

from fractune_core.errors import BadBundle, NotFound
from fractune_core.files.bundles import SUFFIX, Bundle
from fractune_core.files.checked import Checked, checked_of
from fractune_core.files.input_arrays import LABEL, InputFile
from fractune_core.fleet.blobs import CHUNK_BYTES
from fractune_server.store.files.upload_parts import PartWriter, UploadParts, errors_in_one_line


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

    def add_bundle(self, bundle: str, payload: bytes) -> None:
        with _Draft(self._bundles) as draft:
            draft.write(payload)
            draft.publish(self._bundle(bundle))

    def add_times(self, bundle: str, timed: Mapping[str, float], served: Mapping[str, Any]) -> None:
        """Write the times of the whole model into a bundle, in seconds by share, and the best variants by share and
        goal. Raises BadBundle.
        """
        with closing(Bundle(self._bundle(bundle))) as held:
            known: dict[str, Any] = {field: held.manifest.get(field, {}) for field in ("timed", "served")}
            merged: dict[str, Any] = {"timed": {**known["timed"], **timed}, "served": {**known["served"], **served}}
            if merged != known:
                with _Draft(self._bundles) as draft:
                    draft.fill(lambda file: held.copy_to(file, **merged))
                    draft.publish(self._bundle(bundle))

    def checked(self, bundle: str) -> Checked | None:
        """What the bundle holds of its check. Raises BadBundle."""
        with closing(Bundle(self._bundle(bundle))) as held:
            return checked_of(held.manifest)

    def check_inputs(self, sha256: str) -> None:
        """Raises BadRequest if an uploaded file is not one of arrays, NotFound if it is gone."""
        path = self._models / sha256
        if not path.exists():
            raise NotFound(f"the file {sha256} is gone; upload it again")
        InputFile(path, LABEL).close()

    def has_bundle(self, bundle: str) -> bool:
        """Whether the bundle exists and this version can open it; otherwise it is made again."""
        try:
            Bundle(self._bundle(bundle)).close()
        except BadBundle:
            return False
        return True

    def bundle(self, bundle: str) -> Iterator[bytes]:
        """The file in chunks. Raises NotFound."""
        return _read(self._bundle(bundle), f"no bundle '{bundle}'; a job names its bundle when it is done")

    def _bundle(self, bundle: str) -> Path:
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
