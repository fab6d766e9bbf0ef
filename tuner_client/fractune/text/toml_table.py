"""A table of a TOML file. Errors name the place and what to write."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fractune.text.output_files import read_small
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


def read_toml(path: Path, subject: str) -> dict[str, Any]:
    """The content of a TOML file. Raises BadRequest, which calls an unreadable file `subject` ("the prices")."""
    try:
        return tomllib.loads(read_small(path).decode())
    except OSError as error:
        raise BadRequest(f"{path}: cannot read {subject} ({error.strerror})") from error
    except RecursionError:
        raise BadRequest(f"{path}: not a valid TOML file (it is nested too deeply)") from None
    except UnicodeDecodeError:
        raise BadRequest(f"{path}: this file is not text; give {subject} in TOML") from None
    except ValueError as error:  # no TOML, or a number of thousands of digits
        raise BadRequest(f"{path}: not a TOML file ({error})") from error


class TableReader:
    """Every method raises BadRequest for a value of another type."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self.where = where
        self._values = values

    def called(self, name: str) -> TableReader:
        """The same table under a more specific name."""
        return TableReader(f"{self.where.partition(':')[0]}: {name}", self._values)

    def check_keys(self, *known: str) -> None:
        for key in self._values:
            if key not in known:
                raise BadRequest(f"{self.where}: unknown key '{key}'; known keys are {', '.join(known)}")

    def has(self, key: str) -> bool:
        return key in self._values

    def is_text(self, key: str) -> bool:
        return isinstance(self._values.get(key), str)

    def text(self, key: str) -> str:
        """Empty where it is absent."""
        return str(self._value(key, "", str, "a text"))

    def whole(self, key: str, default: int) -> int:
        return int(self._value(key, default, int, "a whole number"))

    def number(self, key: str, default: float) -> float:
        return float(self._value(key, default, int | float, "a number"))

    def table(self, key: str) -> TableReader:
        """Empty where it is absent."""
        return TableReader(f"{self.where}: [{key}]", self._value(key, {}, Mapping, f"a table; write [{key}]"))

    def tables(self, key: str) -> list[TableReader]:
        """An empty list if absent."""
        found = self._value(key, [], list, f"a list of tables; write [[{key}]]")
        for each in found:
            if not isinstance(each, Mapping):
                raise BadRequest(f"{self.where}: '{key}' holds {each!r}, which is not a table; write [[{key}]]")
        return [TableReader(f"{self.where}: {key} {at}", each) for at, each in enumerate(found, 1)]

    def shapes(self, key: str) -> dict[str, list[int]]:
        """Shapes such as `inputs = {data = [1, 3, 224, 224]}`."""
        found = self._value(key, {}, Mapping, "a table of shapes")
        for name, dims in found.items():
            if not isinstance(dims, list) or not all(type(dim) is int and dim > 0 for dim in dims):
                raise BadRequest(f"{self.where}: {key}: '{name}' is {dims!r}; write a shape such as [1, 3, 224, 224]")
        return {name: list(dims) for name, dims in found.items()}

    def _value(self, key: str, default: Any, kind: Any, expected: str) -> Any:
        found = self._values.get(key, default)
        if not isinstance(found, kind) or isinstance(found, bool) or _is_huge(found):
            raise BadRequest(f"{self.where}: '{key}' is {found!r}, and not {expected}")
        return found


def _is_huge(value: Any) -> bool:
    """Whether it is a whole number above 63 bits."""
    return isinstance(value, int) and value.bit_length() > 63
