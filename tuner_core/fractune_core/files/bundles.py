"""The bundle file: one zip with the compiled model for each share, its weights once, its records and a manifest.

    manifest.json             what it is, for which device, variants, inputs, SHA-256 of every other entry
    manifest.sig              Ed25519 signature of manifest.json, in a signed bundle only
    records.jsonl             the published tuning records behind it
    weights.bin               the weights of all variants, each once, from a multiple of 64 bytes on
    variants/<n>/<object>.o   machine code and VM bytecode of a variant, as object files

A joined bundle (`joined.py`) has members, each with variants of its own in `members/<n>/`, over the same weights.

The comment of the zip is the SHA-256 of manifest.json, and the digest of an entry is checked whenever it is read.
Entries are stored, not compressed: weights do not compress, and a reader never gets more bytes than the file has. The
same contents always make the same file, byte by byte. `docs/bundle.md` describes the file for programs in other
languages.
"""

from __future__ import annotations

import copy
import hashlib
import json
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast, get_args

from fractune_core.codec.plain_json import read_json
from fractune_core.cpu_limits import GrantedLimit
from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files import manifests
from fractune_core.files.archives import Archive, BadArchive, ComparingFile
from fractune_core.served import Served, ServiceGoal

FORMAT = 3
JOINED_FORMAT = 4
"""of a bundle with members, which a reader of format 3 does not know"""
SUFFIX = ".fractune"
MANIFEST = "manifest.json"
SIGNATURE = "manifest.sig"
RECORDS = "records.jsonl"
WEIGHTS = "weights.bin"
MOST_MANIFEST_BYTES = 2**24
"""A manifest is parsed in memory; those of large models have some 100 kB"""
_MOST_SIGNATURE_BYTES = 2**10

_COMMENT = "fractune manifest sha256 "
_AGAIN = "make the bundle again"

CheckSignature = Callable[[str, bytes, bytes | None], None]
"""Takes the bundle's name, the bytes of its manifest and its signature. Raises BadBundle for what it does not trust"""


def is_bundle(path: Path) -> bool:
    """Whether a file is an archive with a manifest and the comment of a bundle; nothing else of it is checked."""
    try:
        with Archive(path) as archive:
            return MANIFEST in archive.names and archive.comment.startswith(_COMMENT.encode())
    except (BadArchive, OSError):
        return False


def object_entry(variant: int, name: str, folder: str = "") -> str:
    """Zip entry of an object file of the variant with this index in the manifest; `folder` is that of a member."""
    return f"{folder}variants/{variant}/{name}"


def member_folder(member: int) -> str:
    """Folder of the entries of this member of a joined bundle, by its number."""
    return f"members/{member}/"


def write_bundle(file: IO[bytes], manifest: Mapping[str, Any], entries: Mapping[str, bytes]) -> None:
    """Write a bundle to `file`; the manifest gets its format number and the digest of every entry.

    Raises BadRequest for a manifest that no reader would take.
    """
    write_pieces(file, {"format": FORMAT, **manifest}, {name: [payload] for name, payload in entries.items()})


def write_pieces(file: IO[bytes], manifest: Mapping[str, Any], entries: Mapping[str, Sequence[bytes]]) -> None:
    """As `write_bundle`, of entries in pieces, and with the manifest's own format number."""
    digests = {name: _digest(pieces) for name, pieces in entries.items()}
    sized = ((name, sum(map(len, pieces)), pieces) for name, pieces in entries.items())
    _write(file, _manifest_bytes({**manifest, "sha256": digests}), sized)


def _digest(pieces: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _manifest_bytes(manifest: Mapping[str, Any]) -> bytes:
    """Raises BadRequest for a manifest that no reader would take."""
    whole = json.dumps(manifest, indent=1).encode()
    if len(whole) > MOST_MANIFEST_BYTES:
        raise BadRequest(
            f"the bundle's manifest would have {len(whole)} bytes, and {MOST_MANIFEST_BYTES} is the limit; "
            "ask for fewer shares at once"
        )
    return whole


def write_archive(file: IO[bytes], manifest: bytes, entries: Mapping[str, bytes]) -> None:
    """Write the zip file around a finished manifest."""
    _write(file, manifest, ((name, len(payload), [payload]) for name, payload in entries.items()))


def _write(file: IO[bytes], manifest: bytes, entries: Iterable[tuple[str, int, Iterable[bytes]]]) -> None:
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


class Bundle:
    """A bundle opened for reading: its manifest is whole and of this format, and no entry is missing or extra.

    Raises BadBundle for a file that is not a bundle, is torn or changed, or has another format. Entries are checked
    when they are read; `verify` reads the whole file. `check_signature` is called before the manifest is parsed.
    """

    def __init__(self, source: Path | bytes, check_signature: CheckSignature | None = None) -> None:
        self.name = source.name if isinstance(source, Path) else "bundle"
        self.members: list[Bundle] = []
        """those of a joined bundle, each as a bundle over the same file; by their shapes if there are several"""
        self._folder = ""
        self._archive = self._opened(source)
        try:
            self.manifest_bytes = self._small(MANIFEST, MOST_MANIFEST_BYTES)
            """as they are signed"""
            self.signature = self._small(SIGNATURE, _MOST_SIGNATURE_BYTES) if SIGNATURE in self._archive.names else None
            """the signature that the bundle carries, not checked; None when it carries none"""
            if check_signature is not None:
                check_signature(self.name, self.manifest_bytes, self.signature)
            self._check_digest()
            self.written = self.manifest = self._parsed()
            """as in the file; `manifest` is for readers that know one shape (`_show_last`)"""
            self._check_format()
            self._check_manifest()
            self.members = [self._member(number) for number in range(len(self.written.get("members", ())))]
            self._check_entries()
            self._show_last()
        except BaseException:
            self._archive.close()
            raise

    def _opened(self, source: Path | bytes) -> Archive:
        try:
            return Archive(source)
        except FileNotFoundError as error:
            raise BadBundle(f"{self.name}: no such file") from error
        except IsADirectoryError as error:
            raise BadBundle(f"{self.name}: this is a folder; name the bundle file in it") from error
        except (BadArchive, OSError) as error:
            raise self._no_bundle(error) from error

    def _small(self, entry: str, most_bytes: int) -> bytes:
        """An entry that is read whole before its digest is known."""
        try:
            if self._archive.size(entry) > most_bytes:
                raise BadBundle(f"{self.name}: '{entry}' is larger than {most_bytes} bytes; {_AGAIN}")
            return self._archive.read(entry)
        except BadArchive as error:
            raise self._no_bundle(error) from error

    def _no_bundle(self, error: Exception) -> BadBundle:
        return BadBundle(f"{self.name}: not a fractune bundle, or torn: {error}; make it again")

    def _check_digest(self) -> None:
        if self._archive.comment != _comment(self.manifest_bytes):
            raise BadBundle(f"{self.name}: '{MANIFEST}' does not match its digest, or the file is torn; {_AGAIN}")

    def _parsed(self) -> dict[str, Any]:
        try:
            manifest = read_json(self.manifest_bytes)
        except ValueError as error:
            raise self._no_bundle(error) from error
        return manifest if isinstance(manifest, dict) else {}

    def _check_format(self) -> None:
        found = self.manifest.get("format")
        if type(found) is int and found > JOINED_FORMAT:
            raise BadBundle(
                f"{self.name}: bundle of a newer format ({found}, this fractune reads {JOINED_FORMAT}); "
                "upgrade fractune"
            )
        if type(found) is not int or found not in (FORMAT, JOINED_FORMAT):
            raise BadBundle(f"{self.name}: bundle format {found!r}, this fractune reads {JOINED_FORMAT}; make it again")

    def _check_manifest(self) -> None:
        wrong = manifests.complaint(self.manifest)
        if wrong:
            raise BadBundle(f"{self.name}: {MANIFEST}: {wrong}; {_AGAIN}")

    def _check_entries(self) -> None:
        found, listed = set(self._archive.names), set(self.manifest["sha256"])
        expected = {*listed, MANIFEST, RECORDS, WEIGHTS}
        missing, extra = sorted(expected - found), sorted(found - {*listed, MANIFEST, SIGNATURE})
        if missing:
            raise BadBundle(f"{self.name}: '{missing[0]}' is missing; {_AGAIN}")
        extra += sorted(listed & {MANIFEST, SIGNATURE})
        if extra:
            raise BadBundle(f"{self.name}: '{extra[0]}' does not belong to it; {_AGAIN}")
        for each in self.members or [self]:
            lost = [
                entry for variant in each.variants for entry in each.entries_of(variant["name"]) if entry not in listed
            ]
            if lost:
                raise BadBundle(f"{self.name}: '{lost[0]}' is missing; {_AGAIN}")
        if any(weight["offset"] + weight["size"] > self.size(WEIGHTS) for weight in self.manifest["weights"]):
            raise BadBundle(f"{self.name}: '{WEIGHTS}' is shorter than the weights in {MANIFEST}; {_AGAIN}")

    def _member(self, number: int) -> Bundle:
        member = copy.copy(self)
        member.manifest = manifests.of_member(self.written, number)
        member._folder = member_folder(number)  # noqa: SLF001  it is a copy of this very bundle
        return member

    def _show_last(self) -> None:
        """For readers that know one shape, a bundle for several shapes has the variants, inputs and outputs of the
        largest. For a model in parts the inputs and outputs are those of the whole model; of the last part it has the
        shares and variants alone.
        """
        if not self.members:
            return
        last = self.members[-1].manifest
        if "stages" in self.written:
            stages = self.written["stages"]
            last = {name: last[name] for name in ("shares", "variants")} | {
                "inputs": stages["inputs"],
                "outputs": stages["outputs"],
            }
        self.manifest = {**self.written, **last}
        self._folder = member_folder(len(self.members) - 1)

    def is_of(self, model: Path) -> bool:
        """Whether `model` is the file that the bundle was made from. Raises OSError."""
        with model.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return bool(digest == self.manifest["model"]["sha256"])

    def read(self, entry: str) -> bytes:
        """The bytes of an entry, checked against the manifest. Raises BadBundle."""
        return b"".join(self._chunks(entry))

    def read_parts(self, entry: str, parts: Iterable[tuple[int, memoryview]]) -> None:
        """As `read`, for a large entry: fill each buffer with the bytes from its byte offset on, so that no byte
        is in memory twice. Raises BadBundle.
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
            return self._archive.size(entry)
        except BadArchive as error:
            raise BadBundle(f"{self.name}: {error}; {_AGAIN}") from error

    def copy_to(
        self,
        file: IO[bytes],
        signature: bytes | None = None,
        *,
        extra: Mapping[str, bytes] | None = None,
        **fields: Any,
    ) -> None:
        """Write the bundle to another file, with this signature and these fields of the manifest. The `extra` entries
        are added, or replace the entries of their names. Every entry is checked.

        Raises BadBundle, OSError, and BadRequest for fields that make the manifest too large.
        """
        added, digests = extra or {}, self.written["sha256"]
        if added:
            fields["sha256"] = {**digests, **{name: _digest([payload]) for name, payload in added.items()}}
        manifest = _manifest_bytes({**self.written, **fields}) if fields else self.manifest_bytes
        kept = ((name, self.size(name), self._chunks(name)) for name in digests if name not in added)
        own = {**added, **({} if signature is None else {SIGNATURE: signature})}
        _write(file, manifest, (*kept, *((name, len(payload), [payload]) for name, payload in own.items())))

    def verify(self) -> None:
        """Check every byte of the file: a copy of the bundle must be the same. Raises BadBundle."""
        copy = ComparingFile(self._archive.bytes_at)
        self.copy_to(cast("IO[bytes]", copy), self.signature)
        at = copy.first_difference(self._archive.file_bytes)
        if at is not None:
            place = self._archive.place_of(at)
            raise BadBundle(f"{self.name}: byte {at} of the file, in {place}, is not as fractune writes it; {_AGAIN}")

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
            raise BadBundle(f"{self.name}: {error}; {_AGAIN}") from error
        if digest.hexdigest() != self.manifest["sha256"].get(entry):
            raise BadBundle(f"{self.name}: '{entry}' does not match its digest; {_AGAIN}")
        yield last

    def check_undivided(self, what: str) -> None:
        """Raises BadBundle if the model is in parts: `what` needs times and variants of the whole model."""
        if "stages" in self.written:
            raise BadBundle(f"{self.name} is of a model in parts, which {what} cannot take; load it by fractune.load")

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The manifest's variants: `name` (a share, or `untuned`), `objects` (names) and `weights` (places)."""
        return list(self.manifest["variants"])

    def measured(self, mechanism: str) -> dict[int, dict[str, float]]:
        """Seconds of the model's operators, by units of a share of that mechanism, then by variant. They are the
        reported times, which `match.choose` takes. Times of other mechanisms are left out.
        """
        return self._times("measured", mechanism)

    def choosing(self, mechanism: str) -> dict[int, dict[str, float]]:
        """As `measured`, from the repeats that are used for selection. An older bundle has the reported times only."""
        return self._times("choosing" if "choosing" in self.manifest else "measured", mechanism)

    def _times(self, field: str, mechanism: str) -> dict[int, dict[str, float]]:
        held, units = self.manifest.get(field, {}), self.units(mechanism)
        known = {share: {name: secs for name, secs in times.items() if secs > 0} for share, times in held.items()}
        return {units[share]: times for share, times in known.items() if times and share in units}

    def timed(self, mechanism: str) -> dict[int, float]:
        """Seconds of one call of the whole model, by units of a share of that mechanism."""
        units = self.units(mechanism)
        return {units[share]: secs for share, secs in self.manifest.get("timed", {}).items() if share in units}

    def served(self, mechanism: str) -> dict[int, dict[ServiceGoal, Served]]:
        """The best variant by units of a share of that mechanism, then by goal, by times of the whole model."""
        units = self.units(mechanism)
        return {units[share]: goals for share, goals in self._served.items() if share in units}

    @property
    def under_limits(self) -> list[tuple[GrantedLimit, dict[ServiceGoal, Served]]]:
        """The CPU limits under which the whole model was timed, each with the best variant there by goal."""
        limits, served = self.manifest.get("limits", {}), self._served
        return [(GrantedLimit.from_json(limits[each]["limit"]), served[each]) for each in limits if each in served]

    @property
    def _served(self) -> dict[str, dict[ServiceGoal, Served]]:
        return {
            share: {goal: Served.from_json(goals[goal]) for goal in get_args(ServiceGoal)}
            for share, goals in self.manifest.get("served", {}).items()
        }

    def units(self, mechanism: str) -> dict[str, int]:
        """Units of each share of that mechanism."""
        shares = self.manifest["shares"].items()
        return {share: int(granted["units"]) for share, granted in shares if share.partition(":")[0] == mechanism}

    def objects(self, variant: str) -> list[bytes]:
        """The object files of a variant by name. Raises BadBundle when there is none of this name."""
        return list(map(self.read, self.entries_of(variant)))

    def entries_of(self, variant: str) -> list[str]:
        """The zip entries of a variant's object files. Raises BadBundle when there is no variant of this name."""
        index, entry = self._variant(variant)
        return [object_entry(index, name, self._folder) for name in entry["objects"]]

    def weights_of(self, variant: str) -> list[int]:
        """The weights that the variant takes after its inputs, in their order, as places in the manifest's list. Raises
        BadBundle.
        """
        _, entry = self._variant(variant)
        return list(entry["weights"])

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
