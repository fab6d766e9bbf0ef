"""The process that times a model with several numbers of threads; it is confined first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.model_inputs import constants_in, shapes_in
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
        """By the numbers of threads that run the model: a tiny one runs on one in any case."""
        return timed("", _bundle_calls(path, threads), rounds)

    def time_onnx(path: str, threads: list[int], rounds: int, shapes: dict[str, list[int]]) -> dict[str, Any]:
        return timed(*_onnx_calls(Path(path), threads, shapes), rounds)

    def timed(version: str, calls: dict[int, Callable[[], Any]], rounds: int) -> dict[str, Any]:
        from fractune.inference.comparing.service_times import time_services

        times = time_services(calls, rounds, _MOST_S)
        confinement.verify()  # the threads of all are there now
        return {"version": version, "times": [{"threads": n, **asdict(each)} for n, each in times.items()]}

    return {"time_bundle": time_bundle, "time_onnx": time_onnx}


def _bundle_calls(path: str, threads: Sequence[int]) -> dict[int, Callable[[], Any]]:
    from fractune.inference.model import load

    models = [load(path, share=f"cpu:{count}") for count in threads]
    return {model.threads: partial(model.run, model.random_inputs()) for model in models}


def _onnx_calls(
    path: Path, threads: Sequence[int], shapes: dict[str, list[int]]
) -> tuple[str, dict[int, Callable[[], Any]]]:
    """The version of ONNX Runtime, and a call by number of threads."""
    from fractune.inference.comparing.onnxruntime_model import OnnxRuntimeModel
    from fractune.inference.tvm_runtime.tensors import random_inputs

    models = {count: OnnxRuntimeModel(path, count, spinning=False) for count in threads}
    first = models[threads[0]]
    fixed = shapes_in(shapes)
    constants = first.constants(constants_in(shapes), fixed)
    feed = {**random_inputs(first.input_specs(fixed, constants)), **constants}
    return first.version, {count: partial(model.run, feed, model.output_names) for count, model in models.items()}
