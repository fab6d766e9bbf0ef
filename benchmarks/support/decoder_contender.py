"""A process that runs a decoder in one runtime, confined to a share or to a CPU limit."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.decoder_peers import GenAi, LlamaCpp, OnnxRuntime, OpenVino, Ours, Runtime
from benchmarks.support.decoders import Sizes
from fractune_core.shares import Share
from fractune_workers.children.measuring.roof import CpuRoof
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.target import default_target
from fractune_workers.confinement.cpu import CpuConfinement

READING = "reading"
"""no runtime: the bandwidth of the share"""
OURS, ONNX, GENAI, OPENVINO, LLAMA = "fractune", "onnxruntime", "onnxruntime-genai", "openvino", "llama.cpp"
_PEERS: dict[str, Callable[[str, Sizes, int], Runtime]] = {
    ONNX: OnnxRuntime,
    GENAI: GenAi,
    OPENVINO: OpenVino,
    LLAMA: LlamaCpp,
}


def open_child(args: list[str]) -> dict[str, Callable[..., Any]]:
    """The arguments are the runtime, the share, its cores with commas between them, the folder of a cgroup with a limit
    (empty without one), the threads of a peer, the file, and JSON of its `Sizes`.
    """
    way, share, cores, cgroup, threads, path, described = args
    if cgroup:
        (Path(cgroup) / "cgroup.procs").write_text(str(os.getpid()))
    else:
        CpuConfinement(Share.parse(share), [int(core) for core in cores.split(",")]).enter()
    if way == READING:
        roof = CpuRoof(default_target(len(os.sched_getaffinity(0))), cpu_processor())
        return {"gb_per_s": lambda: max(roof.measure().read_gb_per_s for _ in range(3))}
    sizes = Sizes(**json.loads(described))
    runtime: Runtime
    runtime = Ours(path, sizes, None if cgroup else share) if way == OURS else _PEERS[way](path, sizes, int(threads))

    def ids(count: int) -> Any:
        return np.random.default_rng(0).integers(1, sizes.vocabulary - 1, count)

    def prefill(count: int) -> list[dict[str, float]]:
        """Seconds of one prompt."""
        return [_timed(lambda: runtime.prefill(ids(count)))]

    def steps(at: int, count: int, at_least_s: float) -> list[dict[str, float]]:
        """Seconds of `count` steps or more without a rest, each with `at` tokens in the cache."""
        found: list[dict[str, float]] = []
        end = time.perf_counter() + at_least_s
        while len(found) < count or time.perf_counter() < end:
            runtime.place(at)
            found.append(_timed(runtime.step))
        return found

    def logits(count: int) -> list[float]:
        """Behind a prompt, and behind a step after it."""
        made: list[float] = np.concatenate([runtime.prefill(ids(count)), runtime.step()]).tolist()
        return made

    return {"prefill": prefill, "steps": steps, "logits": logits}


def _timed(call: Callable[[], Any]) -> dict[str, float]:
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    call()
    return {"wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
