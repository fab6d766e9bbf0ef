"""A process that serves a bundle by one or several replicas, for the limits that its parent puts on it.

Times are in seconds. CPU time is of the whole process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import fractune
from fractune_core.errors import BadRequest

_WARM_RUNS = 10
_Call = Callable[[], Any]


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the bundle, the threads of a replica, and the replicas. Raises BadRequest where the bundle runs
    with another number of threads.
    """
    bundle, threads, replicas = args[0], int(args[1]), int(args[2])
    models = [fractune.load(bundle, share=f"cpu:{threads}") for _ in range(replicas)]
    if models[0].threads != threads:
        raise BadRequest(f"{bundle} runs on {models[0].threads} threads in place of {threads}; take another bundle")
    calls = [partial(model.run, model.random_inputs()) for model in models]
    for call in calls * _WARM_RUNS:
        call()
    return {"serve": partial(_serve, calls), "paced": partial(_paced, calls[0])}


def _serve(calls: Sequence[_Call], arrivals_s: Sequence[float | None]) -> dict[str, Any]:
    """Requests at those times, each by the replica that is free first; None: at once. Latencies count from the arrival,
    or else from the call.
    """
    queue, latencies_s = deque(arrivals_s), list[float]()
    began_s, used_s = time.perf_counter(), time.process_time()

    def work(call: _Call) -> None:
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


def _paced(call: _Call, requests: int, pause_s: float) -> dict[str, Any]:
    """Requests that each come after a pause; CPU time in a request, and in a pause."""
    latencies_s, inside_s, used_s = list[float](), 0.0, time.process_time()
    for _ in range(requests):
        time.sleep(pause_s)
        start_s, before_s = time.perf_counter(), time.process_time()
        call()
        latencies_s.append(time.perf_counter() - start_s)
        inside_s += time.process_time() - before_s
    time.sleep(pause_s)
    return {
        "latencies_s": latencies_s,
        "cpu_s": inside_s / requests,
        "pause_cpu_s": (time.process_time() - used_s - inside_s) / requests,
    }
