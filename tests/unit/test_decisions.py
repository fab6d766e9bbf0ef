"""The index of docs/decisions: each page once, under its own number and title."""

import re

from tests.support.paths import REPOSITORY

PAGES = REPOSITORY / "docs" / "decisions"


def test_each_page_is_listed_once_under_its_title() -> None:
    listed = re.findall(r"^- \[(.+)\]\((.+)\)$", (PAGES / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    pages = [(path.read_text(encoding="utf-8").partition("\n")[0][2:], path.name) for path in PAGES.glob("[0-9]*.md")]
    assert sorted(listed) == sorted(pages)


def test_the_number_of_a_page_is_in_its_name_and_title_and_belongs_to_it_alone() -> None:
    numbers = [int(path.name[:2]) for path in PAGES.glob("[0-9]*.md")]
    assert len(numbers) == len(set(numbers))
    for path in PAGES.glob("[0-9]*.md"):
        assert path.read_text(encoding="utf-8").startswith(f"# {int(path.name[:2])}. "), path.name
