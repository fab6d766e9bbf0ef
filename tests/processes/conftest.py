"""Children that make candidates for a GPU, of each file of tests."""

from collections.abc import Iterator

import pytest

from fractune_workers.child import Child


@pytest.fixture(scope="module")
def search() -> Iterator[Child]:
    """Of one thread: two draw other candidates each time."""
    child = Child("fractune_workers.children.searching.child", ["1"])
    yield child
    child.stop()


@pytest.fixture(scope="module")
def builder() -> Iterator[Child]:
    child = Child("fractune_workers.children.building.child")
    yield child
    child.stop()
