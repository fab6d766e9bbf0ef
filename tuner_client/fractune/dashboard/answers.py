"""What all answers of the site have in common: JSON or a page, addresses, and the version of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request


def wants_json(request: Request) -> bool:
    return request.query_params.get("as") == "json" or _accepts(request.headers.get("accept", ""), "application/json")


def _accepts(header: str, media_type: str) -> bool:
    """Whether an Accept header names this type, and not with the quality 0, which refuses it (RFC 9110, 12.5.1)."""
    for each in header.split(","):
        name, *parameters = (part.strip().lower() for part in each.split(";"))
        if name == media_type:
            qualities = [part[2:] for part in parameters if part.startswith("q=")]
            return not any(quality.strip("0.") == "" for quality in qualities)
    return False


def own_address(request: Request) -> str:
    query = request.url.query
    return f"{request.url.path}?{query}" if query else request.url.path


def digest_of(folder: Path) -> str:
    """Changes with any of the files, so that a browser never mixes versions."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def storable(value: Any) -> Any:
    """JSON has no infinity, no NaN and no sets."""
    if isinstance(value, float):
        return value if value - value == 0 else None
    if isinstance(value, Mapping):
        return {str(name): storable(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [storable(each) for each in value]
    return value if value is None or isinstance(value, str | int | bool) else str(value)
