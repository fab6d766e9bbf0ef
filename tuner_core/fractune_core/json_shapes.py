"""Whether JSON has the shape that a TypedDict or a dataclass of ours declares, so that its reader need not ask.

Fields that the type does not know are passed over: a later version may have added them. Whole numbers have 64 bits, and
texts are such as UTF-8 and databases can hold.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

Check = Callable[[Any], None]
_LEAST, _MOST = -(2**63), 2**63 - 1
"""what a database and a protobuf message can hold"""


class _Wrong(Exception):
    """What is wrong with a value, and on its way out where it is."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.path = ""

    def inside(self, place: str) -> _Wrong:
        self.path = place + self.path
        return self


def read_json(text: str | bytes) -> Any:
    """As `json.loads`. Raises ValueError for every text that is no JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_shape(kind: Any, value: Any) -> None:
    """Raises ValueError that says where `value` is not what the annotation `kind` declares."""
    try:
        _check_of(kind)(value)
    except _Wrong as wrong:
        raise ValueError(f"{wrong.path.removeprefix('.') or 'it'} {wrong}") from None


@cache
def _check_of(kind: Any) -> Check:
    """Made once for each type: results come by the thousand."""
    origin, arguments = get_origin(kind), get_args(kind)
    if kind is Any:
        return lambda _: None
    if is_typeddict(kind) or is_dataclass(kind):
        return _object(kind)
    if origin is Literal:
        return _simple(lambda value: isinstance(value, str) and value in arguments, f"one of {arguments}")
    if origin in (Union, types.UnionType):
        return _either([_check_of(each) for each in arguments])
    if origin in (list, tuple):
        return _list(_check_of(arguments[0]))
    if origin is dict:
        return _map(_check_of(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _simple(lambda value: isinstance(value, str) and _is_member(kind, value), f"one of {list(kind)}")
    return _simple(*_SIMPLE[kind])


def _simple(holds: Callable[[Any], bool], what: str) -> Check:
    def check(value: Any) -> None:
        if not holds(value):
            raise _wrong(value, what)

    return check


def _list(inner: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not list:
            raise _wrong(value, "a list")
        at = 0
        try:
            for each in value:
                inner(each)
                at += 1
        except _Wrong as wrong:
            raise wrong.inside(f"[{at}]") from None

    return check


def _map(inner: Check) -> Check:
    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, each in value.items():
            if not is_storable(name):
                raise _wrong(name, "a name")
            try:
                inner(each)
            except _Wrong as wrong:
                raise wrong.inside(f".{name}") from None

    return check


def _object(kind: Any) -> Check:
    members = [(name, _check_of(inner), is_needed) for name, inner, is_needed in _members(kind)]

    def check(value: Any) -> None:
        if type(value) is not dict:
            raise _wrong(value, "an object")
        for name, inner, is_needed in members:
            if name in value:
                try:
                    inner(value[name])
                except _Wrong as wrong:
                    raise wrong.inside(f".{name}") from None
            elif is_needed:
                raise _Wrong(f"lacks '{name}'")

    return check


def _either(checks: Iterable[Check]) -> Check:
    first, *others = checks

    def check(value: Any) -> None:
        try:
            first(value)
        except _Wrong:
            if not any(_passes(each, value) for each in others):
                raise

    return check


def _passes(check: Check, value: Any) -> bool:
    try:
        check(value)
    except _Wrong:
        return False
    return True


def _wrong(value: Any, what: str) -> _Wrong:
    return _Wrong(f"is {str(value)[:80]!r}, and not {what}")


def _is_whole(value: Any) -> bool:
    return type(value) is int and _LEAST <= value <= _MOST


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


def _is_member(kind: type[Enum], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


_SIMPLE: dict[Any, tuple[Callable[[Any], bool], str]] = {
    type(None): (lambda value: value is None, "null"),
    bool: (lambda value: type(value) is bool, "true or false"),
    int: (_is_whole, "a whole number of 64 bits"),
    float: (lambda value: type(value) is float or _is_whole(value), "a number"),
    str: (is_storable, "a text"),
}


def _members(kind: Any) -> Iterable[tuple[str, Any, bool]]:
    """Name, annotation, and whether it must be there."""
    hints = get_type_hints(kind, include_extras=True)
    if is_dataclass(kind):
        for field in fields(kind):
            yield field.name, hints[field.name], field.default is MISSING and field.default_factory is MISSING
        return
    for name, hint in hints.items():
        # Asked of the annotation: where annotations are text, a TypedDict does not know what it needs.
        is_needed = get_origin(hint) is not NotRequired
        yield name, hint if is_needed else get_args(hint)[0], is_needed
