import io
import json
import random
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.buckets import Buckets, OpenAxes, Padding, open_axes
from fractune_core.files.bundles import JOINED_FORMAT, WEIGHTS, Bundle
from fractune_core.files.joined import join_bundles
from fractune_core.files.sealed import MANIFEST, write_archive
from tests.support.client_samples import bundle_bytes

SMALL, LARGE = [1, 8], [1, 16]
FIRST, SECOND, THIRD = (bytes([number]) * 8 for number in (1, 2, 3))


def weights_of(*payloads: bytes) -> tuple[bytes, list[dict[str, Any]]]:
    """The bytes and the descriptions of weights of 8 bytes each."""
    lies = [{"dtype": "float32", "shape": [2], "offset": 64 * place, "size": 8} for place in range(len(payloads))]
    return b"".join(payload.ljust(64, b"\0") for payload in payloads), lies


def one_of(shape: list[int], *payloads: bytes, **changes: Any) -> Bundle:
    held, described = weights_of(*payloads)
    inputs = [{"name": "ids", "dtype": "int64", "shape": shape}]
    places = list(range(len(described)))
    variants = [{"name": name, "objects": ["lib0.o"], "weights": places} for name in ("untuned", "cpu:1", "cpu:4")]
    changes = {"variants": variants, "weights": described, "inputs": inputs, "job": f"job-{shape[1]}", **changes}
    return Bundle(bundle_bytes(held, **changes))


def joined(*bundles: Bundle) -> bytes:
    file = io.BytesIO()
    axes = open_axes([bundle.manifest for bundle in bundles]) if len(bundles) == 2 else OpenAxes({}, {})
    join_bundles(file, bundles, Buckets(axes, {}, Padding(proved=False, reason="")))
    return file.getvalue()


def rewritten(data: bytes, **changes: Any) -> bytes:
    """The bundle with fields of its manifest replaced; the manifest's digest fits."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    manifest = {**json.loads(entries.pop(MANIFEST)), **changes}
    file = io.BytesIO()
    write_archive(file, json.dumps(manifest).encode(), entries)
    return file.getvalue()


def read_weights(bundle: Bundle, variant: str) -> list[bytes]:
    described = [bundle.manifest["weights"][place] for place in bundle.weights_of(variant)]
    rooms = [bytearray(each["size"]) for each in described]
    placed = zip(described, rooms, strict=True)
    bundle.read_parts(WEIGHTS, ((each["offset"], memoryview(room)) for each, room in placed))
    return [bytes(room) for room in rooms]


def test_members_are_what_was_joined_over_weights_that_are_stored_once() -> None:
    variants = [{"name": "untuned", "objects": ["lib0.o"], "weights": [1, 0]}]
    whole = Bundle(joined(one_of(SMALL, FIRST, SECOND), one_of(LARGE, SECOND, THIRD, variants=variants)))
    whole.verify()
    small, large = whole.members
    assert [each.manifest["inputs"][0]["shape"] for each in (small, large)] == [SMALL, LARGE]
    assert [each.manifest["job"] for each in (small, large)] == ["job-8", "job-16"]
    assert len(whole.manifest["weights"]) == 3
    assert whole.size(WEIGHTS) == 2 * 64 + 8
    assert read_weights(small, "cpu:4") == [FIRST, SECOND]
    assert read_weights(large, "untuned") == [THIRD, SECOND]
    assert large.objects("untuned") == [b"no code"]
    assert small.units("cpu") == {"cpu:1": 1, "cpu:4": 4}
    assert (small.members, whole.manifest["format"]) == ([], JOINED_FORMAT)


def test_a_bundle_for_several_shapes_looks_like_that_of_the_largest() -> None:
    whole = Bundle(joined(one_of(SMALL), one_of(LARGE)))
    assert whole.manifest["inputs"][0]["shape"] == LARGE
    assert whole.objects("cpu:1") == [b"no code"]
    file = io.BytesIO()
    whole.copy_to(file, b"s" * 64, note="more")
    copied = Bundle(file.getvalue())
    copied.verify()
    assert [each.manifest["inputs"][0]["shape"] for each in copied.members] == [SMALL, LARGE]
    assert (copied.manifest["note"], copied.signature) == ("more", b"s" * 64)


def test_the_weights_are_in_memory_once(tmp_path: Path) -> None:
    """Those of a language model are gigabytes, and a bundle has a member for each size of its inputs."""
    count, size = 64, 1 << 18
    held = random.Random(0).randbytes(count * size)
    lies = [{"dtype": "float32", "shape": [size // 4], "offset": size * at, "size": size} for at in range(count)]
    variants = [{"name": "untuned", "objects": ["lib0.o"], "weights": list(range(count))}]
    inputs = ({"inputs": [{"name": "ids", "dtype": "int64", "shape": shape}]} for shape in (SMALL, LARGE))
    bundles = [Bundle(bundle_bytes(held, variants=variants, weights=lies, **each)) for each in inputs]
    buckets = Buckets(open_axes([each.manifest for each in bundles]), {}, Padding(proved=False, reason=""))
    with (tmp_path / "joined.fractune").open("wb") as file:
        tracemalloc.start()
        try:
            join_bundles(file, bundles, buckets)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert most <= 1.3 * len(held)


def test_the_same_bundles_make_the_same_file() -> None:
    assert joined(one_of(SMALL, FIRST), one_of(LARGE, FIRST)) == joined(one_of(SMALL, FIRST), one_of(LARGE, FIRST))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"name": "n.onnx", "sha256": "cd"}}, "bundle and bundle differ in 'model'; join bundles of one"),
        ({"target": '{"kind":"llvm","mcpu":"znver3"}'}, "differ in 'target'"),
        ({"slots": ["a"], "apart": [], "outputs": []}, "is of a fused model, which cannot be joined"),
    ],
)
def test_bundles_that_do_not_belong_together_are_refused(changes: dict[str, Any], says: str) -> None:
    two = (one_of(SMALL), one_of(LARGE, **changes))
    with pytest.raises(BadRequest, match=says):
        join_bundles(io.BytesIO(), two, Buckets(OpenAxes({}, {}), {}, Padding(proved=False, reason="")))


def test_what_cannot_be_joined_is_refused() -> None:
    with pytest.raises(BadRequest, match="no bundle to join"):
        joined()
    with pytest.raises(BadRequest, match="65 bundles to join, and 64 is the limit"):
        joined(*[one_of(SMALL)] * 65)
    with pytest.raises(BadRequest, match="joined already; name the bundles that it was made of"):
        joined(Bundle(joined(one_of(SMALL), one_of(LARGE))))


@pytest.mark.parametrize(
    ("members", "says"),
    [
        ([], "'members' is not a list of 1 to 64 objects"),
        ({"0": {}}, "'members' is not a list"),
        ([1], "'members' is not a list"),
        ([{}], r"members\[0\]: 'inputs' is missing"),
        ([{}] * 65, "'members' is not a list of 1 to 64 objects"),
        ([{"weights": []}], r"members\[0\] has 'weights', which all members share"),
    ],
)
def test_members_that_are_none_are_refused(members: Any, says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        Bundle(rewritten(joined(one_of(SMALL)), members=members))


def test_a_member_whose_code_is_missing_is_refused() -> None:
    data = joined(one_of(SMALL), one_of(LARGE))
    small, large = Bundle(data).written["members"]
    variants = [{"name": "untuned", "objects": ["lib9.o"], "weights": []}]
    with pytest.raises(BadBundle, match=r"'members/1/variants/0/lib9\.o' is missing"):
        Bundle(rewritten(data, members=[small, {**large, "variants": variants}]))


PADDING = Padding(proved=False, reason="not compared yet")


def member(inputs: dict[str, list[int]], outputs: dict[str, list[int | None]]) -> dict[str, Any]:
    return {
        "inputs": [{"name": name, "dtype": "int64", "shape": shape} for name, shape in inputs.items()],
        "outputs": [{"name": name, "dtype": "float32", "shape": shape} for name, shape in outputs.items()],
    }


def encoder(batch: int, length: int, **outputs: list[int | None]) -> dict[str, Any]:
    inputs = {"ids": [batch, length], "mask": [batch, length], "table": [7]}
    return member(inputs, outputs or {"hidden": [batch, length, 4], "pooled": [batch, 4]})


def test_axes_with_equal_sizes_share_a_symbol() -> None:
    axes = open_axes([encoder(1, 8), encoder(1, 16), encoder(2, 8), encoder(2, 16)])
    assert axes.inputs == {"ids": ["batch", "length"], "mask": ["batch", "length"], "table": [None]}
    assert axes.outputs == {"hidden": ["batch", "length", None], "pooled": ["batch", None]}
    assert axes.symbols == ["batch", "length"]
    assert axes.sizes({"ids": [2, 5], "mask": [2, 5], "table": [7]}) == {"batch": 2, "length": 5}
    assert not axes.is_batch_first  # the table has no batch


def test_a_batch_is_the_first_of_several_axes() -> None:
    assert open_axes([member({"x": [1, 3]}, {"y": [1]}), member({"x": [2, 3]}, {"y": [2]})]).is_batch_first
    of_text = open_axes([member({"ids": [8]}, {"y": [8]}), member({"ids": [16]}, {"y": [16]})])
    assert of_text.inputs == {"ids": ["length"]}
    assert not of_text.is_batch_first
    two = open_axes([member({"a": [1, 8], "b": [1, 4]}, {}), member({"a": [1, 9], "b": [1, 6]}, {})])
    assert two.inputs == {"a": [None, "length"], "b": [None, "length2"]}


def test_an_output_may_follow_no_input() -> None:
    axes = open_axes([encoder(1, 8, y=[1, 15], z=[None]), encoder(1, 16, y=[1, 31], z=[None])])
    assert axes.outputs == {"y": [None, "?"], "z": ["?"]}


def test_inputs_of_two_lengths_are_refused() -> None:
    axes = open_axes([encoder(1, 8), encoder(1, 16)])
    with pytest.raises(BadRequest, match=r"input 'mask' has the shape \[1, 6\], and length is 5 in the inputs before"):
        axes.sizes({"ids": [1, 5], "mask": [1, 6], "table": [7]})


@pytest.mark.parametrize(
    ("second", "says"),
    [
        (encoder(1, 8), "two bundles have the inputs ids=1x8, mask=1x8, table=7; join one bundle for each shape"),
        (member({"ids": [1, 16]}, {}), "differ in the names, types or numbers of axes of their inputs"),
        (encoder(1, 16, hidden=[1]), "differ in the names, types or numbers of axes of their outputs"),
    ],
)
def test_members_of_other_models_are_refused(second: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        open_axes([encoder(1, 8), second])


def bucketed(*lengths: int, **changes: Any) -> Bundle:
    bundles = [Bundle(bundle_bytes(**encoder(1, length))) for length in lengths]
    buckets = Buckets(open_axes([bundle.manifest for bundle in bundles]), {"ids": 1}, PADDING)
    plain, file = io.BytesIO(), io.BytesIO()
    join_bundles(plain, bundles, buckets)
    if changes:
        Bundle(plain.getvalue()).copy_to(file, buckets={**buckets.to_json(), **changes})
    return Bundle((file if changes else plain).getvalue())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"axes": {"inputs": {}, "outputs": {}}}, "'axes' of 'buckets' are not the open axes of its members"),
        ({"axes": 3}, "'buckets' do not fit its members"),
        ({"pad": {"other": 1}}, "'pad' of 'buckets' has an input that is not there"),
        ({"pad": {"ids": "1"}}, "'buckets' do not fit its members"),
        ({"padding": {"proved": 1, "reason": ""}}, "'buckets' do not fit its members"),
        ({"padding": {"proved": True, "reason": "\x1b[2J"}}, "'reason' of 'padding' is not printable"),
    ],
)
def test_buckets_that_are_none_are_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(BadBundle, match=says):
        bucketed(8, 16, **changes)


def test_members_lie_in_the_order_of_their_sizes() -> None:
    with pytest.raises(BadBundle, match="'members' are not in the order of their sizes"):
        bucketed(16, 8)
