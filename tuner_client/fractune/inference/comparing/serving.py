"""Requests at given times, answered by the replicas of a model."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any


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
