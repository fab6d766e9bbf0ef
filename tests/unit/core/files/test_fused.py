"""The file of a fused model: the same bytes for the same contents, and what is refused."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadModel, BadRequest
from fractune_core.files.archives import BadArchive
from fractune_core.files.fused import MOST_SLOTS, check_slots, is_fused, read_fused, write_fused


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for path in paths:
        path.write_bytes(path.name.encode())
    return paths


def written(models: list[Path], slots: int) -> bytes:
    file = io.BytesIO()
    write_fused(file, [path.stem for path in models], models, slots)
    return file.getvalue()


def test_what_is_written_is_read(models: list[Path]) -> None:
    found = read_fused(written(models, 3))
    assert found is not None
    assert (found.names, found.payloads) == (("a", "b"), (b"a.onnx", b"b.onnx"))
    assert found.slot_names == ["a", "b", None]
    assert written(models, 3) == written(models, 3)


def test_other_files_are_none(models: list[Path], tmp_path: Path) -> None:
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("archive/data", b"")
    assert read_fused(other.getvalue()) is None
    (tmp_path / "c.fused").write_bytes(written(models, 2))
    assert is_fused(tmp_path / "c.fused")
    assert not is_fused(models[0])
    assert not is_fused(tmp_path / "missing")


def archive_of(header: Any, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("fused.json", header if isinstance(header, str) else json.dumps(header))
        for number in range(2):
            archive.writestr(f"variants/{number}", b"model")
    return file.getvalue()


GOOD = {"format": 1, "variants": ["a", "b"], "slots": 2}


@pytest.mark.parametrize(
    "header",
    [
        "{",
        "[]",
        {**GOOD, "variants": ["a", "a"]},
        {**GOOD, "variants": ["a"]},
        {**GOOD, "variants": ["a", 1]},
        {**GOOD, "variants": ["a", "b\x1b[2J"]},
        {**GOOD, "variants": ["a", "b" * 201]},
        {**GOOD, "variants": ["a", "b", "c"], "slots": 3},
        {**GOOD, "slots": 1},
        {**GOOD, "slots": "2"},
        {**GOOD, "slots": MOST_SLOTS + 1},
    ],
)
def test_a_damaged_file_is_refused(header: Any) -> None:
    with pytest.raises(BadModel, match="damaged fused model; make it again"):
        read_fused(archive_of(header))


def test_other_formats_and_compressed_entries_are_refused(models: list[Path]) -> None:
    assert read_fused(archive_of(GOOD)) is not None
    with pytest.raises(BadModel, match="of format 2, this fractune reads 1"):
        read_fused(archive_of({**GOOD, "format": 2}))
    with pytest.raises(BadArchive, match=r"entry 'fused\.json' is compressed"):
        read_fused(archive_of(GOOD, zipfile.ZIP_DEFLATED))
    torn = bytearray(written(models, 2))
    at = torn.index(b"a.onnx")
    torn[at] ^= 1
    with pytest.raises(BadModel, match="damaged"):
        read_fused(bytes(torn))


def test_slots_are_one_for_each_variant_or_more() -> None:
    assert check_slots(2, None) == 2
    assert check_slots(2, 8) == 8
    for variants, slots, complaint in (
        (1, None, "1 model given: fusing takes two variants of a model or more"),
        (3, 2, "slots is 2, and 3 variants are given; it must be 3 or more"),
        (2, 0, "slots is 0"),
        (2, MOST_SLOTS + 1, f"has {MOST_SLOTS} at most"),
    ):
        with pytest.raises(BadRequest, match=complaint):
            check_slots(variants, slots)
