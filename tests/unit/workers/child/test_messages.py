"""Messages between a supervisor and its child."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest

from fractune_workers.child.messages import decode, encode


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"value": None},
        {"value": b"text".decode(), "lacking": []},
        {"method": "build", "value": {"object": b"\x00\xff" * 1000, "status": "ok", "none": b"", "second": b"{}"}},
    ],
)
def test_a_message_comes_back_as_it_was_sent(message: dict[str, Any]) -> None:
    assert decode(encode(message)) == message


def test_bytes_travel_as_they_are() -> None:
    code = bytes(range(256)) * 4096
    assert code in encode({"value": {"object": code}})


def raw(header: Any, frames: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("!I", len(text)) + text + frames


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00\x00",
        raw([]),
        raw({}, b"more"),
        raw({})[:-1],
        struct.pack("!I", 100) + b"{}",
        struct.pack("!I", 2) + b"no",
        raw({"value": {}, "frames": {"object": 5}}, b"four"),
        raw({"value": {}, "frames": {"object": 3}}, b"four"),
        raw({"value": {}, "frames": {"object": -1}}),
        raw({"value": {}, "frames": {"object": True}}, b"1"),
        raw({"value": {}, "frames": {"object": "4"}}, b"four"),
        raw({"value": [], "frames": {"object": 4}}, b"four"),
        raw({"frames": {"object": 4}}, b"four"),
        raw({"value": {}, "frames": [4]}, b"four"),
        raw({"value": {}, "frames": None}),
        raw({"value": {}, "frames": []}),
        raw({"value": {}, "frames": 0}),
        raw({"value": {}, "frames": ""}),
    ],
)
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(message)
