"""A whole model that is timed beside a real busy process: its times are marked, and taken again once it is quiet."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fractune.local.timing_process import TimingChild
from fractune_core.host.machine import beside_others
from fractune_core.served import is_disturbed, timed_quietly
from fractune_core.shares import Share
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.measuring.session import MeasurementSession
from fractune_workers.sandboxes import MeasurerLimits
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import Small

pytestmark = pytest.mark.alone


@pytest.fixture
def core() -> Iterator[int]:
    """One that no stack measures on."""
    first = min(os.sched_getaffinity(0))
    with CoreLocks(default_lock_dir()).measuring([first]):
        yield first


@pytest.fixture
def busy(core: int) -> Iterator[subprocess.Popen[bytes]]:
    """A process that keeps the core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        os.sched_setaffinity(process.pid, [core])
        yield process
        process.kill()


def test_a_model_beside_a_busy_process_is_marked(
    core: int, busy: subprocess.Popen[bytes], small: Small, tmp_path: Path
) -> None:
    limits = MeasurerLimits(readable=[small.bundle.parent])
    session = MeasurementSession(Share.parse("cpu:1"), [core], lock_dir=tmp_path, limits=limits)
    try:
        found = session.time_model(small.bundle)
    finally:
        session.stop()
    assert busy.poll() is None
    assert is_disturbed(found["others_cores"])
    assert found["others_cores"] > 0.3, "the kernel gives each of two the half"


def test_a_disturbed_timing_is_taken_again_when_it_is_quiet(core: int, busy: subprocess.Popen[bytes]) -> None:
    def timed_again() -> bool:  # in a process of its own, because it is confined
        child, others = TimingChild("cpu:1", [core]), list[float]()

        def timed() -> dict[str, Any]:
            """The busy process ends with the first timing."""
            others.append(beside_others(partial(_work, 3.0), [core])[1])
            os.kill(busy.pid, signal.SIGKILL)
            return {"timing": len(others)}

        found = child.proved(timed)
        return is_disturbed(others[0]) and found["timing"] > 1 and found["others_cores"] < others[0]

    busy.send_signal(signal.SIGSTOP)
    _skip_beside_others(core)
    busy.send_signal(signal.SIGCONT)
    if not succeeds_in_child(timed_again):
        _skip_beside_others(core)
        pytest.fail("the timing was not taken again")


def test_a_busy_process_that_stays_is_waited_for_only_so_long(core: int, busy: subprocess.Popen[bytes]) -> None:
    def timed(secs: float = 1.0) -> tuple[None, float]:
        return beside_others(partial(time.sleep, secs), [core])

    began_s = time.monotonic()
    assert is_disturbed(timed_quietly(timed, lambda secs: timed(secs)[1])[1])
    assert 1.5 < time.monotonic() - began_s < 10.0
    assert busy.poll() is None


def _skip_beside_others(core: int) -> None:
    """The core gets no quieter while the programs of others are on it."""
    if is_disturbed(beside_others(partial(time.sleep, 2.0), [core])[1]):
        pytest.skip("programs of others keep the core busy")


def _work(lasts_s: float) -> None:
    until_s = time.monotonic() + lasts_s
    while time.monotonic() < until_s:
        pass
