"""A fused model's file: the files of several variants of one model, and how many slots they are to have.

    fused.json      {"format": 1, "variants": [names], "slots": number}
    variants/<n>    the n-th variant's model file

A zip of stored entries, always the same bytes for the same contents: a model is known by its digest. The n-th variant
has the n-th slot; slots beyond the last variant are empty.
"""

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from fractune_core.codec.plain_json import read_json
from fractune_core.errors import BadModel, BadRequest
from fractune_core.files.archives import Archive, BadArchive
from fractune_core.names import is_label

SUFFIX = ".fused"
MOST_SLOTS = 64
_HEADER = "fused.json"
_FORMAT = 1
_FEWEST = 2
_TORN = "is a damaged fused model; make it again with `fractune fuse`"


@dataclass(frozen=True)
class FusedContents:
    """Contents of a fused model's file."""

    names: tuple[str, ...]
    """of the variants, each once"""
    payloads: tuple[bytes, ...]
    """their model files"""
    slots: int

    @property
    def slot_names(self) -> list[str | None]:
        """By slot; None for an empty one."""
        return slot_names(self.names, self.slots)


def slot_names(variants: Sequence[str], slots: int) -> list[str | None]:
    """Whose slot each is, None for an empty one."""
    return [*variants, *[None] * (slots - len(variants))]


def is_fused(path: Path) -> bool:
    """Whether a file is a fused model, with a sound header or not."""
    try:
        with Archive(path) as archive:
            return _HEADER in archive.names
    except (BadArchive, OSError):
        return False


def check_slots(variants: int, slots: int | None) -> int:
    """How many slots so many variants get; None = one each. Raises BadRequest."""
    if variants < _FEWEST:
        raise BadRequest(f"{variants} model given: fusing takes two variants of a model or more")
    if slots is None:
        slots = variants
    if slots < variants:
        raise BadRequest(f"slots is {slots}, and {variants} variants are given; it must be {variants} or more")
    if slots > MOST_SLOTS:
        raise BadRequest(f"{slots} slots: a fused model has {MOST_SLOTS} at most; make several of it")
    return slots


def write_fused(file: BinaryIO, names: Sequence[str], paths: Sequence[Path], slots: int) -> None:
    """Write the variants' files, one in memory at a time, to `file`. Raises OSError."""
    header = {"format": _FORMAT, "variants": list(names), "slots": slots}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        # ZipInfo's own date, not the clock's.
        archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header))
        for number, path in enumerate(paths):
            archive.writestr(zipfile.ZipInfo(_entry(number)), path.read_bytes())


def read_fused(data: bytes) -> FusedContents | None:
    """The content of an archive; None for an archive that is not a fused model. Raises BadArchive, BadModel."""
    with Archive(data) as archive:
        if _HEADER not in archive.names:
            return None
        try:
            header = read_json(archive.read(_HEADER))
            _check_header(header)
            payloads = [archive.read(_entry(number)) for number in range(len(header["variants"]))]
        except (BadArchive, ValueError) as error:
            raise BadModel(_TORN) from error
    return FusedContents(tuple(header["variants"]), tuple(payloads), header["slots"])


def _check_header(header: Any) -> None:
    """Raises BadModel for another format, ValueError for a header that is none."""
    if not isinstance(header, dict):
        raise ValueError("no object")  # noqa: TRY004
    if header.get("format") != _FORMAT:
        raise BadModel(f"is a fused model of format {header.get('format')}, this fractune reads {_FORMAT}")
    names, slots = header.get("variants"), header.get("slots")
    if not isinstance(names, list) or not all(map(is_label, names)):
        raise ValueError("names")
    if not isinstance(slots, int) or len(set(names)) < len(names) or not _FEWEST <= len(names) <= slots <= MOST_SLOTS:
        raise ValueError("slots")


def _entry(number: int) -> str:
    return f"variants/{number}"
