"""Files that were written before the names of docs/decisions/0021-names-in-storage.md; tests/assets/first_names."""

from __future__ import annotations

from tests.support.paths import REPOSITORY

ASSETS = REPOSITORY / "tests" / "assets" / "first_names"
SCHEMA_0013 = REPOSITORY / "tests" / "assets" / "schema_0013"
"""the same kinds of files, written later"""
BUNDLE = ASSETS / "small.fractune"
