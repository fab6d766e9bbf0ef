"""The process that serves a model under a real CPU limit. The model is loaded before: a limit would slow that down."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from fractune.features.fit.calls import Call, bundle_calls, onnx_calls, openvino_calls
from fractune_core.host.machine import busy_s
from fractune_core.shares import Share

_WARM_RUNS = 10


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the limit as a share, and its cores separated by commas."""
    from fractune_workers.confinement.cpu_limit import CpuLimitConfinement

    share, cores = args
    confinement = CpuLimitConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    os.sched_setaffinity(0, confinement.cores)  # the threads of the model take their cores from it

    def serve_bundle(path: str, threads: list[int], arrivals_s: list[float]) -> dict[str, Any]:
        """The latencies of requests to replicas with these numbers of threads. Raises ShareUnavailable."""
        return served([call for _, call in bundle_calls(path, threads)], arrivals_s)

    def serve_onnx(
        path: str, threads: list[int], arrivals_s: list[float], shapes: dict[str, list[int]]
    ) -> dict[str, Any]:
        return served(onnx_calls(path, threads, shapes)[1], arrivals_s)

    def serve_openvino(
        path: str, threads: list[int], arrivals_s: list[float], shapes: dict[str, list[int]]
    ) -> dict[str, Any]:
        """Replicas are streams of one model: separate models would pin their threads to the same cores."""
        return served(openvino_calls(path, threads[:1], shapes, streams=len(threads))[1], arrivals_s)

    def served(calls: Sequence[Call], arrivals_s: Sequence[float]) -> dict[str, Any]:
        from fractune.inference.comparing.interleaved import wait_for_quiet
        from fractune.inference.comparing.serving import serve

        for call in calls:
            for _ in range(_WARM_RUNS):
                call()
        confinement.enter()
        confinement.verify()
        wait_for_quiet()
        before_s = busy_s()
        found = serve(calls, arrivals_s)
        others_s = busy_s() - before_s - found["cpu_s"] * len(arrivals_s)
        return {"latencies_s": found["latencies_s"], "other_cores": max(0.0, others_s / found["elapsed_s"])}

    return {"serve_bundle": serve_bundle, "serve_onnx": serve_onnx, "serve_openvino": serve_openvino}
