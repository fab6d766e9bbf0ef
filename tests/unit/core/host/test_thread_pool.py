"""CPUs dealt out to the threads of a model, on made-up hosts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractune_core.host.threads import parts
from tests.support.hardware.cpu_tree import cpus_of


@pytest.mark.parametrize(
    ("threads", "dealt"),
    [
        (1, [(0, 1, 2, 3)]),
        (2, [(0, 2), (1, 3)]),
        (3, [(0, 3), (1,), (2,)]),
        (4, [(0,), (1,), (2,), (3,)]),
    ],
)
def test_every_thread_has_its_part(tmp_path: Path, threads: int, dealt: list[tuple[int, ...]]) -> None:
    assert parts((3, 2, 1, 0), threads, cpus_of(tmp_path, "0", "1", "2", "3")) == dealt


def test_two_threads_do_not_share_a_core_that_has_two_cpus(tmp_path: Path) -> None:
    host = cpus_of(tmp_path, "0,4", "1,5", "2,6", "3,7")
    assert parts(range(8), 2, host) == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert parts(range(8), 4, host) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert parts((0, 1, 4), 2, host) == [(0, 4), (1,)]
    neighbours = cpus_of(tmp_path / "neighbours", "0,1", "2,3")
    assert parts(range(4), 2, neighbours) == [(0, 1), (2, 3)]


def test_with_more_threads_than_cores_each_has_cpus_of_its_own(tmp_path: Path) -> None:
    host = cpus_of(tmp_path, "0,1", "2,3")
    assert parts(range(4), 4, host) == [(0,), (1,), (2,), (3,)]
    assert parts(range(4), 3, host) == [(0, 3), (1,), (2,)]


def test_where_the_kernel_tells_nothing_every_cpu_is_a_core(tmp_path: Path) -> None:
    assert parts((5, 7, 9), 2, tmp_path) == [(5, 9), (7,)]


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 64))
def test_every_cpu_is_in_one_part(cpus: set[int], threads: int) -> None:
    threads = min(threads, len(cpus))
    dealt = parts(cpus, threads, Path("/nowhere"))
    assert len(dealt) == threads
    assert sorted(cpu for part in dealt for cpu in part) == sorted(cpus)
    assert all(dealt)
