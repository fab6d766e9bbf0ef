"""What a dataclass takes of JSON: its own fields. One that a later version has added is passed over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `data` that the dataclass `kind` is made from. Raises TypeError where `data` is no JSON object."""
    return {field.name: data[field.name] for field in fields(kind) if field.name in data}
