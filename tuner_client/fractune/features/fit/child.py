"""The process that times a model with several numbers of threads; it is confined first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fractune.features.fit.calls import Call, bundle_calls, onnx_calls, openvino_calls
from fractune_core.shares import Share

_MOST_S = 60.0
"""after which no further round begins"""


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the share and its cores, separated by commas. Raises ShareUnavailable."""
    from fractune_workers.confinement.cpu import CpuConfinement

    share, cores = args
    confinement = CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")])
    confinement.enter()

    def time_bundle(path: str, threads: list[int], rounds: int) -> dict[str, Any]:
        """By the numbers of threads that run the model."""
        return timed("", dict(bundle_calls(path, threads)), rounds)

    def time_onnx(path: str, threads: list[int], rounds: int, shapes: dict[str, list[int]]) -> dict[str, Any]:
        version, calls = onnx_calls(path, threads, shapes)
        return timed(version, dict(zip(threads, calls, strict=True)), rounds)

    def time_openvino(path: str, threads: list[int], rounds: int, shapes: dict[str, list[int]]) -> dict[str, Any]:
        version, calls = openvino_calls(path, threads, shapes)
        return timed(version, dict(zip(threads, calls, strict=True)), rounds)

    def timed(version: str, calls: dict[int, Call], rounds: int) -> dict[str, Any]:
        from fractune.inference.comparing.service_times import time_services

        times = time_services(calls, rounds, _MOST_S)
        confinement.verify()  # the threads of all are there now
        return {"version": version, "times": [{"threads": n, **asdict(each)} for n, each in times.items()]}

    return {"time_bundle": time_bundle, "time_onnx": time_onnx, "time_openvino": time_openvino}
