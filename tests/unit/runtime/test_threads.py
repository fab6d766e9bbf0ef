"""A function in its own floating-point mode; CPUs dealt out to the threads of a model, on made-up hosts."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_runtime.runner import parts
from fractune_runtime.tvm_runtime import runtime
from fractune_runtime.tvm_runtime.runtime import with_denormals
from tests.support.denormals import FLUSHING, flushes, read_mxcsr, write_mxcsr
from tests.support.hardware.cpu_tree import cpus_of

_TOWARDS_ZERO = 0x6000
"""bits of MXCSR that round"""


@pytest.fixture(params=[0x1F80, 0x1F80 | FLUSHING, 0x1F80 | _TOWARDS_ZERO], ids=["normal", "flushed", "rounding"])
def callers(request: pytest.FixtureRequest) -> Iterator[int]:
    """The register of the calling thread."""
    before, mode = read_mxcsr(), int(request.param)
    write_mxcsr(mode)
    yield mode
    write_mxcsr(before)


@pytest.mark.parametrize("kept", [False, True])
def test_a_function_has_its_mode_whatever_its_callers(callers: int, *, kept: bool) -> None:
    assert with_denormals(read_mxcsr, kept=kept)() == (0x1F80 if kept else 0x1F80 | FLUSHING)
    assert read_mxcsr() == callers


def test_the_caller_is_in_its_own_mode_after_an_exception(callers: int) -> None:
    def fail(text: str, *, number: int) -> None:
        assert flushes()
        raise KeyError(text, number)

    with pytest.raises(KeyError, match="as it is"):
        with_denormals(fail, kept=False)("as it is", number=7)
    assert read_mxcsr() == callers


def test_the_caller_of_one_inside_another_has_its_own_mode_too() -> None:
    inner = with_denormals(read_mxcsr, kept=True)
    outer = with_denormals(lambda: (inner(), read_mxcsr()), kept=False)
    assert outer() == (0x1F80, 0x1F80 | FLUSHING)
    assert not flushes()


def test_no_other_thread_is_in_that_mode() -> None:
    inside, found, may_end = threading.Event(), list[bool](), threading.Event()

    def work() -> None:
        inside.set()
        may_end.wait(60)
        found.append(flushes())

    thread = threading.Thread(target=with_denormals(work, kept=False))
    thread.start()
    assert inside.wait(60)
    assert not flushes()
    may_end.set()
    thread.join(60)
    assert found == [True]


@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_a_processor_or_a_library_without_modes_runs_the_function_as_it_is(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(_name: str) -> None:
        raise OSError("no such library")

    runtime._access.cache_clear()
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ctypes.PyDLL", missing)
    assert with_denormals(flushes, kept=False) is flushes
    monkeypatch.undo()
    runtime._access.cache_clear()


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
