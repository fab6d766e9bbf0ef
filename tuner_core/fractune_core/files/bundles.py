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
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, get_args

from fractune_core.codec.plain_json import read_json
from fractune_core.cpu_limits import GrantedLimit
from fractune_core.errors import BadBundle
from fractune_core.files import manifests
from fractune_core.files.archives import Archive, BadArchive
from fractune_core.files.sealed import COMMENT, MANIFEST, SIGNATURE, CheckSignature, SealedFile, write_sealed
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.served import Served, ServiceGoal

FORMAT = 3
JOINED_FORMAT = 4
"""of a bundle with members, which a reader of format 3 does not know"""
SUFFIX = ".fractune"
RECORDS = "records.jsonl"
WEIGHTS = "weights.bin"


def is_bundle(path: Path) -> bool:
    """Whether a file is an archive with a manifest and the comment of a bundle; nothing else of it is checked."""
    try:
        with Archive(path) as archive:
            return MANIFEST in archive.names and archive.comment.startswith(COMMENT)
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
    write_sealed(
        file, Bundle.KIND, {"format": FORMAT, **manifest}, {name: [payload] for name, payload in entries.items()}
    )


class Bundle(SealedFile):
    """A bundle opened for reading: its manifest is whole and of this format, and no entry is missing or extra. Raises
    BadBundle as any SealedFile, and for another format.
    """

    KIND = "bundle"
    MADE_BY = "fractune tune MODEL"

    def __init__(self, source: Path | bytes, check_signature: CheckSignature | None = None) -> None:
        self.members: list[Bundle] = []
        """those of a joined bundle, each as a bundle over the same file; by their shapes if there are several"""
        self._folder = ""
        super().__init__(source, check_signature)

    def _check(self) -> None:
        self.manifest = self.written
        """for readers that know one shape (`_show_last`)"""
        self._check_format()
        self._check_manifest()
        self.members = [self._member(number) for number in range(len(self.written.get("members", ())))]
        self._check_entries()
        self._show_last()

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
            raise self._bad(f"{MANIFEST}: {wrong}")

    def _check_entries(self) -> None:
        found, listed = set(self._archive.names), set(self.manifest["sha256"])
        expected = {*listed, MANIFEST, RECORDS, WEIGHTS}
        missing, extra = sorted(expected - found), sorted(found - {*listed, MANIFEST, SIGNATURE})
        if missing:
            raise self._bad(f"'{missing[0]}' is missing")
        extra += sorted(listed & {MANIFEST, SIGNATURE})
        if extra:
            raise self._bad(f"'{extra[0]}' does not belong to it")
        for each in self.members or [self]:
            lost = [
                entry for variant in each.variants for entry in each.entries_of(variant["name"]) if entry not in listed
            ]
            if lost:
                raise self._bad(f"'{lost[0]}' is missing")
        if any(weight["offset"] + weight["size"] > self.size(WEIGHTS) for weight in self.manifest["weights"]):
            raise self._bad(f"'{WEIGHTS}' is shorter than the weights in {MANIFEST}")

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

    def read_parts(self, entry: str, parts: Iterable[tuple[int, memoryview]]) -> None:
        """As `read`, for a large entry: fill each buffer with the bytes from its byte offset on, so that no byte
        is in memory twice. Raises BadBundle.
        """
        waiting = deque(sorted(parts, key=lambda part: part[0]))
        begun = list[tuple[int, memoryview]]()
        at = 0
        for chunk in self._chunks(entry):
            end = at + len(chunk)
            while waiting and waiting[0][0] < end:
                begun.append(waiting.popleft())
            for begin, buffer in begun:
                first, last = max(begin, at), min(begin + len(buffer), end)
                buffer[first - begin : last - begin] = memoryview(chunk)[first - at : last - at]
            begun = [(begin, buffer) for begin, buffer in begun if begin + len(buffer) > end]
            at = end
        if any(begin + len(buffer) > at for begin, buffer in (*begun, *waiting)):
            raise self._other_size(entry)

    def parts(self, entry: str, places: Iterable[tuple[int, int]]) -> Iterator[bytearray]:
        """The bytes of a large entry from each byte offset on, in such a number; one part is in memory at a time. The
        places lie one behind the other. Raises BadBundle, also behind the last part.
        """
        waiting, part = deque(places), bytearray()
        at = 0
        for chunk in self._chunks(entry):
            while waiting:
                begin, size = waiting[0]
                first = begin + len(part) - at
                if first > len(chunk):
                    break
                part += memoryview(chunk)[first : begin + size - at]
                if len(part) < size:
                    break
                yield part
                waiting.popleft()
                part = bytearray()
            at += len(chunk)
        if waiting:
            raise self._other_size(entry)

    def _other_size(self, entry: str) -> BadBundle:
        return self._bad(f"'{entry}' is not of the size that {MANIFEST} gives")

    def check_undivided(self, what: str) -> None:
        """Raises BadBundle if the model is in parts: `what` needs times and variants of the whole model."""
        if "stages" in self.written:
            raise BadBundle(f"{self.name} is of a model in parts, which {what} cannot take; load it by fractune.load")

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The manifest's variants: `name` (a share, or `untuned`), `objects` (names) and `weights` (places)."""
        return list(self.manifest["variants"])

    def kernels(self, variant: str) -> dict[str, str]:
        """The workload hashes of the variant's kernels that compute operators, by the kernel's name."""
        return next((each.get("kernels", {}) for each in self.variants if each["name"] == variant), {})

    def candidates(self, variant: str) -> dict[str, str]:
        """The schedules of the variant's operators by workload hash; an untuned operator is absent."""
        schedules = {each["record_id"]: each["candidate_id"] for each in self.records()}
        chosen = {
            each["workload_hash"]: each["by_variant"].get(variant, {}).get("record")
            for each in self.manifest.get("operators", ())
        }
        return {own: schedules[record] for own, record in chosen.items() if record in schedules}

    def measured(self, mechanism: str) -> dict[int, dict[str, float]]:
        """Seconds of the model's operators, by units of a share of that mechanism, then by variant. They are the
        reported times, which `match.choose` takes. Times of other mechanisms are left out.
        """
        return self._times("measured", mechanism)

    def choosing(self, mechanism: str) -> dict[int, dict[str, float]]:
        """As `measured`, from the repeats that are used for selection."""
        return self._times("choosing", mechanism)

    def _times(self, field: str, mechanism: str) -> dict[int, dict[str, float]]:
        held, units = self.manifest.get(field, {}), self.units(mechanism)
        known = {share: {name: secs for name, secs in times.items() if secs > 0} for share, times in held.items()}
        return {units[share]: times for share, times in known.items() if times and share in units}

    def untuned_sum_s(self, share: str = "") -> float:
        """Seconds of the untuned variant's operators, one after the other, at the share; where they were not measured
        there, the least of those at other shares. 0 = not known.
        """
        rows = self.manifest.get("measured", {}).items()
        sums: dict[str, float] = {at: times[UNTUNED_VARIANT] for at, times in rows if times.get(UNTUNED_VARIANT)}
        return sums.get(share, min(sums.values(), default=0.0))

    def timed(self, mechanism: str, *, disturbed: bool = False) -> dict[int, float]:
        """Seconds of one call of the whole model, by units of a share of that mechanism. Those that are `disturbed` are
        apart: there the model takes at most that.
        """
        units, found = self.units(mechanism), self.manifest.get("timed", {}).items()
        wanted = {share: secs for share, secs in found if (share in self.disturbed_shares) == disturbed}
        return {units[share]: secs for share, secs in wanted.items() if share in units}

    @property
    def disturbed_shares(self) -> set[str]:
        """The shares at which other programs disturbed the times of the whole model."""
        return manifests.disturbed_shares(self.manifest)

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
            raise self._bad(f"'{RECORDS}' is not JSON in lines ({error})") from error
