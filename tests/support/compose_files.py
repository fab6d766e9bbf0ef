"""The compose files as Compose takes them: with variables, and on top of each other."""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.support.paths import REPOSITORY

COMPOSE = REPOSITORY / "docker-compose.yml"
TLS = REPOSITORY / "deploy" / "compose.tls.yml"
GPU = REPOSITORY / "deploy" / "compose.gpu.yml"
POSTGRES = REPOSITORY / "deploy" / "compose.postgres.yml"
VARIABLE = re.compile(r"\$\{(\w+)([^}]*)\}")
_REPLACED = frozenset({"command", "entrypoint", "test"})
"""lists that the last file's takes the place of; others are added to"""


class _Override(list[Any]):
    """A list that replaces the one before it."""


class _Loader(yaml.SafeLoader):
    """YAML with Compose's own tag for such a list."""


def _override(loader: _Loader, node: yaml.Node) -> Any:
    assert isinstance(node, yaml.SequenceNode)
    return _Override(loader.construct_sequence(node))


_Loader.add_constructor("!override", _override)


def read(path: Path, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file with `variables`, and defaults for those that are not there or empty; not to be changed."""
    known = variables or {}

    def value(found: re.Match[str]) -> str:
        return known.get(found[1]) or found[2].removeprefix(":-")

    return _parsed(VARIABLE.sub(value, path.read_text(encoding="utf-8")))


@cache
def _parsed(text: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.load(text, _Loader)  # noqa: S506  - a SafeLoader
    return document


def read_together(*on_top: Path, variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """docker-compose.yml with files on top, in their order."""
    document = read(COMPOSE, variables)
    for path in on_top:
        document = _merged(document, read(path, variables))
    return document


def dotenv() -> dict[str, str]:
    lines = (REPOSITORY / ".env").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        before = merged.get(key)
        if isinstance(before, dict) and isinstance(value, dict):
            merged[key] = _merged(before, value)
        elif isinstance(before, list) and key not in _REPLACED and not isinstance(value, _Override):
            merged[key] = [*before, *value]
        else:
            merged[key] = value
    return merged
