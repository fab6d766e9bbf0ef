"""requirements.lock holds what pyproject.toml asks for, by hash, and names no index."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
LOCK = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
ASKED = [
    *PROJECT["project"]["dependencies"],
    *PROJECT["project"]["optional-dependencies"]["local"],
    *PROJECT["dependency-groups"]["dev"],
]


def locked() -> dict[str, list[str]]:
    """Each locked name, with its version or versions (one for each Python where they differ)."""
    versions: dict[str, list[str]] = {}
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ \\]+)", LOCK, re.MULTILINE):
        versions.setdefault(canonicalize_name(name), []).append(version)
    return versions


@pytest.mark.parametrize("requirement", ASKED)
def test_what_is_asked_for_is_locked(requirement: str) -> None:
    asked = Requirement(requirement)
    versions = locked().get(canonicalize_name(asked.name), [])
    assert versions, f"{asked.name} is not in requirements.lock; run: make lock"
    unfit = [version for version in versions if version not in asked.specifier]
    assert unfit == [], f"{requirement} does not allow the locked {unfit}; run: make lock"


def test_what_runs_bundles_is_the_same_with_all_the_rest() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(extras["run"]) | set(extras["sign"]) <= set(extras["local"])


def test_every_locked_file_has_its_hash() -> None:
    entries = re.split(r"\n(?=[^\s#])", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE).strip())
    assert entries
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_the_lock_names_no_index() -> None:
    assert "://" not in LOCK
    assert "--index-url" not in LOCK
