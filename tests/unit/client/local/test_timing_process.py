"""A process that times models: a wait for the cores of another measurement is reported."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from fractune.local import timing_process
from fractune.local.timing_process import noting_a_wait
from fractune_workers.locks import core_locks
from fractune_workers.locks.core_locks import CoreLocks
from tests.support.processes.redis_process import wait_until


def test_the_holder_of_the_cores_is_named_while_this_process_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(timing_process, "_WAIT_NOTED_S", 0.1)
    monkeypatch.setattr(core_locks, "_WAIT_NOTED_S", 0.01)
    lines: list[str] = []
    waiting, holding = CoreLocks(tmp_path, 8), CoreLocks(tmp_path, 8)

    def measure() -> None:
        with noting_a_wait(waiting, lines.append), waiting.measuring([0]):
            pass

    thread = threading.Thread(target=measure)
    with holding.measuring([0]):
        thread.start()
        wait_until(lambda: lines != [])
    thread.join(30)
    assert lines == [f"waiting for the measurement cores, held by PID {os.getpid()} of another stack"]
