"""TOML text of single values, which the standard library reads but does not write."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping

from fractune_core.errors import BadRequest

Value = str | bool | int | float | list[str]


def toml_lines(values: Mapping[str, Value]) -> str:
    """A line for each value. Keys are letters, digits, `-` and `_`.

    Raises BadRequest for a value that TOML cannot hold, such as a file name that is not UTF-8.
    """
    for key, value in values.items():
        if not _is_read_back(key, value):
            raise BadRequest(f"{key}: TOML cannot hold {value!a}; leave it out, or use another value")
    return "".join(map(_line, values, values.values()))


def _is_read_back(key: str, value: Value) -> bool:
    """Compared as text, because NaN is not equal to itself."""
    try:
        read = tomllib.loads(_line(key, value).encode().decode())
    except ValueError:  # half a character, or no TOML
        return False
    return repr(read) == repr({key: value})


def _line(key: str, value: Value) -> str:
    return f"{key} = {_text(value)}\n"


def _text(value: Value) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, float):
        return repr(value)
    # JSON has the escapes of TOML, but it leaves out that of DEL, and writes a character beyond 16 bits as two halves.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
