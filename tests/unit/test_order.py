"""The order in which the files of tests run."""

from tests.support.order import LONGEST, mixed
from tests.support.paths import REPOSITORY


def test_files_that_wait_and_files_that_compute_are_interleaved_and_the_others_come_last() -> None:
    waiting = [f"tests/integration/test_{at}.py" for at in range(2)] + ["tests/processes/test_2.py"]
    computing = [f"tests/unit/workers/test_{at}.py" for at in range(6)]
    others = ["tests/unit/core/test_a.py", "tests/test_arrows.py"]
    found = mixed([*others, *computing, *waiting])
    assert found[-2:] == others
    assert [file for file in found if file in waiting] == waiting
    assert [file for file in found if file in computing] == computing
    for at, file in enumerate(waiting):
        assert sum(each in found[: found.index(file)] for each in computing) in {2 * at, 2 * at + 1}


def test_the_longest_file_begins_first() -> None:
    assert mixed(["tests/integration/test_a.py", *LONGEST])[0] == LONGEST[0]
    assert all((REPOSITORY / file).is_file() for file in LONGEST)


def test_the_order_of_one_kind_is_kept() -> None:
    given = ["tests/integration/test_z.py", "tests/integration/test_a.py"]
    assert mixed(given) == given
    assert mixed([]) == []
