"""Dataclasses as JSON objects, where messages of the public contract hold their fields (`In`), and whether JSON has the
shape that a TypedDict or a dataclass declares.

Fields that a type does not know are passed over: a later version may have added them.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any, Protocol, Self, TypeVar, cast

import msgspec

_T = TypeVar("_T")
_LEAST, _MOST = -(2**63), 2**63 - 1
"""the whole numbers that a database and a protobuf message can hold"""
_one_at_a_time = threading.Lock()


class ResourceNames(Protocol):
    """How the contract names one kind of thing (`fractune_core.names.Collection`)."""

    def of(self, identifier: str) -> str: ...
    def parse(self, name: str) -> str: ...


@dataclass(frozen=True)
class In:
    """In a field's annotation: where its message holds it, unless under the field's own name and as it is."""

    path: str
    """a name; or a path into another message, `granted.share`, which is read and never written"""
    collection: ResourceNames | None = None
    """the message has the resource name, the dataclass the identifier"""


class JsonObject:
    """A dataclass that JSON holds as an object with its fields."""

    def to_json(self) -> dict[str, Any]:
        """Its fields by name, as `json.dumps` takes them."""
        return cast("dict[str, Any]", _with_lists(msgspec.to_builtins(self)))

    @classmethod
    def from_json(cls, data: Any) -> Self:
        """The instance that `to_json` wrote, in this version or another. Raises ValueError for anything else."""
        return from_json(cls, data)


def from_json(kind: type[_T], data: Any) -> _T:
    """`data` as the annotation `kind` declares it. Raises ValueError that says where it differs."""
    _describe(cast("Any", kind))
    return msgspec.convert(data, kind)


@cache
def _describe(kind: Any) -> None:
    """Have msgspec read the annotations of `kind`, and of the types in it, before any thread converts to it.

    msgspec reads them at the first conversion, and keeps a description of each type before it knows all fields. Another
    thread that converts to this type meanwhile ends the process by a segmentation fault.
    """
    with _one_at_a_time, contextlib.suppress(msgspec.ValidationError):
        msgspec.convert(None, kind)


def _with_lists(value: Any) -> Any:
    """JSON has no tuples."""
    kind = type(value)
    if kind is dict:
        return {name: _with_lists(each) for name, each in value.items()}
    return list(map(_with_lists, value)) if kind is tuple else value


def to_dict(instance: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, as they are."""
    kind: Any = type(instance)
    return {name: getattr(instance, name) for name in _names(kind)}


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def read_json(text: str | bytes) -> Any:
    """As `json.loads`. Raises ValueError for every text that is not JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def strict_json(text: bytes) -> Any:
    """As `read_json`, several times as fast. Raises ValueError also for NaN, infinity and larger numbers, which JSON
    does not have.
    """
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_bytes(data: Any) -> bytes:
    """As `json.dumps`, several times as fast. NaN and infinity become null."""
    return msgspec.json.encode(data)


def write_json(value: Any) -> str:
    """As `json.dumps`, and dataclasses as objects with their fields."""
    return json.dumps(value, default=msgspec.to_builtins)


def checked(kind: type[_T], value: Any) -> _T:
    """As `from_json`. Raises ValueError also for what cannot be stored.

    Whole numbers must have 64 bits, and UTF-8 and databases must be able to hold every text.
    """
    try:
        found = from_json(kind, value)
        _check_storable(value)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except _Unstorable as error:
        raise ValueError(ascii(f"{error} - at `${error.path}`")[1:-1]) from None
    return found


def is_storable(text: Any) -> bool:
    """Whether a value is a text that UTF-8 and databases can hold."""
    if type(text) is not str:
        return False
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:  # half a character
            return False
    return "\0" not in text


class _Unstorable(Exception):
    """The defect of a value. Each enclosing object adds to the path."""

    path = ""

    def inside(self, place: str) -> _Unstorable:
        self.path = place + self.path
        return self


def _check_storable(value: Any) -> None:
    kind = type(value)
    if kind is str:
        if not is_storable(value):
            raise _Unstorable(f"{value[:80]!a} is not a text that can be stored")
    elif kind is int:
        if not _LEAST <= value <= _MOST:
            raise _Unstorable("the whole number has more than 64 bits")
    elif kind is dict:
        _check_storable(list(value))
        _check_each(value.items(), ".{:.80}")
    elif kind is list or kind is tuple:
        _check_each(enumerate(value), "[{}]")


def _check_each(items: Iterable[tuple[Any, Any]], path: str) -> None:
    for place, value in items:
        if type(value) is not float:
            try:
                _check_storable(value)
            except _Unstorable as error:
                raise error.inside(path.format(place)) from None
