"""What work takes, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys
import time

from fractune_workers.context import Meter, cpu_s

_BURN = "import time\nwhile time.process_time() < 0.3: pass\nprint('burnt', flush=True)\ninput()"


def burn(secs: float) -> None:
    end = time.process_time() + secs
    while time.process_time() < end:
        pass


def test_own_cpu_time_counts_and_idle_time_does_not() -> None:
    meter = Meter(lambda: 0.0)
    burn(0.1)
    first = meter.read()
    assert first.cpu_s >= 0.1
    assert first.worked_s >= 0.1
    time.sleep(0.05)
    assert meter.read().cpu_s < first.cpu_s + 0.04


def test_children_count_while_they_live_and_once_they_are_gone() -> None:
    before = cpu_s()
    command = [sys.executable, "-c", _BURN]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "burnt\n"
        assert cpu_s() - before >= 0.28  # the kernel counts those of living processes in steps of 10 ms
        child.communicate("\n")
    assert cpu_s() - before >= 0.3


def test_waits_for_locks_are_no_work() -> None:
    waits = iter([1.0, 1000.0])
    assert Meter(lambda: next(waits)).read().worked_s == 0.0
