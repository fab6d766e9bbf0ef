"""What all answers of the site have in common: JSON or a page, addresses, and the version of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request


def wants_json(request: Request) -> bool:
    return "application/json" in request.headers.get("accept", "") or request.query_params.get("as") == "json"


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
