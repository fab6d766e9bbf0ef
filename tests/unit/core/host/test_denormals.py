"""A function in its own floating-point mode, and the thread of its caller in the mode of before."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from fractune_core.host import threads
from fractune_core.host.threads import with_denormals
from tests.support.denormals import FLUSHING, flushes, read_mxcsr, write_mxcsr

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

    threads._access.cache_clear()
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ctypes.PyDLL", missing)
    assert with_denormals(flushes, kept=False) is flushes
    monkeypatch.undo()
    threads._access.cache_clear()
