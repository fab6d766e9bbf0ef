"""docs/reliability.md names tests: they are there, in the files that it says."""

from tests.support.breakages.pages import named_tests
from tests.support.paths import REPOSITORY


def test_every_test_that_the_page_names_is_there() -> None:
    named = [(file, name) for file, name in named_tests() if name]
    assert len(named) > 15
    missing = [each for each in named if f"def {each[1]}(" not in (REPOSITORY / each[0]).read_text()]
    assert missing == []
