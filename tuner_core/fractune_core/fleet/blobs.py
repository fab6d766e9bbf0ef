"""Files on their way between server and workers: chunked Redis lists that expire by themselves.

All are signed, each for its own name, but for model files: these are named by their SHA-256.
"""

import secrets
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from fractune_core.errors import NotFound
from fractune_core.fleet.redis_names import BLOB_TTL_S, RELEASED_BLOB_TTL_S, blob_key
from fractune_core.fleet.signed_messages import StreamedSignature, Unsigned, open_signed, sign

_MOST_BYTES = 64 << 20
"""Data in Redis is unsigned and compressed: a few bytes may claim any memory."""


def unpack(data: bytes) -> bytes:
    """The JSON text in the `data` of a job. Raises zlib.error, also for more than `_MOST_BYTES`."""
    stream = zlib.decompressobj()
    text = stream.decompress(data, _MOST_BYTES)
    if not stream.eof:
        raise zlib.error("it is incomplete or too long")
    return text


CHUNK_BYTES = 1 << 20
"""Chunks of 4 MiB took 1.2 to 1.9 times the CPU time of who puts a file there or reads it"""


class BlobRedis(Protocol):
    """The part of `redis.Redis` that blobs need."""

    def pipeline(self, *, transaction: bool) -> Any: ...
    def lrange(self, name: str, start: int, end: int) -> Any: ...
    def llen(self, name: str) -> Any: ...
    def exists(self, *names: str) -> Any: ...
    def delete(self, *names: str) -> Any: ...
    def expire(self, name: str, time: int) -> Any: ...


def put_blob(redis: BlobRedis, name: str, payload: bytes | Iterable[bytes]) -> None:
    """Store `payload` under `name`, whole or not at all, replacing what was there. Of pieces, one is in memory at a
    time.
    """
    if isinstance(payload, bytes):
        with redis.pipeline(transaction=True) as pipe:
            add_blob(pipe, name, payload)
            pipe.execute()
        return
    draft = f"{name}.{secrets.token_hex(8)}"
    for piece in payload:
        with redis.pipeline(transaction=True) as pipe:
            pipe.rpush(blob_key(draft), piece)
            pipe.expire(blob_key(draft), RELEASED_BLOB_TTL_S)  # a writer that dies leaves nothing
            pipe.execute()
    with redis.pipeline(transaction=True) as pipe:
        pipe.rename(blob_key(draft), blob_key(name))
        pipe.expire(blob_key(name), BLOB_TTL_S)
        pipe.execute()


def add_blob(pipe: Any, name: str, payload: bytes, ttl_s: int = BLOB_TTL_S) -> None:
    """Like `put_blob`, but as a part of the transaction `pipe`."""
    key = blob_key(name)
    pipe.delete(key)
    for chunk in _split(payload):
        pipe.rpush(key, chunk)
    pipe.expire(key, ttl_s)


def put_signed_blob(redis: BlobRedis, secret: bytes, name: str, payload: bytes) -> None:
    """Like `put_blob`, with the fleet's signature."""
    put_blob(redis, name, sign(secret, _purpose(name), payload))


def put_signed_file(redis: BlobRedis, secret: bytes, name: str, path: Path) -> None:
    """Like `put_signed_blob`, of a file that is read twice, piece by piece. Raises OSError."""
    signature = StreamedSignature(secret, _purpose(name))
    for piece in _pieces(path):
        signature.add(piece)
    put_blob(redis, name, chain([signature.digest], _pieces(path)))


def open_signed_pieces(redis: BlobRedis, secret: bytes, name: str) -> Iterator[bytes]:
    """The blob piece by piece. Raises NotFound, and Unsigned behind the last piece: use none of them before."""
    return StreamedSignature(secret, _purpose(name)).opened(read_blob(redis, name))


def get_signed_file(redis: BlobRedis, secret: bytes, name: str, path: Path) -> None:
    """Write the blob to a new file, or none if the signature is wrong. Raises as `get_signed_blob`, and OSError."""
    try:
        with path.open("xb") as file:
            for piece in open_signed_pieces(redis, secret, name):
                file.write(piece)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def add_signed_blob(pipe: Any, secret: bytes, name: str, payload: bytes, ttl_s: int = BLOB_TTL_S) -> None:
    """Like `put_signed_blob`, but as a part of the transaction `pipe`."""
    add_blob(pipe, name, sign(secret, _purpose(name), payload), ttl_s)


def get_signed_blob(redis: BlobRedis, secret: bytes, name: str) -> bytes:
    """The whole blob, its signature checked. Raises NotFound or Unsigned."""
    return open_signed(secret, _purpose(name), get_blob(redis, name))


def read_blob(redis: BlobRedis, name: str) -> Iterator[bytes]:
    """The chunks of the blob. Raises NotFound when it is not there (any more)."""
    key = blob_key(name)
    for index in range(max(redis.llen(key), 1)):
        chunks = redis.lrange(key, index, index)
        if not chunks:  # it may expire between two commands
            raise NotFound(f"blob '{name}' is not in Redis; it may have expired")
        yield chunks[0]


def get_blob(redis: BlobRedis, name: str) -> bytes:
    """The whole blob. Raises NotFound."""
    return b"".join(read_blob(redis, name))


def has_blob(redis: BlobRedis, name: str) -> bool:
    return bool(redis.exists(blob_key(name)))


def renew_blob(redis: BlobRedis, name: str) -> bool:
    """Whether it is there; then it lives as long as one that is new."""
    return bool(redis.expire(blob_key(name), BLOB_TTL_S))


def renew_signed_blob(redis: BlobRedis, secret: bytes, name: str) -> bool:
    """Like `renew_blob`; False for a blob without this fleet's signature."""
    try:
        for _ in open_signed_pieces(redis, secret, name):
            pass
    except (NotFound, Unsigned):
        return False
    return renew_blob(redis, name)


def release_blobs(redis: BlobRedis, names: Iterable[str]) -> None:
    """No work that is to come needs them: they go when what is in hand has had the time to read them."""
    with redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.expire(blob_key(name), RELEASED_BLOB_TTL_S)
        pipe.execute()


def drop_blobs(redis: BlobRedis, names: Iterable[str]) -> None:
    keys = [blob_key(name) for name in names]
    if keys:
        redis.delete(*keys)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def _split(payload: bytes) -> Iterator[bytes]:
    for start in range(0, max(len(payload), 1), CHUNK_BYTES):
        yield payload[start : start + CHUNK_BYTES]


def _purpose(name: str) -> str:
    return f"blob {name}"
