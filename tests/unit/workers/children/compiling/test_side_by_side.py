"""Pieces of work in forks: their results keep their order, and no fork is left when one fails."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.errors import BadModel, FractuneError
from fractune_workers.child import Child
from fractune_workers.child.errors import LimitMet
from fractune_workers.reader import reader_child
from tests.support.paths import REPOSITORY


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    child = Child("tests.support.children.side_by_side_module")
    yield child
    child.stop()


def test_results_come_in_order_each_from_a_process_of_its_own(child: Child) -> None:
    names = [str(number) for number in range(7)]
    answers = child.call("all", 20, names=names)
    assert [name for name, _ in answers] == names
    assert len({child.call("pid", 20), *(pid for _, pid in answers)}) == 8


def test_pieces_share_the_memory_that_there_is() -> None:
    limit_bytes, pieces = 8 << 30, 4
    env = {"PYTHONPATH": str(REPOSITORY)}
    child = reader_child("tests.support.children.side_by_side_module", env=env, memory_bytes=limit_bytes)
    try:
        have_bytes = child.call("addressed", 20)
        rooms = [room for _, room in child.call("all", 20, names=["room"] * pieces)]
    finally:
        child.stop()
    at_once = min(len(os.sched_getaffinity(0)), pieces)
    fair_bytes = have_bytes + (limit_bytes - have_bytes) // at_once
    assert rooms == [pytest.approx(fair_bytes, rel=0.01)] * pieces


def test_a_piece_that_meets_its_limit_says_so(child: Child) -> None:
    with pytest.raises(LimitMet, match="CPU time"):
        child.call("all", 20, names=["a", "burn"])
    assert child.call("pid", 20)


@pytest.mark.parametrize(
    ("name", "kind", "said"), [("refuse", BadModel, "not this one"), ("crash", FractuneError, "ended by SIGSEGV")]
)
def test_the_first_error_is_raised_once_no_fork_is_left(
    child: Child, name: str, kind: type[FractuneError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        child.call("all", 20, names=["a", name, "refuse", "b", "c"])
    pid = child.call("pid", 20)
    assert not Path(f"/proc/{pid}/task/{pid}/children").read_text()
