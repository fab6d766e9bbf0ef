"""Two models side by side: what is run, and the child that runs one."""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fractune.features.pair.child import AlternationLock, Loops, bubble
from fractune.features.pair.run import Arrangement, CoLocation, arrange
from fractune_core.errors import BadRequest, FractuneError, ShareUnavailable
from tests.support.processes.redis_process import wait_until

Marks = Callable[[dict[str, Any]], list[float]]


@dataclass(eq=False)
class SimulatedCoRunner:
    program: SimpleNamespace
    secs: float
    call: Callable[..., Future[list[float]]]


def co_runner(name: str, calls: list[str], marks: Marks, *, is_model: bool = True) -> Any:
    """Answers every loop at once, by its word."""

    def call(method: str, expected_s: float, **payload: Any) -> Future[list[float]]:
        assert (method, expected_s > 0) == ("loop", True)
        calls.append(name)
        future: Future[list[float]] = Future()
        future.set_result(marks(payload))
        return future

    return SimulatedCoRunner(SimpleNamespace(is_model=is_model, name=name), 0.1, call)


def lasting(secs: float) -> Marks:
    """A loop of iterations of that length."""

    def marks(payload: dict[str, Any]) -> list[float]:
        count = round(payload["lasts_s"] / secs)
        return [payload["begin_s"] + number * secs for number in range(count + 1)]

    return marks


def test_a_round_is_the_same_from_both_ends() -> None:
    calls: list[str] = []
    names = ("A", "B", "A whole", "B whole")
    a, b, whole_a, whole_b = (
        co_runner(name, calls, lasting(secs)) for name, secs in zip(names, (0.1, 0.2, 0.05, 0.1), strict=True)
    )
    both = CoLocation([a, b], [whole_a, whole_b], 0)
    first = both.time_round(0)
    assert calls == ["A whole", "B whole", "A", "B", *("A", "B"), *("A", "B"), "B", "A", "B whole", "A whole"]
    assert [times.share_s for times in first] == pytest.approx([0.1, 0.2])
    assert [times.s for times in first] == pytest.approx([2.0, 2.0])
    assert [times.i for times in first] == pytest.approx([1.0, 1.0])
    assert [times.control_s for times in first] == pytest.approx([0.1, 0.2])


def test_two_on_the_whole_are_timed_there_once() -> None:
    calls: list[str] = []
    a, b = (co_runner(name, calls, lasting(0.1)) for name in "AB")
    times = CoLocation([a, b], [a, b], 0).time_round(0)
    assert [each.s for each in times] == [1.0, 1.0]
    assert calls == ["A", "B", "A", "B", "A", "B", "B", "A"]


def test_a_co_runner_that_is_not_a_model_is_only_there() -> None:
    calls: list[str] = []
    a, bubble = co_runner("A", calls, lasting(0.1)), co_runner("bubble", calls, lasting(0.01), is_model=False)
    (times,) = CoLocation([a, bubble], [], 0).time_round(0)
    assert (calls, times.whole_s) == (["A", "A", "A", "bubble", "A"], None)


@pytest.mark.parametrize(("late", "tries"), [(0, 1), (2, 3)])
def test_two_that_missed_each_other_are_started_again(late: int, tries: int) -> None:
    calls: list[str] = []
    a, b = co_runner("A", calls, lasting(0.1)), co_runner("B", calls, held_up(late), is_model=False)
    (times,) = CoLocation([a, b], [], 0).time_round(0)
    assert times.i == pytest.approx(1.0)
    assert calls.count("B") == tries


def test_two_that_are_far_slower_together_get_longer_loops_from_then_on() -> None:
    lasted_s: list[float] = []

    def slow(payload: dict[str, Any]) -> list[float]:
        """Five seconds an inference, but for the loops that are not beside the other."""
        lasted_s.append(payload["lasts_s"])
        return lasting(5.0 if payload["phase_s"] else 0.1)(payload)

    a, b = co_runner("A", [], slow), co_runner("B", [], lasting(0.1), is_model=False)
    both = CoLocation([a, b], [], 0)
    (times,) = both.time_round(0)
    assert times.i == pytest.approx(50.0)
    assert max(lasted_s) == pytest.approx(16 * both.block_s)
    lasted_s.clear()
    both.time_round(0)
    assert sorted(lasted_s)[-2:] == pytest.approx([both.block_s, 16 * both.block_s])


def test_but_not_for_ever() -> None:
    a, b = co_runner("A", [], lasting(0.1)), co_runner("B", [], held_up(9), is_model=False)
    with pytest.raises(FractuneError, match="A and B never ran together in 3 loops"):
        CoLocation([a, b], [], 0).time_round(0)


def held_up(times: int) -> Marks:
    """A loop that begins far too late, so many times."""
    delays = iter([100.0] * times)
    return lambda payload: [mark + delay for delay in [next(delays, 0.0)] for mark in lasting(0.1)(payload)]


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


def arranged(kind: str = "cpu", cores: int = 4, **asked: Any) -> Arrangement:
    return arrange(kind, **{"shares": None, "overlap": None, "interleaved": False, "cores": range(cores), **asked})


def places(found: Arrangement) -> list[tuple[str, tuple[int, ...]]]:
    whole = [found.whole] if found.whole else []
    return [(str(place.share), place.cores) for place in (*found.placements, *whole)]


def test_where_a_pair_lies() -> None:
    found = arranged(shares="cpu:1,cpu:2")
    assert places(found) == [("cpu:1", (0,)), ("cpu:2", (1, 2)), ("cpu:3", (0, 1, 2))]
    assert str(found) == "cpu:1 + cpu:2, each on its own, of cpu:3"
    found = arranged(overlap="cpu:2")
    assert places(found) == [("cpu:2", (0, 1))] * 3
    assert (found.interleaved, str(found)) == (False, "both at cpu:2, at the same time")
    assert places(arranged(interleaved=True)) == [("cpu:4", (0, 1, 2, 3))] * 3
    found = arranged(interleaved=True, overlap="cpu:2")
    assert places(found) == [("cpu:2", (0, 1))] * 3
    assert (found.interleaved, str(found)) == (True, "both at cpu:2, alternately")


@pytest.mark.parametrize(
    ("cores", "wanted"),
    [
        (2, [("cpu:1", (0,)), ("cpu:1", (1,)), ("cpu:2", (0, 1))]),
        (5, [("cpu:2", (0, 1)), ("cpu:2", (2, 3)), ("cpu:4", (0, 1, 2, 3))]),
        (1, [("cpu:1", (0,))] * 3),
    ],
)
def test_nothing_said_is_half_for_each_and_one_core_for_both_where_there_is_one(
    cores: int, wanted: list[tuple[str, tuple[int, ...]]]
) -> None:
    assert places(arranged(cores=cores)) == wanted


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ({}, [("mps:50", ()), ("mps:50", ()), ("mps:100", ())]),
        ({"shares": "mps:25,mps:75"}, [("mps:25", ()), ("mps:75", ()), ("mps:100", ())]),
        ({"overlap": "mps:60"}, [("mps:60", ())] * 3),
        ({"interleaved": True}, [("full", ())] * 3),
        ({"shares": "mig:1g.18gb,mig:1g.18gb"}, [("mig:1g.18gb", ())] * 2),  # a divided GPU has no whole
        ({"shares": "mps-sm:4,mps-sm:8"}, [("mps-sm:4", ()), ("mps-sm:8", ())]),
    ],
)
def test_a_gpu_is_arranged_by_the_same_rules(asked: dict[str, Any], wanted: list[Any]) -> None:
    found = arranged("cuda", **asked)
    assert places(found) == wanted
    assert not found.is_verified


@pytest.mark.parametrize(
    ("kind", "asked", "error", "says"),
    [
        ("cpu", {"shares": "cpu:1,cpu:1", "overlap": "cpu:2"}, BadRequest, "give one of them"),
        ("cpu", {"shares": "cpu:1,cpu:1", "interleaved": True}, BadRequest, "give one of them"),
        ("cpu", {"shares": "cpu:1"}, BadRequest, "name two"),
        ("cpu", {"shares": "cpu:1,cpu:1,cpu:1"}, BadRequest, "name two"),
        ("cpu", {"shares": "cpu:0,cpu:1"}, BadRequest, "'0' is not a size"),
        ("cpu", {"shares": "mps:50,mps:50"}, BadRequest, "the bundle is for a CPU"),
        ("cuda", {"overlap": "cpu:1"}, BadRequest, "the bundle is for a GPU"),
        ("cuda", {"shares": "mps:50,mig:1g.18gb"}, BadRequest, "by one mechanism"),
        ("cuda", {"shares": "full,full"}, BadRequest, "by one mechanism"),
        ("cuda", {"shares": "green:8,green:8"}, BadRequest, "must be under its share as a whole"),
        ("cpu", {"shares": "cpu:3,cpu:2"}, ShareUnavailable, "takes 5 cores, and 4 may be used here"),
        ("cpu", {"overlap": "cpu:5"}, ShareUnavailable, "takes 5 cores, and 4 may be used here"),
        ("cuda", {"shares": "mps:60,mps:50"}, ShareUnavailable, "exceed the whole GPU"),
        ("cpu", {"shares": "cpu:500m,cpu:1"}, BadRequest, "a CPU limit reserves no cores, .* by fractune fit"),
    ],
)
def test_what_cannot_be_meant_or_had_is_refused(
    kind: str, asked: dict[str, Any], error: type[FractuneError], says: str
) -> None:
    with pytest.raises(error, match=says):
        arranged(kind, **asked)
