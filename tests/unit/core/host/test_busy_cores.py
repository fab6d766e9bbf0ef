"""The cores that others had while something ran."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fractune_core.host import machine

STAT = "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 9999 5 1 2 7 50 0\ncpu1 300 0 0 9999 0 0 0 40 0 0\nintr 1 2 3\n"
"""user, nice, system, idle, iowait, irq, softirq, steal; guests are counted as user too"""


def test_busy_time_is_that_of_the_cores_and_of_the_hypervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: STAT)
    assert [machine.busy_s(cores) for cores in ([0], [1], [0, 1], [])] == [1.6, 3.4, 5.0, 0.54]


def test_own_time_is_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    busy_s, wall_s, own_s = iter([10.0, 14.0]), iter([100.0, 104.0]), iter([1.0, 4.0])
    monkeypatch.setattr(machine, "busy_s", lambda _: next(busy_s))
    monkeypatch.setattr(time, "perf_counter", lambda: next(wall_s))
    assert machine.beside_others(lambda: "found", [0], lambda: next(own_s)) == ("found", 0.25)
