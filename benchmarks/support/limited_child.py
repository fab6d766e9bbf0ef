"""A process that serves a bundle by one or several replicas, for the limits that its parent puts on it.

Times are in seconds. CPU time is of the whole process.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import fractune
from fractune.comparing.interleaved import serve
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
    return {"serve": partial(serve, calls), "paced": partial(_paced, calls[0])}


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
