"""Which importer a result was measured with. The standard library alone: `scripts/release_check` reads it too."""

import hashlib
from pathlib import Path

_CHILDREN = Path(__file__).parents[2] / "workers" / "fractune_workers" / "children"
_ROOMS = ("importing", "rewriting")
"""what decides whether a model is imported, and with which numbers"""


def importer_digest() -> str:
    """16 hex digits of SHA-256 over the importer's sources."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for path in sorted((_CHILDREN / room).rglob("*.py")):
            digest.update(path.relative_to(_CHILDREN).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]
