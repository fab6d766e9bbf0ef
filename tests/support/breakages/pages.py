"""What docs/reliability.md and docs/security.md promise, as far as a program can tell."""

import re
from collections.abc import Iterator

from tests.support.paths import REPOSITORY

_NAMED = re.compile(r"`((?:unit|processes|integration)/[\w/]+\.py)`|`(test_\w+)`")
_ATTEMPT = re.compile(r"^\| (.+) \| .+ \|$", re.MULTILINE)
_DEFENDED = re.compile(r"^\*\*(.+?)\.?\*\*", re.MULTILINE)


def named_tests() -> list[tuple[str, str]]:
    """File and name of each test that docs/reliability.md names; without a name where it names a file alone."""
    return list(_named_tests(_page("reliability")))


def _named_tests(page: str) -> Iterator[tuple[str, str]]:
    file, has_name = "", True
    for match in _NAMED.finditer(page):
        if match[1]:
            if not has_name:
                yield file, ""
            file, has_name = f"tests/{match[1]}", False
        else:
            yield file, match[2]
            has_name = True
    if not has_name:
        yield file, ""


def attempts() -> list[str]:
    """What strangers tried, by docs/security.md: the first cells of the table."""
    _, _, table = _page("security").partition("| attempt | result |\n|---|---|\n")
    return _ATTEMPT.findall(table.partition("\n\n")[0])


def defended() -> list[str]:
    """What docs/security.md says is defended: the first words of each paragraph."""
    _, _, section = _page("security").partition("## Defences\n")
    return _DEFENDED.findall(section.partition("\n#")[0])


def _page(name: str) -> str:
    return (REPOSITORY / "docs" / f"{name}.md").read_text(encoding="utf-8")
