"""What can be broken: a table of promises, each with the code that keeps it and the test that fails without."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.paths import REPOSITORY

TABLES = REPOSITORY / "tests" / "assets" / "breakages"


@dataclass(frozen=True)
class Breakage:
    """One promise, and a change of a few lines after which it does not hold."""

    promise: str
    """in a few words; of an attempt in docs/security.md its own words"""
    file: str
    """from the root of the checkout"""
    before: str
    """lines that are in the file once"""
    after: str
    test: str
    """that keeps the promise, as pytest names it: PATH::NAME, or one case of it"""

    @property
    def test_file(self) -> str:
        return self.test.partition("::")[0]

    @property
    def test_name(self) -> str:
        """Of the function, without its class and the case."""
        return self.test.rpartition("::")[2].partition("[")[0]


def breakages() -> list[Breakage]:
    """All of them, in the order of the tables."""
    return [each for path in sorted(TABLES.glob("*.toml")) for each in _read(path)]


def _read(path: Path) -> Iterator[Breakage]:
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["breakage"]
    return (Breakage(**row) for row in rows)
