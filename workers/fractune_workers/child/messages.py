"""Messages between a supervisor and its child: JSON, and beside it the bytes that it carries, such as machine code.

    length of the JSON (4 bytes, big-endian), JSON, frames

A message is an object. Values of its `value` that are bytes leave the JSON: `frames` names each with its length, and
the bytes follow in that order.
"""

import errno
import struct
from typing import Any

from fractune_core.codec.plain_json import read_json, write_json

_PREFIX = struct.Struct("!i")
"""how a message of `multiprocessing.connection.Connection` begins"""
_JSON_LENGTH = struct.Struct("!I")
_LONGEST_MESSAGE_BYTES = 1 << 28


def encode(message: dict[str, Any]) -> bytes:
    value = message.get("value")
    frames = {name: each for name, each in value.items() if isinstance(each, bytes)} if isinstance(value, dict) else {}
    if frames:
        rest = {name: each for name, each in message["value"].items() if name not in frames}
        message = {**message, "value": rest, "frames": {name: len(frame) for name, frame in frames.items()}}
    text = write_json(message).encode()
    return b"".join((_JSON_LENGTH.pack(len(text)), text, *frames.values()))


def decode(message: bytes) -> dict[str, Any]:
    """The object that was encoded. Raises ValueError for bytes that are no message."""
    if len(message) < _JSON_LENGTH.size:
        raise ValueError("it is too short")
    start = _JSON_LENGTH.size + _JSON_LENGTH.unpack_from(message)[0]
    decoded = read_json(message[_JSON_LENGTH.size : start])
    if not isinstance(decoded, dict):
        raise ValueError("it is not an object")  # noqa: TRY004  one error for all that is malformed
    frames = decoded.pop("frames", {})
    if not isinstance(frames, dict) or (frames and not isinstance(decoded.get("value"), dict)):
        raise ValueError("its frames have no place")
    for name, count in frames.items():
        if type(count) is not int or not 0 <= count <= len(message) - start:
            raise ValueError("a frame is longer than the message")
        decoded["value"][name] = message[start : start + count]
        start += count
    if start != len(message):
        raise ValueError("its length is not that of its parts")
    return decoded


def whole_message(received: bytearray) -> bytes | None:
    """The message of `Connection.send_bytes`, None as long as some is missing. Raises OSError for one too long."""
    if len(received) < _PREFIX.size:
        return None
    (count,) = _PREFIX.unpack_from(received)
    if not 0 <= count <= _LONGEST_MESSAGE_BYTES:
        raise OSError(errno.EMSGSIZE, "the child's message is too long")
    return bytes(received[_PREFIX.size :]) if len(received) >= _PREFIX.size + count else None
