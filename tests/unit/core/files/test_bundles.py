from __future__ import annotations

import io
import json
import random
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadBundle
from fractune_core.files.bundles import MANIFEST, Bundle, object_entry, write_archive, write_bundle
from tests.support.client_samples import bundle_bytes


def a_bundle() -> bytes:
    return bundle_bytes(variants=[{"name": "untuned", "objects": ["lib0.o"]}])


def rewritten(**entries: bytes | None) -> bytes:
    """The bundle with entries replaced, added or (None) left out, its manifest's digest made to fit."""
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    new = {name: payload for name, payload in {**old, **entries}.items() if payload is not None}
    file = io.BytesIO()
    write_archive(file, new.pop(MANIFEST), new)
    return file.getvalue()


def contents(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """All that a bundle says."""
    bundle = Bundle(data)
    bundle.verify()
    return bundle.manifest, [bundle.read(name) for name in bundle.manifest["sha256"]]


def test_what_was_written_is_read() -> None:
    bundle = Bundle(a_bundle())
    assert bundle.objects("untuned") == [b"no code"]
    assert bundle.records() == []
    assert bundle.signature is None
    assert bundle.measured("cpu") == {}


def test_records_are_lines_of_json() -> None:
    file = io.BytesIO()
    entries = {"records.jsonl": b'{"a": 1}\n{"a": 2}\n', "weights.bin": b"", object_entry(0, "lib0.o"): b"code"}
    write_bundle(file, {**Bundle(a_bundle()).manifest, "format": 2}, entries)
    assert Bundle(file.getvalue()).records() == [{"a": 1}, {"a": 2}]


def test_parts_of_a_large_entry_are_read_into_buffers_of_their_own() -> None:
    payload = random.Random(0).randbytes((1 << 21) + 77)
    file = io.BytesIO()
    entries = {"records.jsonl": b"", "weights.bin": payload, object_entry(0, "lib0.o"): b"code"}
    write_bundle(file, Bundle(a_bundle()).manifest, entries)
    bundle = Bundle(file.getvalue())
    wanted = [(1 << 20, 1 << 17), (0, 5), (0, 0), (7, (1 << 16) + 1), (len(payload) - 3, 3)]
    parts = [(begin, bytearray(size)) for begin, size in wanted]
    bundle.read_parts("weights.bin", ((begin, memoryview(buffer)) for begin, buffer in parts))
    for begin, buffer in parts:
        assert bytes(buffer) == payload[begin : begin + len(buffer)]
    for begin, size in ((0, len(payload) + 1), (len(payload) - 1, 2)):
        with pytest.raises(BadBundle, match="size"):
            bundle.read_parts("weights.bin", [(begin, memoryview(bytearray(size)))])


def test_measured_times_are_by_units_and_variant() -> None:
    bundle = Bundle(bundle_bytes(measured={"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}, "cpu:1": {"untuned": 0.0}}))
    assert bundle.measured("cpu") == {4: {"cpu:4": 1e-3, "untuned": 2e-3}}
    assert bundle.measured("mps") == {}


def test_the_times_that_choose_are_those_measured_where_a_bundle_does_not_hold_them_apart() -> None:
    measured = {"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}}
    assert Bundle(bundle_bytes(measured=measured)).choosing("cpu") == {4: measured["cpu:4"]}
    choosing = {"cpu:4": {"cpu:4": 0.9e-3, "untuned": 2.1e-3}}
    assert Bundle(bundle_bytes(measured=measured, choosing=choosing)).choosing("cpu") == {4: choosing["cpu:4"]}


@pytest.mark.parametrize("choosing", [{}, {"cpu:4": {"cpu:4": 1e-3}}, {"cpu:4": {"cpu:4": 1e-3, "untuned": 0}}, [1], 1])
def test_times_that_choose_of_other_variants_than_those_measured_are_refused(choosing: object) -> None:
    measured = {"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}}
    with pytest.raises(BadBundle, match="'choosing' is not seconds of the shares and variants of 'measured'"):
        Bundle(bundle_bytes(measured=measured, choosing=choosing))


def test_the_same_contents_make_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_bundle()
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(1_000_000_000))
    assert a_bundle() == first


def test_a_variant_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(BadBundle, match=r"no variant 'cpu:9'; it has untuned"):
        Bundle(a_bundle()).objects("cpu:9")


def test_a_file_torn_anywhere_is_refused(tmp_path: Path) -> None:
    whole, path = a_bundle(), tmp_path / "torn.fractune"
    for length in {*range(0, len(whole), 13), *range(len(whole) - 150, len(whole))}:
        path.write_bytes(whole[:length])
        with pytest.raises(BadBundle, match="torn"):
            Bundle(path)


def test_a_changed_byte_is_noticed_or_changes_nothing() -> None:
    """A zip has bytes without a meaning (dates, attributes); all others are held by digests."""
    whole = a_bundle()
    expected = contents(whole)
    rng = random.Random(1)
    refused = 0
    for offset in range(len(whole)):
        changed = bytearray(whole)
        changed[offset] ^= rng.randrange(1, 256)
        try:
            found = contents(bytes(changed))
        except BadBundle:
            refused += 1
        else:
            assert found == expected, offset
    assert refused > len(whole) * 0.8


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"weights.bin": None}, "'weights.bin' is missing"),
        ({"more.bin": b"x"}, "'more.bin' does not belong to it"),
        ({"weights.bin": b"other"}, "'weights.bin' does not match its digest"),
        ({MANIFEST: b"{"}, "not a fractune bundle"),
        ({MANIFEST: b"[]"}, "bundle format None"),
        ({MANIFEST: None}, "not a fractune bundle"),
    ],
)
def test_entries_that_do_not_fit_are_named(entries: dict[str, bytes | None], says: str) -> None:
    if MANIFEST in entries and entries[MANIFEST] is None:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("weights.bin", b"")
        data = file.getvalue()
    else:
        data = rewritten(**entries)
    with pytest.raises(BadBundle, match=says):
        Bundle(data).verify()


def test_a_changed_manifest_is_noticed_though_its_checksum_was_made_to_fit() -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name).replace(b"rocketlake", b"rocketlaka"))
        new.comment = old.comment
    with pytest.raises(BadBundle, match=r"'manifest.json' does not match its digest"):
        Bundle(file.getvalue())


@pytest.mark.parametrize(("number", "do"), [(1, "make it again"), (None, "make it again"), (4, "upgrade fractune")])
def test_another_format_says_what_to_do(number: int | None, do: str) -> None:
    manifest = json.dumps({**Bundle(a_bundle()).manifest, "format": number}).encode()
    with pytest.raises(BadBundle, match=do):
        Bundle(rewritten(**{MANIFEST: manifest}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"device": None}, "'device' is missing"),
        ({"device": {"kind": "cpu"}}, "'device' is not an object with kind, isa, units, memory_gib and l2_kib"),
        ({"inputs": {"x": 1}}, "'inputs' is not a list of name, dtype and shape"),
        ({"inputs": [{"name": "x", "dtype": "float32", "shape": [-1]}]}, "'inputs' is not"),
        ({"outputs": [{"name": "y", "dtype": "float32", "shape": "3"}]}, "'outputs' is not"),
        ({"weights": 3}, "'weights' is not a list"),
        ({"code": {"architecture": "x86_64"}}, "'code' is not"),
        ({"shares": {"cpu:1": {"units": 0}}}, "'shares' is not"),
        ({"shares": {}}, "the variant 'cpu:1' is not among 'shares'"),
        ({"variants": []}, "'variants' is not"),
        ({"variants": [{"name": "untuned", "objects": ["lib0.o"]}] * 2}, "two of 'variants' have one name"),
        ({"measured": {"cpu:1": {"cpu:1": -1.0}}}, "'measured' is not seconds"),
        ({"measured": {"cpu:9": {"cpu:1": 1.0}}}, "'measured' has the share 'cpu:9'"),
        ({"measured": {"cpu:1": {"cpu:9": 1.0}}}, "'measured' has a variant 'cpu:9'"),
        ({"measured": []}, "'measured' is not seconds"),
    ],
)
def test_a_manifest_that_lacks_something_is_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        Bundle(bundle_bytes(**changes))


def test_a_manifest_that_names_an_object_which_is_not_there() -> None:
    with pytest.raises(BadBundle, match=r"'variants/0/lib9.o' is missing"):
        Bundle(bundle_bytes(variants=[{"name": "untuned", "objects": ["lib9.o"]}]))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="no such file"):
        Bundle(tmp_path / "none.fractune")
