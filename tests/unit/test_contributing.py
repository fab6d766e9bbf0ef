"""The tables and the steps of CONTRIBUTING.md name files and folders that exist."""

import re

from tests.support.arrows.rooms import SOURCES
from tests.support.paths import REPOSITORY

_TOKEN = re.compile(r"`([\w./-]+)`")
_STEPS = re.compile(r"\n## ((?:Add|Change) .+)\n")
_ROOTS = [REPOSITORY, *(REPOSITORY / source for source in SOURCES.values())]


def rows() -> list[str]:
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = page.partition("\n## Where a change goes\n")[2].partition("\n## ")[0]
    found = [line for line in section.splitlines() if line.startswith("| ")]
    return [row for row in found if not row.startswith(("| to change", "| tests |"))]


def steps() -> list[str]:
    """The sections that list the steps of a change."""
    page = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return [page[found.end() :].partition("\n## ")[0] for found in _STEPS.finditer(page)]


def is_path(token: str) -> bool:
    return "/" in token or token.endswith((".py", ".yml", ".md", ".env"))


def missing(row: str) -> list[str]:
    """The paths of a row that lead nowhere: from a source root, or from a folder of a path before them."""
    folders, lost = list(_ROOTS), []
    for token in filter(is_path, _TOKEN.findall(row)):
        found = next((folder / token for folder in folders if (folder / token).exists()), None)
        if found is None:
            lost.append(token)
        else:
            folders += [found, *(each for each in found.parents if REPOSITORY in each.parents)]
    return lost


def test_every_file_of_where_a_change_goes_and_of_its_steps_exists() -> None:
    for part in (*rows(), *steps()):
        assert any(map(is_path, _TOKEN.findall(part))), part
        assert missing(part) == [], part


def test_a_file_that_is_gone_is_found() -> None:
    assert len(rows()) > 40
    assert len(steps()) == 7
    assert missing("| x | `fractune_core/shares.py`, `records.py`, `gone.py`, `fractune_core/gone/` |") == [
        "gone.py",
        "fractune_core/gone/",
    ]


def test_every_room_of_the_packages_has_a_row() -> None:
    """Each folder of a package stands in a row, itself or by a file in it."""
    text = "\n".join(rows())
    named = set(_TOKEN.findall(text))
    packages = [REPOSITORY / source / package for package, source in SOURCES.items()]
    rooms = {page.parent.name for package in packages for page in package.glob("*/__init__.py")} - {"pb"}
    assert {room for room in rooms if not any(f"{room}/" in token for token in named)} == set()
