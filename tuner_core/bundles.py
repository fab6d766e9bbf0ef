"""The bundle file: one zip with the compiled model for each share, its weights once, its records and a manifest.

    manifest.json             what it is, for which device, variants, inputs, SHA-256 of every other entry
    records.jsonl             the published tuning records behind it
    weights.params            all weights, once for all variants, in TVM's parameter format
    variants/<n>/<object>.o   machine code and VM bytecode of a variant, as object files

Entries are stored, not compressed: weights do not compress, and a stored entry can be read in place.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tuner_core.errors import BadBundle

FORMAT = 1
SUFFIX = ".fractune"
MANIFEST = "manifest.json"
RECORDS = "records.jsonl"
WEIGHTS = "weights.params"
UNTUNED_VARIANT = "untuned"
ROBUST_VARIANT = "robust"
"""the schedules that lose least at the worst of the bundle's shares"""


def object_entry(variant: int, name: str) -> str:
    """Zip entry of an object file of the variant with this index in the manifest."""
    return f"variants/{variant}/{name}"


def write_bundle(file: BinaryIO, manifest: Mapping[str, Any], entries: Mapping[str, bytes]) -> None:
    """Write a bundle to `file`; the manifest gets its format number and the digest of every entry."""
    digests = {name: hashlib.sha256(payload).hexdigest() for name, payload in entries.items()}
    whole = {"format": FORMAT, **manifest, "sha256": digests}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        # ZipInfo's own date, not the clock's: the same contents make the same file.
        archive.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(whole, indent=1))
        for name, payload in entries.items():
            archive.writestr(zipfile.ZipInfo(name), payload)


class Bundle:
    """A bundle opened for reading. Raises BadBundle for a file that is none, is torn, or is of another format."""

    def __init__(self, source: Path | bytes) -> None:
        self.name = source.name if isinstance(source, Path) else "bundle"
        try:
            self._archive = zipfile.ZipFile(source if isinstance(source, Path) else io.BytesIO(source))
            self.manifest: dict[str, Any] = json.loads(self._archive.read(MANIFEST))
        except FileNotFoundError as error:
            raise BadBundle(f"{self.name}: no such file") from error
        except (zipfile.BadZipFile, KeyError, ValueError, OSError) as error:
            raise BadBundle(f"{self.name}: not a fractune bundle, or torn ({error}); make it again") from error
        if self.manifest.get("format") != FORMAT:
            found = self.manifest.get("format")
            raise BadBundle(f"{self.name}: bundle format {found}, this fractune reads {FORMAT}; make it again")

    def read(self, entry: str) -> bytes:
        """The bytes of an entry, checked against the manifest. Raises BadBundle."""
        try:
            payload = self._archive.read(entry)
        except (KeyError, zipfile.BadZipFile, OSError) as error:
            raise BadBundle(f"{self.name}: '{entry}' is missing or torn; make the bundle again") from error
        if hashlib.sha256(payload).hexdigest() != self.manifest["sha256"].get(entry):
            raise BadBundle(f"{self.name}: '{entry}' does not match its digest; make the bundle again")
        return payload

    @property
    def variants(self) -> list[dict[str, Any]]:
        """The manifest's variants: `name`, `share`, `granted` (JSON, absent for untuned), `objects` (names)."""
        return list(self.manifest["variants"])

    def objects(self, variant: str) -> list[bytes]:
        """The object files of a variant by name. Raises BadBundle when there is none of this name."""
        for index, entry in enumerate(self.variants):
            if entry["name"] == variant:
                return [self.read(object_entry(index, name)) for name in entry["objects"]]
        names = ", ".join(entry["name"] for entry in self.variants)
        raise BadBundle(f"{self.name}: no variant '{variant}'; it has {names}")

    def records(self) -> list[dict[str, Any]]:
        """The tuning records behind the bundle, as JSON objects."""
        return [json.loads(line) for line in self.read(RECORDS).decode().splitlines() if line]
