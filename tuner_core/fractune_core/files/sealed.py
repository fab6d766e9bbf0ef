"""A sealed file: a zip of stored entries with a manifest, which lists the SHA-256 of every other entry.

    manifest.json             what the file is; `sha256` has the digest of every other entry
    manifest.sig              Ed25519 signature of manifest.json, in a signed file only

The comment of the zip has the SHA-256 of manifest.json. The digest of an entry is checked whenever it is read. Entries
are stored, not compressed: a reader never gets more bytes than the file has. The same contents always make the same
file, byte by byte.
"""

import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar, cast

from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.archives import Archive, BadArchive, ComparingFile

MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
COMMENT = b"fractune manifest sha256 "
"""how the comment of the zip begins"""
MOST_MANIFEST_BYTES = 2**24
"""A manifest is parsed in memory; those of large models have some 100 kB"""
_MOST_SIGNATURE_BYTES = 2**10

CheckSignature = Callable[[str, bytes, bytes | None], None]
"""Takes the file's name, the bytes of its manifest and its signature. Raises BadBundle for what it does not trust"""


class SealedFile:
    """A sealed file opened for reading. A subclass names its kind, and checks the rest of the manifest in `_check`.

    Raises BadBundle for another file, and for one that is torn or changed. Entries are checked when they are read;
    `verify` reads the whole file. `check_signature` is called before the manifest is parsed.
    """

    KIND: ClassVar[str]
    """in messages"""
    MADE_BY: ClassVar[str]
    """the command that makes one"""

    def __init__(self, source: Path | bytes, check_signature: CheckSignature | None = None) -> None:
        self.name = source.name or str(source) if isinstance(source, Path) else self.KIND
        self._archive = self._opened(source)
        try:
            self.manifest_bytes = self._small(MANIFEST, MOST_MANIFEST_BYTES)
            """as they are signed"""
            self.signature = self._small(SIGNATURE, _MOST_SIGNATURE_BYTES) if SIGNATURE in self._archive.names else None
            """the signature that the file carries, not checked; None when it carries none"""
            if check_signature is not None:
                check_signature(self.name, self.manifest_bytes, self.signature)
            self._check_digest()
            self.written = self._parsed()
            """the manifest as in the file"""
            self._check()
        except BaseException:
            self._archive.close()
            raise

    def _check(self) -> None:
        """Raises BadBundle for a manifest that is not of this kind of file."""
        raise NotImplementedError

    def _opened(self, source: Path | bytes) -> Archive:
        try:
            return Archive(source)
        except FileNotFoundError as error:
            raise BadBundle(f"{self.name}: no such file; {self.MADE_BY} makes a {self.KIND}") from error
        except IsADirectoryError as error:
            raise BadBundle(f"{self.name}: this is a folder; name the {self.KIND} file in it") from error
        except (BadArchive, OSError) as error:
            raise self._wrong_kind(error) from error

    def _small(self, entry: str, most_bytes: int) -> bytes:
        """An entry that is read whole before its digest is known."""
        try:
            if self._archive.size(entry) > most_bytes:
                raise self._bad(f"'{entry}' is larger than {most_bytes} bytes")
            return self._archive.read(entry)
        except BadArchive as error:
            raise self._wrong_kind(error) from error

    def _bad(self, defect: str) -> BadBundle:
        return BadBundle(f"{self.name}: {defect}; make the {self.KIND} again")

    def _wrong_kind(self, error: Exception) -> BadBundle:
        if self.name.endswith(".onnx"):
            remedy = f"`{self.MADE_BY.replace('MODEL', self.name)}` makes a {self.KIND} of it"
            return BadBundle(f"{self.name}: a model is not a {self.KIND}; {remedy}")
        return BadBundle(f"{self.name}: not a fractune {self.KIND}, or torn: {error}; make it again")

    def _check_digest(self) -> None:
        if self._archive.comment != _comment(self.manifest_bytes):
            raise self._bad(f"'{MANIFEST}' does not match its digest, or the file is torn")

    def _parsed(self) -> dict[str, Any]:
        try:
            manifest = read_json(self.manifest_bytes)
        except ValueError as error:
            raise self._wrong_kind(error) from error
        return manifest if isinstance(manifest, dict) else {}

    def read(self, entry: str) -> bytes:
        """The bytes of an entry, checked against the manifest. Raises BadBundle."""
        return b"".join(self._chunks(entry))

    def size(self, entry: str) -> int:
        """Bytes of an entry. Raises BadBundle."""
        try:
            return self._archive.size(entry)
        except BadArchive as error:
            raise self._bad(str(error)) from error

    def copy_to(
        self,
        file: IO[bytes],
        signature: bytes | None = None,
        *,
        extra: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> None:
        """Write the file to another one, with this signature and these fields of the manifest. The `extra` entries
        are added, or replace the entries of their names. Every entry is checked.

        Raises BadBundle, OSError, and BadRequest for fields that make the manifest too large.
        """
        added, digests = extra or {}, self.written["sha256"]
        if added:
            fields["sha256"] = {**digests, **{name: _digest_and_size([payload])[0] for name, payload in added.items()}}
        manifest = _manifest_bytes(self.KIND, {**self.written, **fields}) if fields else self.manifest_bytes
        kept = ((name, self.size(name), self._chunks(name)) for name in digests if name not in added)
        own = {**added, **({} if signature is None else {SIGNATURE: signature})}
        _write(file, manifest, (*kept, *((name, len(each), [each]) for name, each in own.items())))

    def verify(self) -> None:
        """Check every byte of the file: a copy of it must be the same. Raises BadBundle."""
        copy = ComparingFile(self._archive.bytes_at)
        self.copy_to(cast("IO[bytes]", copy), self.signature)
        at = copy.first_difference(self._archive.file_bytes)
        if at is not None:
            place = self._archive.place_of(at)
            raise self._bad(f"byte {at} of the file, in {place}, is not as fractune writes it")

    def _chunks(self, entry: str) -> Iterator[bytes]:
        """The entry piece by piece; its digest is checked before the last piece is given."""
        digest, last = hashlib.sha256(), b""
        try:
            for chunk in self._archive.chunks(entry):
                if last:
                    yield last
                digest.update(chunk)
                last = chunk
        except BadArchive as error:
            raise self._bad(str(error)) from error
        if digest.hexdigest() != self.written["sha256"].get(entry):
            raise self._bad(f"'{entry}' does not match its digest")
        yield last

    def close(self) -> None:
        self._archive.close()


def _comment(manifest: bytes) -> bytes:
    return COMMENT + hashlib.sha256(manifest).hexdigest().encode()


def write_sealed(
    file: IO[bytes], kind: str, manifest: Mapping[str, Any], entries: Mapping[str, Iterable[bytes | memoryview]]
) -> None:
    """Write a sealed file of entries in pieces, which are gone through twice: weights are large. Its manifest gets the
    digest of every entry. Raises BadRequest for a manifest that no reader would take.
    """
    known = {name: _digest_and_size(pieces) for name, pieces in entries.items()}
    digests = {name: digest for name, (digest, _) in known.items()}
    sized = ((name, known[name][1], pieces) for name, pieces in entries.items())
    _write(file, _manifest_bytes(kind, {**manifest, "sha256": digests}), sized)


def write_archive(file: IO[bytes], manifest: bytes, entries: Mapping[str, bytes]) -> None:
    """Write the zip file around a finished manifest."""
    _write(file, manifest, ((name, len(payload), [payload]) for name, payload in entries.items()))


def _digest_and_size(pieces: Iterable[bytes | memoryview]) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    for piece in pieces:
        digest.update(piece)
        size += len(piece)
    return digest.hexdigest(), size


def _manifest_bytes(kind: str, manifest: Mapping[str, Any]) -> bytes:
    """Raises BadRequest for a manifest that no reader would take."""
    whole = json.dumps(manifest, indent=1).encode()
    if len(whole) > MOST_MANIFEST_BYTES:
        raise BadRequest(
            f"the {kind}'s manifest would have {len(whole)} bytes, and {MOST_MANIFEST_BYTES} is the limit; "
            "ask for fewer shares at once"
        )
    return whole


def _write(file: IO[bytes], manifest: bytes, entries: Iterable[tuple[str, int, Iterable[bytes | memoryview]]]) -> None:
    """The zip file of the manifest, then of entries by name, size and pieces."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, size, pieces in ((MANIFEST, len(manifest), [manifest]), *entries):
            # ZipInfo's own date, not the clock's: the same contents make the same file.
            info = zipfile.ZipInfo(name)
            info.file_size = size
            with archive.open(info, "w") as entry:
                for piece in pieces:
                    entry.write(piece)
        archive.comment = _comment(manifest)
