"""The loops of the process that shares a processor: what counts, who has a turn, when it ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from pathlib import Path

from fractune.features.pair.child import AlternationLock, Loops, bubble
from tests.support.processes.redis_process import wait_until

SIDES, TURNS = 2, 20
WAITS_S = 2.0
"""far longer than a busy machine keeps a thread waiting"""


def test_a_loop_counts_from_when_it_is_told_and_what_warms_up_does_not_count() -> None:
    calls: list[float] = []

    def call() -> None:
        calls.append(time.monotonic())
        time.sleep(0.002)

    now_s = time.monotonic()
    marks = Loops(call, contextlib.nullcontext).loop(0.02, now_s + WAITS_S, 0.02)
    warm = [moment for moment in calls if moment < marks[0]]
    assert now_s + 0.02 <= calls[0] < now_s + WAITS_S <= marks[0]  # it was at work already when it was to begin
    assert len(warm) > 1
    assert len(calls) - len(warm) == len(marks) - 1
    assert marks == sorted(marks)
    assert marks[-2] < marks[0] + 0.02 <= marks[-1]


def test_at_least_one_call_warms_up_however_late_it_is() -> None:
    calls: list[int] = []
    marks = Loops(lambda: calls.append(1), contextlib.nullcontext).loop(0.0, 0.0, 0.001)
    assert len(calls) == len(marks)  # one before the first mark, and one before each of the others


def test_a_request_waits_for_the_one_before_it_and_that_counts() -> None:
    loops = Loops(lambda: time.sleep(0.02), contextlib.nullcontext)
    begin_s = time.monotonic() + 0.05
    first, second, third = loops.serve(begin_s, [0.0, 0.0, 0.2])
    assert 0.02 <= first < second
    assert second >= 0.04
    assert third >= 0.02


def test_work_ends_with_its_calls_or_when_the_other_has_ended(tmp_path: Path) -> None:
    calls: list[int] = []
    loops, flag = Loops(lambda: calls.append(1), contextlib.nullcontext), tmp_path / "ended"
    told = loops.work(time.monotonic(), 5, str(flag))
    assert (told["done"], len(calls), flag.exists()) == (5, 5, True)
    assert told["ended_s"] <= time.monotonic()
    assert loops.work(time.monotonic(), 5, str(flag))["done"] == 0


def test_two_holders_of_the_lock_alternate_and_never_overlap(tmp_path: Path) -> None:
    seen: list[str] = []
    both_wait = threading.Barrier(2)

    def the_last() -> bool:
        return len(seen) == 2 * SIDES * TURNS - 1

    def co_runner(name: str) -> None:
        lock = AlternationLock(tmp_path)
        both_wait.wait()
        for _ in range(TURNS):
            with lock.held():
                seen.append(f"{name} begins")
                wait_until(lambda: the_last() or somebody_waits_for(tmp_path / "now"), every_s=0.001)
                seen.append(f"{name} ends")
        lock.close()

    threads = [threading.Thread(target=co_runner, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(begin.replace("begins", "ends") == end for begin, end in zip(seen[::2], seen[1::2], strict=True))
    order = [begin[0] for begin in seen[::2]]
    # Without the second lock who has had a turn takes the next one too.
    assert all(one != other for one, other in itertools.pairwise(order))


def somebody_waits_for(file: Path) -> bool:
    """Whether somebody waits for the lock on the file, by what the kernel says."""
    locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(words[1] == "->" and words[6].endswith(f":{file.stat().st_ino}") for words in locks)


def test_a_bubble_takes_as_much_memory_as_it_says() -> None:
    before = resident_bytes()
    told, call = bubble(128)
    call()
    assert told == {}
    assert resident_bytes() - before > 120 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
