"""A process that serves a model under a limit, the way one contender does by itself.

`load` and `pool` are fractune as a user calls it, and choose for the limit. `cores N` is a fractune model at N whole
cores. `onnx` is ONNX Runtime with its defaults, and `onnx N` with N threads that do not spin.
"""

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fractune
from fractune.comparing.interleaved import serve
from fractune.local.timing_process import calls_of
from fractune_core.files.compared import ONNX_RUNTIME, OURS

_WARM_S = 1.0
_Call = Callable[[], Any]


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the folder of the cgroup with the limit (empty: none), the way, the bundle, the ONNX file, and
    the shapes of open inputs as NAME=1,2. The process joins the cgroup before it loads the model.
    """
    cgroup, way, bundle, onnx, *inputs = args
    if cgroup:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    shapes = {name: [int(each) for each in dims.split(",")] for name, dims in (each.split("=") for each in inputs)}
    calls, chosen = _calls(way, bundle, onnx, shapes)
    until_s = time.monotonic() + _WARM_S
    while time.monotonic() < until_s:
        for call in calls:
            call()
    return {"serve": partial(serve, calls), "paused": partial(_paused, calls[0]), "chosen": lambda: chosen}


def _calls(way: str, bundle: str, onnx: str, shapes: dict[str, list[int]]) -> tuple[list[_Call], str]:
    """A call for each request that is under way at the same time, and what was chosen."""
    name, _, count = way.partition(" ")
    if name == "load":
        model = fractune.load(bundle, goal="throughput" if count else "latency")
        return [partial(model.run, model.random_inputs())], f"{model.threads} threads"
    if name == "pool":
        pool = fractune.ReplicaPool(bundle)
        call = partial(pool.run, pool.random_inputs())
        return [call] * pool.replicas, f"{pool.replicas} x {pool.threads} threads"
    if count:
        runtime, path = (OURS, bundle) if name == "cores" else (ONNX_RUNTIME, onnx)
        return [call for _, call in calls_of(runtime, path, [int(count)], shapes)[1]], f"{count} threads"
    return [_by_defaults(onnx, shapes)], "defaults"


def _by_defaults(path: str, shapes: dict[str, list[int]]) -> _Call:
    import onnxruntime

    from fractune_runtime.sessions import OnnxRuntimeSession

    session = onnxruntime.InferenceSession(Path(path))
    return partial(session.run, None, OnnxRuntimeSession(Path(path), 1).random_feed(shapes))


def _paused(call: _Call, requests: int, pause_s: float) -> dict[str, float]:
    """Medians in a loop, and of requests that each come after a pause, taking turns in blocks."""
    found: dict[str, list[float]] = {"loop": [], "paused": []}
    for block in range(10):
        name = "paused" if block % 2 else "loop"
        for _ in range(requests // 10):
            time.sleep(pause_s if block % 2 else 0.0)
            began_s = time.perf_counter()
            call()
            found[name].append(time.perf_counter() - began_s)
    return {name: statistics.median(each) for name, each in found.items()}
