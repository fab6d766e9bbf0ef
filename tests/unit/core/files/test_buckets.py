from __future__ import annotations

import io
from typing import Any

import pytest

from fractune_core.errors import BadBundle, BadRequest
from fractune_core.files.buckets import Buckets, Padding, open_axes
from fractune_core.files.bundles import Bundle
from fractune_core.files.joined import join_bundles
from tests.support.client_samples import bundle_bytes

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


def joined(*lengths: int, **changes: Any) -> Bundle:
    bundles = [Bundle(bundle_bytes(**encoder(1, length))) for length in lengths]
    buckets = Buckets(open_axes([bundle.manifest for bundle in bundles]), {"ids": 1}, PADDING)
    plain, file = io.BytesIO(), io.BytesIO()
    join_bundles(plain, bundles, buckets)
    if changes:
        Bundle(plain.getvalue()).copy_to(file, buckets={**buckets.to_json(), **changes})
    return Bundle((file if changes else plain).getvalue())


def test_buckets_are_read_as_they_were_written() -> None:
    held = Buckets.from_json(joined(8, 16).manifest["buckets"])
    assert (held.padding, held.pad) == (PADDING, {"ids": 1})


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
        joined(8, 16, **changes)


def test_members_lie_in_the_order_of_their_sizes() -> None:
    with pytest.raises(BadBundle, match="'members' are not in the order of their sizes"):
        joined(16, 8)
