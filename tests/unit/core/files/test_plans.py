"""Plans of models: each place lies in memory, whatever the text says."""

import json
from typing import Any

import pytest

from fractune_core.files.plans import Plan

X = {"dtype": "float32", "shape": [4, 8], "place": 0, "offset": 0}
GOOD: dict[str, Any] = {
    "arena_bytes": 256,
    "constants": [{"offset": 128, "hex": "00" * 128}],
    "parameters": [X],
    "outputs": [X],
    "tensors": [X, {**X, "place": 1}, {**X, "place": 2}, {**X, "shape": [8], "place": 2, "offset": 96}],
    "calls": [{"kernel": "relu", "arguments": [1, 0]}, {"kernel": "relu", "arguments": [0, 2]}],
    "caches": [],
}
ROWS = {"parameter": 0, "axis": -2}


def read(**changes: Any) -> Plan:
    return Plan.read(json.dumps({**GOOD, **changes}).encode())


def in_cache(**changes: Any) -> dict[str, Any]:
    """A plan with a cache, and a tensor in its buffer."""
    return {"caches": [ROWS], "tensors": [{**X, "place": 1, **changes}], "calls": []}


@pytest.mark.parametrize("changes", [{}, in_cache(), in_cache(shape=[1, 4, 8])])
def test_a_sound_plan_is_read(changes: dict[str, Any]) -> None:
    assert read(**changes).to_json() == {**GOOD, **changes}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"arena_bytes": 127}, "128 bytes from 0 on in place 0, which has 127"),
        ({"arena_bytes": -1}, "an arena of -1 bytes"),
        ({"unused": [256]}, "a number of rows or tokens outside its arena of 256 bytes"),
        ({"tokens": [4]}, "a number of rows or tokens outside its arena of 256 bytes"),
        ({"arena_bytes": 2**60}, "an arena of 1152921504606846976 bytes"),
        ({"constants": [{"offset": 129, "hex": "00" * 128}]}, "a constant at 129 in an arena of 256 bytes"),
        ({"constants": [{"offset": -1, "hex": "00"}]}, "a constant at -1"),
        ({"constants": [{"offset": 0, "hex": "0g"}]}, "hexadecimal"),
        ({"parameters": []}, "a tensor in place 2 of 2"),
        ({"tensors": [{**X, "place": 3}]}, "a tensor in place 3 of 3"),
        ({"tensors": [{**X, "place": -1}]}, "a tensor in place -1 of 3"),
        ({"tensors": [{**X, "offset": -64}]}, "128 bytes from -64 on in place 0"),
        ({"tensors": [{**X, "place": 1, "offset": 4}]}, "128 bytes from 4 on in place 1, which has 128"),
        ({"tensors": [{**X, "shape": [2**31, 2**31]}]}, "a tensor of 18446744073709551616 bytes"),
        ({"tensors": [{**X, "shape": [-4, -8]}]}, r"a tensor float32\[-4, -8\]"),
        ({"tensors": [{**X, "shape": [1] * 33}]}, "a tensor float32"),
        ({"tensors": [{**X, "dtype": "handle"}]}, "a tensor handle"),
        ({"calls": [{"kernel": "relu", "arguments": [0, 4]}]}, "a call of 'relu' with a tensor that is not there"),
        ({"calls": [{"kernel": "relu", "arguments": [-1]}]}, "a call of 'relu' with a tensor that is not there"),
        ({"caches": [{**ROWS, "parameter": 1}]}, "a cache for the parameter 1 of 1"),
        ({"caches": [{**ROWS, "axis": 0}]}, r"a cache with rows in the axis 0 of \[4, 8\]"),
        ({"caches": [{**ROWS, "axis": -3}]}, r"a cache with rows in the axis -3 of \[4, 8\]"),
        (in_cache(shape=[2, 2, 8]), r"a tensor float32\[2, 2, 8\] in a cache float32\[4, 8\]"),
        (in_cache(shape=[8]), r"a tensor float32\[8\] in a cache"),
        (in_cache(shape=[3, 8], offset=32), r"a tensor float32\[3, 8\] in a cache"),
        (in_cache(dtype="int32"), r"a tensor int32\[4, 8\] in a cache"),
        ({"calls": 3}, "Expected `array`"),
        ({"arena_bytes": 1.5}, "Expected `int`"),
    ],
)
def test_a_plan_that_reaches_beyond_its_memory_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read(**changes)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_another_text_is_no_plan(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  its text is that of the reader of JSON
        Plan.read(text)
