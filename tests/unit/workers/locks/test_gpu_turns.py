"""A measurer keeps its claim on a GPU from one piece of work to the next, for a bounded time."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fractune_workers.locks import gpu_slots
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.gpu_slots import ALONE, Claim, GpuSlots, GpuTurns
from tests.support.processes.redis_process import wait_until

GPU = "GPU-00000000-cdf7-e667-3644-bf5b4f46ed65"
QUARTER = Claim("mps", 32, 132)
LONG_S = 3600.0
PIECES = 8

_KEEP = """
import sys
from pathlib import Path
from fractune_workers.locks.gpu_slots import ALONE
from fractune_workers.locks.gpu_slots import GpuTurns
turns = GpuTurns(Path(sys.argv[1]), sys.argv[2], turn_s=3600)
with turns.holding(ALONE):
    pass
print("kept", flush=True)
sys.stdin.read()
"""


class Other:
    """A measurer that waits for the GPU once, in a thread."""

    def __init__(self, folder: Path, claim: Claim) -> None:
        self.is_in, self.leaves = threading.Event(), threading.Event()
        self._slots, self._claim = GpuSlots(folder, GPU), claim
        self._thread = threading.Thread(target=self._measure)
        self._thread.start()

    def _measure(self) -> None:
        with self._slots.holding(self._claim):
            self.is_in.set()
            assert self.leaves.wait(30)

    def leave(self) -> None:
        self.leaves.set()
        self._thread.join(30)
        assert self.is_in.is_set()


def other_waits(folder: Path) -> bool:
    return CoreLocks(folder / f"gpu-{GPU}", 8).is_measurement_waiting()


def claims(folder: Path) -> int:
    return len(list((folder / f"gpu-{GPU}").glob("claim-*")))


def test_pieces_follow_each_other_though_another_claim_waits(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(ALONE):
        other = Other(tmp_path, QUARTER)
        wait_until(lambda: other_waits(tmp_path))
    for _ in range(PIECES):
        with turns.holding(ALONE):
            assert not other.is_in.is_set()
    assert turns.under_way
    turns.end()
    assert other.is_in.wait(30)
    other.leave()
    assert claims(tmp_path) == 0


def test_a_turn_ends_with_the_piece_that_ends_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(gpu_slots, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    turns = GpuTurns(tmp_path, GPU, 2.0)
    kept = []
    for ends_s in (100.5, 101.9, 102.0):
        with turns.holding(ALONE):
            now_s = ends_s
        kept.append(turns.under_way)
    assert kept == [True, True, False]


def test_a_turn_that_is_over_does_not_go_on_after_a_pause(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(gpu_slots, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=time.sleep))
    turns = GpuTurns(tmp_path, GPU, 2.0)
    with turns.holding(ALONE):
        other = Other(tmp_path, ALONE)
        wait_until(lambda: other_waits(tmp_path))
    now_s = 103.0

    def go_on() -> None:
        with turns.holding(ALONE):
            pass

    thread = threading.Thread(target=go_on)
    thread.start()
    assert other.is_in.wait(30), "the other one has waited for longer"
    other.leave()
    thread.join(30)
    assert turns.under_way
    turns.end()


def test_another_claim_is_not_measured_under_the_kept_one(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(QUARTER):
        beside = Other(tmp_path, QUARTER)
        assert beside.is_in.wait(30)
    validation = threading.Event()

    def validate() -> None:
        with turns.holding(ALONE):
            validation.set()

    thread = threading.Thread(target=validate)
    thread.start()
    wait_until(lambda: other_waits(tmp_path))
    assert not validation.is_set()
    beside.leave()
    thread.join(30)
    assert validation.is_set()
    turns.end()


def test_a_piece_that_raises_ends_the_turn(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with pytest.raises(RuntimeError), turns.holding(ALONE):
        raise RuntimeError
    assert claims(tmp_path) == 0


def test_neighbours_are_those_of_each_piece(tmp_path: Path) -> None:
    turns = GpuTurns(tmp_path, GPU, LONG_S)
    with turns.holding(QUARTER) as first:
        beside = Other(tmp_path, QUARTER)
        assert beside.is_in.wait(30)
    with turns.holding(QUARTER) as second:
        pass
    beside.leave()
    with turns.holding(QUARTER) as third:
        pass
    turns.end()
    assert [slot.co_runners for slot in (first, second, third)] == [1, 1, 0]


def test_a_process_that_dies_between_two_pieces_keeps_nothing(tmp_path: Path) -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", _KEEP, str(tmp_path), GPU], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert keeper.stdout is not None
        assert keeper.stdout.readline() == "kept\n"
        other = Other(tmp_path, QUARTER)
        wait_until(lambda: other_waits(tmp_path))
        assert not other.is_in.is_set()
    finally:
        keeper.kill()
        keeper.communicate()
    assert other.is_in.wait(30)
    other.leave()


def test_measurers_with_endless_work_alternate(tmp_path: Path) -> None:
    """Nobody starves: each has a turn within the turns of the others."""
    ended, lock, order = threading.Event(), threading.Lock(), list[str]()

    def work(name: str, claim: Claim) -> None:
        turns = GpuTurns(tmp_path, GPU, turn_s=0.05)
        while not ended.is_set():
            with turns.holding(claim), lock:
                order.append(name)
            time.sleep(0.001)
        turns.end()

    each = {"whole": ALONE, "quarter 1": QUARTER, "quarter 2": QUARTER}
    threads = [threading.Thread(target=work, args=named) for named in each.items()]
    for thread in threads:
        thread.start()

    def turns_of(name: str) -> int:
        with lock:
            alone = [each == "whole" for each in order]
        wanted = name == "whole"
        return sum(now == wanted and before != wanted for before, now in itertools.pairwise(alone))

    try:
        wait_until(lambda: min(turns_of("whole"), turns_of("quarters")) >= 3)
    finally:
        ended.set()
        for thread in threads:
            thread.join(30)
    turns = turns_of("whole") + turns_of("quarters")
    assert len(order) > 3 * turns, "a turn has several pieces"
    assert {*order} == {*each}
    assert claims(tmp_path) == 0
