"""The bundle file: one zip with the compiled model for each share, its weights once, its records and a manifest.

    manifest.json             what it is, for which device, variants, inputs, SHA-256 of every other entry
    manifest.sig              Ed25519 signature of manifest.json, in a signed bundle only
    records.jsonl             the published tuning records behind it
    weights.bin               the weights of all variants, each once, from a multiple of 64 bytes on
    variants/<n>/<object>.o   machine code and VM bytecode of a variant, as object files

The comment of the zip file is the SHA-256 of manifest.json, so nothing in a bundle changes unnoticed. Entries are
stored, not compressed: weights do not compress, and a stored entry can be read in place. `docs/bundle.md` describes
it for readers of their own.
"""

from __future__ import annotations

import hashlib
import io
import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from fractune_core.errors import BadBundle
from fractune_core.files import manifests
from fractune_core.json_shapes import read_json

FORMAT = 3
_BEFORE = 2
"""in which every variant takes all weights"""
SUFFIX = ".fractune"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
RECORDS = "records.jsonl"
WEIGHTS = "weights.bin"
ALIGNMENT_BYTES = 64
"""weights begin at multiples of it, as the compiled code expects of memory"""

_COMMENT = "fractune manifest sha256 "
_CHUNK_BYTES = 1 << 16
_UNREADABLE = (
    *(zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError, struct.error, zlib.error, OverflowError),
    RuntimeError,  # also NotImplementedError: flags that no zip of ours has
)
"""all that `zipfile` raises for a file that was changed"""
_AGAIN = "make the bundle again"


def object_entry(variant: int, name: str) -> str:
    """Zip entry of an object file of the variant with this index in the manifest."""
    return f"variants/{variant}/{name}"


def write_bundle(file: BinaryIO, manifest: Mapping[str, Any], entries: Mapping[str, bytes]) -> None:
    """Write a bundle to `file`; the manifest gets its format number and the digest of every entry."""
    digests = {name: hashlib.sha256(payload).hexdigest() for name, payload in entries.items()}
    whole = {"format": FORMAT, **manifest, "sha256": digests}
    write_archive(file, json.dumps(whole, indent=1).encode(), entries)


def write_archive(file: BinaryIO, manifest: bytes, entries: Mapping[str, bytes]) -> None:
    """Write the zip file around a finished manifest."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        # ZipInfo's own date, not the clock's: the same contents make the same file.
        archive.writestr(zipfile.ZipInfo(MANIFEST), manifest)
        for name, payload in entries.items():
            archive.writestr(zipfile.ZipInfo(name), payload)
        archive.comment = _comment(manifest)


class Bundle:
    """A bundle opened for reading: its manifest is whole and of this format, and no entry is missing or extra.

    Raises BadBundle for a file that is none, is torn or changed, or is of another format. Entries are checked when
    they are read; `verify` reads them all.
    """

    def __init__(self, source: Path | bytes) -> None:
        self.name = source.name if isinstance(source, Path) else "bundle"
        try:
            self._archive = zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source))
            self.manifest_bytes = self._archive.read(MANIFEST)
            """as they are signed"""
            manifest = read_json(self.manifest_bytes)
        except FileNotFoundError as error:
            raise BadBundle(f"{self.name}: no such file") from error
        except _UNREADABLE as error:
            raise BadBundle(f"{self.name}: not a fractune bundle, or torn ({error}); make it again") from error
        self.manifest: dict[str, Any] = manifest if isinstance(manifest, dict) else {}
        self._check_format()
        self._check_manifest()
        self._check_names()

    def _check_format(self) -> None:
        found = self.manifest.get("format")
        if isinstance(found, int) and found > FORMAT:
            raise BadBundle(
                f"{self.name}: bundle of a newer format ({found}, this fractune reads {FORMAT}); upgrade fractune"
            )
        if found not in (_BEFORE, FORMAT):
            raise BadBundle(f"{self.name}: bundle format {found}, this fractune reads {FORMAT}; make it again")

    def _check_manifest(self) -> None:
        if self._archive.comment != _comment(self.manifest_bytes):
            raise BadBundle(f"{self.name}: '{MANIFEST}' does not match its digest, or the file is torn; {_AGAIN}")
        wrong = manifests.complaint(self.manifest)
        if wrong:
            raise BadBundle(f"{self.name}: {MANIFEST}: {wrong}; {_AGAIN}")

    def _check_names(self) -> None:
        found = [info.filename for info in self._archive.infolist()]
        expected = {MANIFEST, *self.manifest["sha256"]}
        missing, extra = sorted(expected - set(found)), sorted(set(found) - expected - {SIGNATURE})
        if missing:
            raise BadBundle(f"{self.name}: '{missing[0]}' is missing; {_AGAIN}")
        if extra or len(found) > len(set(found)):
            name = extra[0] if extra else min(name for name in found if found.count(name) > 1)
            raise BadBundle(f"{self.name}: '{name}' does not belong to it; {_AGAIN}")
        for index, variant in enumerate(self.manifest["variants"]):
            for name in variant["objects"]:
                if object_entry(index, name) not in expected:
                    raise BadBundle(f"{self.name}: '{object_entry(index, name)}' is missing; {_AGAIN}")

    def read(self, entry: str) -> bytes:
        """The bytes of an entry, checked against the manifest. Raises BadBundle."""
        return b"".join(self._chunks(entry))

    def read_parts(self, entry: str, parts: Iterable[tuple[int, memoryview]]) -> None:
        """As `read`, of an entry that is large: from each offset on as many bytes as fit into the buffer given for it,
        so that nothing exists twice in memory. Raises BadBundle.
        """
        waiting = sorted(parts, key=lambda part: part[0])
        at = 0
        for chunk in self._chunks(entry):
            end = at + len(chunk)
            for begin, buffer in waiting:
                if begin >= end:
                    break
                first, last = max(begin, at), min(begin + len(buffer), end)
                buffer[first - begin : last - begin] = chunk[first - at : last - at]
            waiting = [(begin, buffer) for begin, buffer in waiting if begin + len(buffer) > end]
            at = end
        if waiting:
            raise BadBundle(f"{self.name}: '{entry}' is not of the size that {MANIFEST} gives; {_AGAIN}")

    def size(self, entry: str) -> int:
        """Bytes of an entry. Raises BadBundle."""
        try:
            return self._archive.getinfo(entry).file_size
        except KeyError as error:
            raise BadBundle(f"{self.name}: '{entry}' is missing; {_AGAIN}") from error

    def verify(self) -> None:
        """Read and check all entries. Raises BadBundle."""
        for entry in self.manifest["sha256"]:
            for _ in self._chunks(entry):
                pass
        _ = self.signature

    @property
    def signature(self) -> bytes | None:
        """The signature that the bundle carries, not checked; None when it carries none. Raises BadBundle."""
        if SIGNATURE not in self._archive.namelist():
            return None
        try:
            return self._archive.read(SIGNATURE)
        except _UNREADABLE as error:
            raise BadBundle(f"{self.name}: '{SIGNATURE}' is torn; sign the bundle again") from error

    def _chunks(self, entry: str) -> Iterator[bytes]:
        """The entry piece by piece; its digest is checked before the last piece is given."""
        digest, last = hashlib.sha256(), b""
        try:
            with self._archive.open(entry) as file:
                chunk = file.read(_CHUNK_BYTES)
                while chunk:
                    digest.update(chunk)
                    ahead = file.read(_CHUNK_BYTES)
                    if ahead:
                        yield chunk
                    last, chunk = chunk, ahead
        except _UNREADABLE as error:
            raise BadBundle(f"{self.name}: '{entry}' is missing or torn ({error}); {_AGAIN}") from error
        if digest.hexdigest() != self.manifest["sha256"].get(entry):
            raise BadBundle(f"{self.name}: '{entry}' does not match its digest; {_AGAIN}")
        yield last

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The manifest's variants: `name` (a share, or `untuned`), `objects` (names) and `weights` (places)."""
        return list(self.manifest["variants"])

    def measured(self, mechanism: str) -> dict[int, dict[str, float]]:
        """Seconds of the model's operators by units of a share of that mechanism, then by variant: what `match.choose`
        asks for as reported. One mechanism says nothing of another.
        """
        return self._times("measured", mechanism)

    def choosing(self, mechanism: str) -> dict[int, dict[str, float]]:
        """The same by the repeats that choose; `measured` where the bundle does not hold them apart."""
        return self._times("choosing" if "choosing" in self.manifest else "measured", mechanism)

    def _times(self, field: str, mechanism: str) -> dict[int, dict[str, float]]:
        held, units = self.manifest.get(field, {}), self.units(mechanism)
        known = {share: {name: secs for name, secs in times.items() if secs > 0} for share, times in held.items()}
        return {units[share]: times for share, times in known.items() if times and share in units}

    def units(self, mechanism: str) -> dict[str, int]:
        """Units of each share of that mechanism."""
        shares = self.manifest["shares"].items()
        return {share: int(granted["units"]) for share, granted in shares if share.partition(":")[0] == mechanism}

    def objects(self, variant: str) -> list[bytes]:
        """The object files of a variant by name. Raises BadBundle when there is none of this name."""
        index, entry = self._variant(variant)
        return [self.read(object_entry(index, name)) for name in entry["objects"]]

    def weights_of(self, variant: str) -> list[int]:
        """Which of the manifest's weights the variant takes after its inputs, in their order. Raises BadBundle."""
        _, entry = self._variant(variant)
        return list(entry.get("weights", range(len(self.manifest["weights"]))))  # all of them before format 3

    def _variant(self, name: str) -> tuple[int, dict[str, Any]]:
        for index, entry in enumerate(self.variants):
            if entry["name"] == name:
                return index, entry
        names = ", ".join(entry["name"] for entry in self.variants)
        raise BadBundle(f"{self.name}: no variant '{name}'; it has {names}")

    def records(self) -> list[dict[str, Any]]:
        """The tuning records behind the bundle, as JSON objects."""
        try:
            return [read_json(line) for line in self.read(RECORDS).decode().splitlines() if line]
        except ValueError as error:
            raise BadBundle(f"{self.name}: '{RECORDS}' is no JSON in lines ({error}); {_AGAIN}") from error

    def close(self) -> None:
        self._archive.close()


def _comment(manifest: bytes) -> bytes:
    return f"{_COMMENT}{hashlib.sha256(manifest).hexdigest()}".encode()
