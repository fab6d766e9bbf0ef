"""The timer of whole models: calls of several, interleaved. Every other round reverses the order."""

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fractune_runtime.runner import MIN_REPEAT_S, secs_of_one


def serve(calls: Sequence[Callable[[], Any]], arrivals_s: Sequence[float | None]) -> dict[str, Any]:
    """Requests at those times, each by the replica that is free first; None: at once. Each of `calls` is a replica.

    Latencies, in the order of the ends, count from the arrival or else from the call. CPU time is the process's, for
    each request. All are in seconds.
    """
    queue, latencies_s = deque(arrivals_s), list[float]()
    began_s, used_s = time.perf_counter(), time.process_time()

    def work(call: Callable[[], Any]) -> None:
        while True:
            try:
                arrival_s = queue.popleft()
            except IndexError:
                return
            now_s = time.perf_counter()
            start_s = now_s if arrival_s is None else began_s + arrival_s
            time.sleep(max(0.0, start_s - now_s))
            call()
            latencies_s.append(time.perf_counter() - start_s)

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {
        "latencies_s": latencies_s,
        "elapsed_s": time.perf_counter() - began_s,
        "cpu_s": (time.process_time() - used_s) / len(latencies_s),
    }


PAUSE_S = 0.02
"""between the answer to one paced request and the next request"""
PACED = f"each request comes {PAUSE_S * 1e3:g} ms after the previous answer"
"""the meaning of paced, for people"""
_MOST_PACED_CALLS = 3
BRIEF_S = 2.0
"""limits the rounds of a finalist that is shown for comparison only"""
_QUIET_LOOK_S, _QUIET_LOOKS = 0.01, 100
_LOOP_S, _LEAST_CALLS, _MOST_CALLS = 0.1, 4, 200
"""of a loop of `time_services` in a round"""
_PACED_CALLS = 4
_LEAST_ROUNDS = 5
_Key = TypeVar("_Key")


@dataclass(frozen=True)
class Times:
    """Seconds of one call of a finalist, a value for each round."""

    loop_secs: list[float] = field(default_factory=list)
    """of calls that follow one another at once, as in a service that is always busy"""
    paced_secs: list[float] = field(default_factory=list)
    """of calls after a pause of `PAUSE_S`: threads have gone to sleep, as in a service that waits for requests"""


@dataclass
class ServiceTimes:
    """Seconds of single inferences with one number of threads."""

    loop_secs: list[float] = field(default_factory=list)
    """of inferences that follow one another at once"""
    loop_cpu_s: float = 0.0
    """CPU time of the whole process in these, all together"""
    paced_secs: list[float] = field(default_factory=list)
    """of inferences that follow a pause of `PAUSE_S`"""
    pause_cpu_s: float = 0.0
    """CPU time of the whole process in the pauses after these, all together"""


def time_interleaved(
    finalists: Mapping[str, Callable[[], Any]], repeats: int, *, apart: bool = False, brief: str = ""
) -> dict[str, Times]:
    """Seconds of one call by finalist, in a loop and paced, `repeats` of each, interleaved: all see the same machine.

    No finalist always follows the same other. With `apart`, a timing
    begins only when the threads of the previous finalist sleep: threads of another pool would spin on for a while, on
    the cores of the next.

    The finalist `brief` has been called already, and has fewer rounds, at least one, if its calls take long: it is left
    out once its times add up to `BRIEF_S`.
    """
    for name, call in finalists.items():
        if name != brief:
            call()
    times = {name: Times() for name in finalists}
    for _, turns in _rounds(finalists, repeats):
        for name in turns:
            found, call = times[name], finalists[name]
            if name == brief and sum((*found.loop_secs, *found.paced_secs)) >= BRIEF_S:
                continue
            if apart:
                wait_for_quiet()
                call()
            found.loop_secs.append(secs_of_one(call))
            found.paced_secs.append(_time_paced(call))
    return times


def time_loops(finalists: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Seconds of one call in a loop by finalist, `repeats` of each, interleaved. A call that does not count comes
    before each loop. The finalists share the threads of one pool, which need not fall asleep in between.
    """
    secs: dict[str, list[float]] = {name: [] for name in finalists}
    for _, turns in _rounds(finalists, repeats):
        for name in turns:
            finalists[name]()
            secs[name].append(secs_of_one(finalists[name]))
    return secs


def time_services(calls: Mapping[int, Callable[[], Any]], rounds: int, most_s: float) -> dict[int, ServiceTimes]:
    """The times of one inference, by number of threads, over `rounds` interleaved rounds. After `most_s` seconds no
    further round begins, but at least five do.
    """
    times = {threads: ServiceTimes() for threads in calls}
    began_s = time.monotonic()
    for number, turns in _rounds(calls, rounds):
        if number >= _LEAST_ROUNDS and time.monotonic() > began_s + most_s:
            break
        for threads in turns:
            wait_for_quiet()
            calls[threads]()
            _serve_loop(calls[threads], times[threads])
            _serve_paced(calls[threads], times[threads])
    return times


def time_single_calls(finalists: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Seconds of each of `count` calls by finalist, which alternate."""
    secs: dict[str, list[float]] = {name: [] for name in finalists}
    for _ in range(count):
        for name, call in finalists.items():
            start = time.perf_counter()
            call()
            secs[name].append(time.perf_counter() - start)
    return secs


def wait_for_quiet() -> None:
    """Wait until this process hardly uses its processor, for a second at most."""
    for _ in range(_QUIET_LOOKS):
        used_s = time.process_time()
        time.sleep(_QUIET_LOOK_S)
        if time.process_time() - used_s < _QUIET_LOOK_S / 10:
            return


def _rounds(names: Collection[_Key], count: int) -> Iterator[tuple[int, list[_Key]]]:
    """The number of each round, and the names in its order."""
    for number in range(count):
        yield number, list(names)[:: -1 if number % 2 else 1]


def _time_paced(call: Callable[[], Any]) -> float:
    """Seconds of one call after a pause, averaged over as many as fill the shortest timing, a few at most."""
    calls, spent = 0, 0.0
    while spent < MIN_REPEAT_S and calls < _MOST_PACED_CALLS:
        time.sleep(PAUSE_S)
        start = time.perf_counter()
        call()
        spent += time.perf_counter() - start
        calls += 1
    return spent / calls


def _serve_loop(call: Callable[[], Any], times: ServiceTimes) -> None:
    used_s, spent_s, calls = time.process_time(), 0.0, 0
    while calls < _LEAST_CALLS or (calls < _MOST_CALLS and spent_s < _LOOP_S):
        start_s = time.perf_counter()
        call()
        secs = time.perf_counter() - start_s
        times.loop_secs.append(secs)
        spent_s += secs
        calls += 1
    times.loop_cpu_s += time.process_time() - used_s


def _serve_paced(call: Callable[[], Any], times: ServiceTimes) -> None:
    time.sleep(PAUSE_S)
    for _ in range(_PACED_CALLS):
        start_s = time.perf_counter()
        call()
        times.paced_secs.append(time.perf_counter() - start_s)
        used_s = time.process_time()
        time.sleep(PAUSE_S)
        times.pause_cpu_s += time.process_time() - used_s
