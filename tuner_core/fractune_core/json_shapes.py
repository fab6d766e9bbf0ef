"""Whether JSON has the shape that a TypedDict or a dataclass of ours declares, so that its reader need not ask.

Fields that the type does not know are passed over: a later version may have added them.
"""

from __future__ import annotations

import json
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

_LEAST, _MOST = -(2**63), 2**63 - 1
"""what a database and a protobuf message can hold"""


def read_json(text: str | bytes) -> Any:
    """As `json.loads`. Raises ValueError for every text that is no JSON, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_shape(kind: Any, value: Any, where: str = "it") -> None:
    """Raises ValueError that says where `value` is not what the annotation `kind` declares.

    Whole numbers have 64 bits, and texts are such as UTF-8 and databases can hold.
    """
    if kind is Any:
        return
    if is_typeddict(kind) or is_dataclass(kind):
        _check_object(kind, value, where)
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        _want(value in arguments, value, where, f"one of {', '.join(map(str, arguments))}")
    elif origin in (Union, types.UnionType):
        _check_union(arguments, value, where)
    elif origin in (list, tuple):
        _want(isinstance(value, list), value, where, "a list")
        for at, each in enumerate(value):
            check_shape(arguments[0], each, f"{where}[{at}]")
    elif origin is dict:
        _want(isinstance(value, dict), value, where, "an object")
        for name, each in value.items():
            check_shape(str, name, f"a name in {where}")
            check_shape(arguments[1], each, f"{where}.{name}")
    else:
        _check_simple(kind, value, where)


def _check_object(kind: Any, value: Any, where: str) -> None:
    _want(isinstance(value, dict), value, where, "an object")
    for name, (inner, is_needed) in _fields(kind).items():
        if name in value:
            check_shape(inner, value[name], f"{where}.{name}" if where != "it" else name)
        elif is_needed:
            raise ValueError(f"'{name}' is missing in {where}")


def _check_union(kinds: tuple[Any, ...], value: Any, where: str) -> None:
    wrong: ValueError | None = None
    for kind in kinds:
        try:
            check_shape(kind, value, where)
        except ValueError as error:
            wrong = error
        else:
            return
    raise wrong or ValueError(f"{where} is nothing that can be meant")


def _check_simple(kind: Any, value: Any, where: str) -> None:
    if kind is type(None):
        _want(value is None, value, where, "null")
    elif kind is bool:
        _want(isinstance(value, bool), value, where, "true or false")
    elif kind is int:
        _want(type(value) is int and _LEAST <= value <= _MOST, value, where, "a whole number of 64 bits")
    elif kind is float:
        _want(type(value) in (int, float) and _is_real(value), value, where, "a number")
    elif kind is str:
        _want(isinstance(value, str) and _is_storable(value), value, where, "a text")
    elif isinstance(kind, type) and issubclass(kind, Enum):
        check_shape(str, value, where)
        kind(value)
    else:
        raise TypeError(f"{where}: no JSON has the shape {kind}")


def _want(holds: object, value: Any, where: str, what: str) -> None:
    if not holds:
        raise ValueError(f"{where} is {str(value)[:80]!r}, and not {what}")


def _is_real(value: float) -> bool:
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _is_storable(text: str) -> bool:
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:  # half a character
        return False


@cache
def _fields(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """Annotation by name, and whether it must be there."""
    hints = get_type_hints(kind, include_extras=True)
    if is_typeddict(kind):
        return {name: _unwrapped(hint) for name, hint in hints.items()}
    return {
        field.name: (hints[field.name], field.default is MISSING and field.default_factory is MISSING)
        for field in fields(kind)
    }


def _unwrapped(hint: Any) -> tuple[Any, bool]:
    """Asked of the annotation: where annotations are text, a TypedDict does not know what it needs."""
    return (get_args(hint)[0], False) if get_origin(hint) is NotRequired else (hint, True)
