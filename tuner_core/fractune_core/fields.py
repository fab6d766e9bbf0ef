"""The fields of dataclasses as they are in JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from typing import Any


def known_fields(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `data` that the dataclass `kind` is made from; what a later version has added is passed over. Raises
    TypeError where `data` is no JSON object.
    """
    hashable: Any = kind
    return {name: data[name] for name in _names(hashable) if name in data}


def own_fields(instance: Any) -> dict[str, Any]:
    """Those of a dataclass by name, as they are: `dataclasses.asdict` copies what is in them, at ten times the cost."""
    kind: Any = type(instance)
    return {name: getattr(instance, name) for name in _names(kind)}


@lru_cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))
