import hashlib
import io
import json
import os
import random
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files import archives, sealed
from fractune_core.files.bundles import WEIGHTS, Bundle, object_entry, write_bundle
from fractune_core.files.sealed import MANIFEST, write_archive, write_sealed
from tests.support.client_samples import DEVICE, bundle_bytes, variants


def a_bundle() -> bytes:
    return bundle_bytes(variants=variants("untuned"))


def tensor(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "dtype": "float32", "shape": [2], **changes}


def weight(**changes: Any) -> dict[str, Any]:
    return {"dtype": "float32", "shape": [2], "offset": 0, "size": 8, **changes}


def rewritten(**entries: bytes | None) -> bytes:
    """The bundle with entries replaced, added or (None) left out, its manifest's digest made to fit."""
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as archive:
        old = {name: archive.read(name) for name in archive.namelist()}
    new = {name: payload for name, payload in {**old, **entries}.items() if payload is not None}
    file = io.BytesIO()
    write_archive(file, new.pop(MANIFEST), new)
    return file.getvalue()


def test_what_was_written_is_read() -> None:
    bundle = Bundle(a_bundle())
    assert bundle.objects("untuned") == [b"no code"]
    assert bundle.records() == []
    assert bundle.signature is None
    assert bundle.measured("cpu") == {}


def test_records_are_lines_of_json() -> None:
    file = io.BytesIO()
    entries = {"records.jsonl": b'{"a": 1}\n{"a": 2}\n', "weights.bin": b"", object_entry(0, "lib0.o"): b"code"}
    write_bundle(file, Bundle(a_bundle()).manifest, entries)
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


def test_parts_of_a_large_entry_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "_CHUNK_BYTES", 7)
    payload, file = random.Random(0).randbytes(77), io.BytesIO()
    entries = {"records.jsonl": b"", "weights.bin": payload, object_entry(0, "lib0.o"): b"code"}
    write_bundle(file, Bundle(a_bundle()).manifest, entries)
    bundle = Bundle(file.getvalue())
    places = [(0, 0), (0, 5), (5, 9), (14, 0), (14, 7), (30, 40), (77, 0)]
    found = list(bundle.parts("weights.bin", places))
    assert found == [payload[begin : begin + size] for begin, size in places]
    for wrong in ((70, 8), (77, 1), (78, 0)):
        with pytest.raises(BadBundle, match="is not of the size that"):
            list(bundle.parts("weights.bin", [wrong]))


def test_a_part_is_looked_at_while_it_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model has hundreds of weights, and thousands of chunks."""
    looks = 0

    class Begin(int):
        def __add__(self, other: int) -> int:
            nonlocal looks
            looks += 1
            return int(self) + other

    monkeypatch.setattr(archives, "_CHUNK_BYTES", 64)
    file, count = io.BytesIO(), 64
    entries = {"records.jsonl": b"", "weights.bin": bytes(64 * count), object_entry(0, "lib0.o"): b"code"}
    write_bundle(file, Bundle(a_bundle()).manifest, entries)
    parts = [(Begin(64 * at), memoryview(bytearray(64))) for at in range(count)]
    Bundle(file.getvalue()).read_parts("weights.bin", parts)
    assert looks <= 4 * count


def test_the_pieces_of_an_entry_are_made_twice() -> None:
    """Those of weights are read from scratch files each time."""
    made = 0

    class Pieces(Iterable[bytes]):
        def __iter__(self) -> Iterator[bytes]:
            nonlocal made
            made += 1
            return iter([b"0123", b"456"])

    file = io.BytesIO()
    entries: dict[str, Iterable[bytes]] = {"records.jsonl": [b""], "weights.bin": Pieces()}
    write_sealed(file, Bundle.KIND, Bundle(a_bundle()).manifest, {**entries, object_entry(0, "lib0.o"): [b"code"]})
    assert Bundle(file.getvalue()).read("weights.bin") == b"0123456"
    assert made == 2


def test_times_are_by_units_and_variant_and_those_that_choose_are_apart() -> None:
    bundle = Bundle(bundle_bytes(measured={"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}, "cpu:1": {"untuned": 0.0}}))
    assert bundle.measured("cpu") == {4: {"cpu:4": 1e-3, "untuned": 2e-3}}
    assert bundle.measured("mps") == {}
    bundle = Bundle(bundle_bytes(measured={"cpu:1": {"untuned": 18.0, "cpu:4": 1e-3}, "cpu:4": {"untuned": 11.0}}))
    assert [bundle.untuned_sum_s(share) for share in ("cpu:1", "cpu:4", "cpu:1500m")] == [18.0, 11.0, 11.0]
    assert Bundle(bundle_bytes(measured={"cpu:4": {"untuned": 0.0}})).untuned_sum_s("cpu:4") == 0.0
    measured = {"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}}
    choosing = {"cpu:4": {"cpu:4": 0.9e-3, "untuned": 2.1e-3}}
    assert Bundle(bundle_bytes(measured=measured, choosing=choosing)).choosing("cpu") == {4: choosing["cpu:4"]}


@pytest.mark.parametrize(
    "choosing", [None, {}, {"cpu:4": {"cpu:4": 1e-3}}, {"cpu:4": {"cpu:4": 1e-3, "untuned": 0}}, [1], 1]
)
def test_times_that_choose_of_other_variants_than_those_measured_are_refused(choosing: object) -> None:
    measured = {"cpu:4": {"cpu:4": 1e-3, "untuned": 2e-3}}
    with pytest.raises(BadBundle, match="'choosing' is not seconds of the shares and variants of 'measured'"):
        Bundle(bundle_bytes(measured=measured, choosing=choosing))


@pytest.mark.parametrize(
    "dims", [[], {"y": [2]}, {"x": [3]}, {"x": [None, None]}, {"x": ["a\n"]}, {"x": [2.0]}, {"x": 2}]
)
def test_axes_of_a_file_that_are_not_those_of_its_inputs_are_refused(dims: object) -> None:
    inputs = [tensor()]
    assert Bundle(bundle_bytes(inputs=inputs, dims={"x": ["length"]})).manifest["dims"]
    with pytest.raises(BadBundle, match="'dims'"):
        Bundle(bundle_bytes(inputs=inputs, dims=dims))


def test_the_same_contents_make_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    first = a_bundle()
    monkeypatch.setattr(time, "localtime", lambda *_: time.gmtime(1_000_000_000))
    assert a_bundle() == first


def test_a_variant_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(BadBundle, match=r"no variant 'cpu:9'; it has untuned"):
        Bundle(a_bundle()).objects("cpu:9")


def test_a_file_of_another_kind_is_refused_without_the_words_of_the_zip_library(tmp_path: Path) -> None:
    path = tmp_path / "m.fractune"
    path.write_bytes(b"no zip")
    said = "m.fractune: not a fractune bundle, or torn: it is not a whole zip archive; make it again"
    with pytest.raises(BadBundle, match=f"^{said}$"):
        Bundle(path)


def test_a_file_torn_anywhere_is_refused(tmp_path: Path) -> None:
    whole, path = a_bundle(), tmp_path / "torn.fractune"
    for length in {*range(0, len(whole), 13), *range(len(whole) - 150, len(whole))}:
        path.write_bytes(whole[:length])
        with pytest.raises(BadBundle, match="torn"):
            Bundle(path)


def test_every_changed_byte_is_noticed() -> None:
    """Of a signed bundle: in its entries, their headers, the directory and the comment."""
    file = io.BytesIO()
    Bundle(a_bundle()).copy_to(file, b"s" * 64)
    whole = file.getvalue()
    Bundle(whole).verify()
    for offset in range(len(whole)):
        for bits in (1, 0x80):
            changed = bytearray(whole)
            changed[offset] ^= bits
            with pytest.raises(BadBundle, match=r"^bundle: "):
                Bundle(bytes(changed)).verify()


def test_bytes_before_between_and_after_the_entries_are_noticed() -> None:
    whole = a_bundle()
    directory = whole.index(b"PK\x01\x02")
    end = len(whole) - len(zipfile.ZipFile(io.BytesIO(whole)).comment) - 22
    at = int.from_bytes(whole[end + 16 : end + 20], "little")
    assert at == directory
    moved = whole[: end + 16] + (at + 3).to_bytes(4, "little") + whole[end + 20 :]
    for changed, place in (
        (b"abc" + whole, r"byte 0 of the file, in the place before the first entry"),
        (moved[:directory] + b"abc" + moved[directory:], r"byte \d+ of the file, in entry 'variants/0/lib0.o'"),
        (whole + b"abc", r"byte \d+ of the file, in the central directory|torn"),
    ):
        with pytest.raises(BadBundle, match=place):
            Bundle(changed).verify()


def zipped(entries: list[tuple[str, bytes, int]]) -> bytes:
    """A zip file of names, contents and how each is compressed, with the comment that fits its manifest."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, payload, method in entries:
            archive.writestr(zipfile.ZipInfo(name), payload, method)
        manifest = next(payload for name, payload, _ in reversed(entries) if name == MANIFEST)
        archive.comment = f"fractune manifest sha256 {hashlib.sha256(manifest).hexdigest()}".encode()
    return file.getvalue()


@pytest.mark.parametrize("name", [MANIFEST, WEIGHTS])
def test_a_compressed_entry_is_refused_and_not_unpacked(name: str) -> None:
    large = 1 << 24
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as archive:
        entries = [(each, archive.read(each), zipfile.ZIP_STORED) for each in archive.namelist()]
    packed = [
        (each, payload + b" " * large, zipfile.ZIP_DEFLATED) if each == name else (each, payload, method)
        for each, payload, method in entries
    ]
    data = zipped(packed)
    assert len(data) < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(BadBundle, match=f"entry '{name}' is compressed"):
            Bundle(data)
        assert tracemalloc.get_traced_memory()[1] < large / 8
    finally:
        tracemalloc.stop()


def test_two_entries_of_one_name_are_refused() -> None:
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as archive:
        entries = [(each, archive.read(each), zipfile.ZIP_STORED) for each in archive.namelist()]
    with pytest.raises(BadBundle, match=r"two entries named 'weights\.bin'"):
        Bundle(zipped([*entries, ("weights.bin", b"", zipfile.ZIP_STORED)]))


def test_a_manifest_beyond_its_limit_is_neither_read_nor_written(monkeypatch: pytest.MonkeyPatch) -> None:
    data = a_bundle()
    monkeypatch.setattr(sealed, "MOST_MANIFEST_BYTES", 500)
    with pytest.raises(BadBundle, match=r"'manifest\.json' is larger than 500 bytes"):
        Bundle(data)
    with pytest.raises(BadRequest, match="500 is the limit; ask for fewer shares"):
        a_bundle()


def test_a_signature_beyond_its_limit_is_not_read() -> None:
    file = io.BytesIO()
    Bundle(a_bundle()).copy_to(file, bytes(2000))
    with pytest.raises(BadBundle, match=r"'manifest\.sig' is larger than"):
        Bundle(file.getvalue())


def test_a_signature_is_checked_before_anything_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    class NotTrustedError(Exception):
        pass

    def refuse(name: str, manifest: bytes, signature: bytes | None) -> None:
        raise NotTrustedError(name, len(manifest), signature)

    def parse(_: object) -> None:
        raise AssertionError("parsed first")

    data = a_bundle()
    expected = ("bundle", len(Bundle(data).manifest_bytes), None)
    monkeypatch.setattr(sealed, "read_json", parse)
    with pytest.raises(NotTrustedError) as caught:
        Bundle(data, refuse)
    assert caught.value.args == expected


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


@pytest.mark.parametrize(
    ("number", "do"),
    [
        *((number, "make it again") for number in (1, 2, None, 3.0, True)),
        ("4", "bundle format '4', this fractune reads 4; make it again"),
        (5, "upgrade fractune"),
    ],
)
def test_another_format_says_what_to_do(number: Any, do: str) -> None:
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
        ({"shares": {"cpu:\x1b[2J": {"units": 1}}}, "'shares' is not"),
        ({"variants": variants("\x1b[2J")}, "'variants' is not"),
        *(
            (
                {"variants": [{"name": "untuned", "objects": [name], "weights": []}]},
                r"'variants' is not .* objects such as kernel\.o",
            )
            for name in ("../x.o", "/x.o", "a/x.o", "..", "x", ".o", "x.o\n", "\x1b.o", 3)
        ),
        ({"model": {"name": "two\nlines", "sha256": ""}}, "'model' is not"),
        ({"model": {"name": "m", "sha256": "", "metadata": []}}, "'model' is not"),
        ({"model": {"name": "m", "sha256": "", "metadata": {"domain": 1}}}, "and metadata as texts"),
        ({"model": {"name": "m", "sha256": "", "metadata": {"version": "1"}}}, "'model' is not"),
        ({"model": {"name": "m", "sha256": "", "metadata": {"custom_metadata_map": {"a": 1}}}}, "'model' is not"),
        ({"target": "\u202e"}, "'target' is not the JSON of a target"),
        ({"slots": ["\x1b[2J"], "apart": []}, "'slots' and 'apart' are not"),
        ({"caches": [{"input": [], "output": "y", "axis": 0}]}, "'caches' is not a list of objects"),
        ({"caches": [{"input": "x", "output": "none", "axis": 0}]}, "'caches' name an input, an output or an axis"),
        ({"shares": {}}, "the variant 'cpu:1' is not among 'shares'"),
        ({"variants": []}, "'variants' is not"),
        (
            {"variants": variants("untuned", "untuned")},
            "two of 'variants' have one name",
        ),
        ({"variants": [{"name": "untuned", "objects": ["lib9.o"], "weights": []}]}, "'variants/0/lib9.o' is missing"),
        ({"measured": {"cpu:1": {"cpu:1": -1.0}}}, "'measured' is not seconds"),
        ({"measured": {"cpu:9": {"cpu:1": 1.0}}}, "'measured' has the share 'cpu:9'"),
        ({"measured": {"cpu:1": {"cpu:9": 1.0}}}, "'measured' has a variant 'cpu:9'"),
        ({"measured": []}, "'measured' is not seconds"),
        ({"measured": {"cpu:1": {"cpu:1": 10**400}}}, "'measured' is not seconds"),
        ({"measured": {"cpu:1": {"cpu:1": 1e-320}}}, "'measured' is not seconds"),
        ({"shares": {"cpu:1": {"units": 10**400}, "cpu:4": {"units": 4}}}, "'shares' is not"),
        ({"device": {**DEVICE.to_json(), "label": [1]}}, "'device' is not"),
        ({"target": "\ud800"}, "'target' is not the JSON of a target"),
        ({"target": '{"kind":"llvm","cl-opt":["-x"]}'}, "'target' is not the JSON of a target"),
        ({"inputs": [tensor(shape=[True])]}, "'inputs' is not"),
        ({"inputs": [tensor(shape=[10**30])]}, r"inputs\[0\] has the shape \[10+\], which is too large"),
        ({"inputs": [tensor(shape=[0, 10**30])]}, r"inputs\[0\] has the shape .* too large"),
        ({"outputs": [tensor(shape=[None, 2**40])]}, r"outputs\[0\] has the shape .* too large"),
        ({"outputs": [tensor(shape=[1] * 40)]}, r"outputs\[0\] has the shape .* too large"),
        ({"inputs": [tensor(), tensor(dtype="O")]}, r"inputs\[1\] has the unknown type 'O'"),
        ({"inputs": [tensor(), tensor()]}, "two of 'inputs' have one name"),
        ({"outputs": [tensor(), tensor()]}, "two of 'outputs' have one name"),
        ({"weights": [weight(size=4)]}, r"weights\[0\] has 4 bytes, and its type and shape have not"),
        ({"weights": [weight(offset=4)]}, r"weights\[0\] does not begin at a multiple of 64"),
        ({"weights": [weight()] * 2}, r"weights\[1\] does not begin .* after the weight before it"),
        ({"weights": [weight(offset=1 << 40)]}, "'weights.bin' is shorter than the weights"),
        ({"weights": [weight(shape=[2**62, 0], size=0)]}, r"weights\[0\] has the shape .* too large"),
        ({"weights": [weight(dtype="float99")]}, r"weights\[0\] has the unknown type 'float99'"),
    ],
)
def test_a_manifest_that_lacks_something_is_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        Bundle(bundle_bytes(weight_bytes=bytes(16), **changes))


def test_a_manifest_that_lists_itself() -> None:
    with zipfile.ZipFile(io.BytesIO(a_bundle())) as archive:
        manifest = json.loads(archive.read(MANIFEST))
    manifest["sha256"][MANIFEST] = "0" * 64
    with pytest.raises(BadBundle, match=r"'manifest\.json' does not belong to it"):
        Bundle(rewritten(**{MANIFEST: json.dumps(manifest).encode()}))


def test_no_file_a_folder_and_a_pipe(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match="no such file"):
        Bundle(tmp_path / "none.fractune")
    with pytest.raises(BadBundle, match="this is a folder; name the bundle file in it"):
        Bundle(tmp_path)
    with pytest.raises(BadBundle, match=r"^\.: this is a folder"):
        Bundle(Path())
    os.mkfifo(tmp_path / "pipe.fractune")
    with pytest.raises(BadBundle, match="it is a pipe, and not a file"):
        Bundle(tmp_path / "pipe.fractune")


def test_the_whole_models_times_are_added_and_all_else_stays() -> None:
    before, file = Bundle(a_bundle()), io.BytesIO()
    before.copy_to(file, timed={"cpu:1": 8.7e-3, "cpu:4": 3e-3})
    after = Bundle(file.getvalue())
    after.verify()
    assert after.timed("cpu") == {1: 8.7e-3, 4: 3e-3}
    assert after.timed("mps") == {}
    assert {**after.manifest, "timed": None} == {**before.manifest, "timed": None}
    assert after.objects("untuned") == before.objects("untuned")


def test_a_further_entry_is_added_and_an_entry_of_its_name_replaced() -> None:
    once, twice = io.BytesIO(), io.BytesIO()
    Bundle(a_bundle()).copy_to(once, extra={"model.onnx": b"first"}, more=1)
    Bundle(once.getvalue()).copy_to(twice, extra={"model.onnx": b"second"})
    found = Bundle(twice.getvalue())
    found.verify()
    assert (found.read("model.onnx"), found.manifest["more"]) == (b"second", 1)
    assert found.objects("untuned") == [b"no code"]


@pytest.mark.parametrize(
    "timed", [{"cpu:1": 0}, {"cpu:1": "8 ms"}, {"cpu:9": 1.0}, {"cpu:1": {"cpu:1": 1.0}}, [1.0], 2]
)
def test_times_that_can_be_none_are_refused(timed: Any) -> None:
    with pytest.raises(BadBundle, match="'timed' is not seconds by some of 'shares'"):
        Bundle(bundle_bytes(timed=timed))
