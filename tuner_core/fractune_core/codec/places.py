"""Where a message of the public contract holds a dataclass's field: a note in the field's annotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


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
