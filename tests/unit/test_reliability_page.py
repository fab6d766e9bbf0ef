"""docs/reliability.md names tests: they are there, in the files that it says."""

from __future__ import annotations

import re

from tests.support.paths import REPOSITORY

_NAMED = re.compile(r"`((?:unit|processes|integration)/[\w/]+\.py)`|`(test_\w+)`")


def test_every_test_that_the_page_names_is_there() -> None:
    file, named = "", []
    for match in _NAMED.finditer((REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8")):
        file = match[1] or file
        if match[2]:
            named.append((file, match[2]))
    assert len(named) > 15
    missing = [each for each in named if f"def {each[1]}(" not in (REPOSITORY / "tests" / each[0]).read_text()]
    assert missing == []
