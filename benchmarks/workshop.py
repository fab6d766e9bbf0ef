"""Real candidates within one benchmark: built by warm compilers, measured in confined children, alone."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import tvm

from fractune_core.records import FIRST_POLICY
from fractune_core.shares import Share
from fractune_core.targets import with_cores
from fractune_workers.child import CallFailed, Child, ChildDied, ChildTimeout
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import Operator, extract, prepare
from fractune_workers.children.tvm_api.artifacts import args_of, read_workload
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession

CORES = 2
MODEL = files("onnx") / "backend" / "test" / "data" / "light" / "light_squeezenet.onnx"
OPERATORS = [
    "fused_conv2d_add_relu",
    "fused_conv2d1_add1_relu1",
    "fused_conv2d2_add2_relu2",
    "fused_conv2d3_add2_relu2",
]
_BUILD_TIMEOUT_S = 120.0
_BUILD_LIMIT_CPU_S = 4


@dataclass(frozen=True)
class Workshop:
    target: str
    """TVM's JSON text"""
    builders: Builders
    benches: Mapping[str, MeasurementSession]
    """by share"""

    def operators(self, names: Sequence[str]) -> list[Operator]:
        """The model's operators of these names. Raises SystemExit for one that it does not have."""
        target = tvm.target.Target(json.loads(self.target))
        found = {op.name: op for op in extract(prepare(load_model(Path(str(MODEL))), target), target)}
        strangers = sorted(set(names) - set(found))
        if strangers:
            raise SystemExit(f"benchmarks: no operator {', '.join(strangers)}; the model has {', '.join(found)}")
        return [found[name] for name in names]

    def times(self, operator: Operator, traces: Sequence[str], seed: int) -> dict[str, list[float]]:
        """By share the seconds of each trace, built once; infinite for a failure."""
        codes = self.builders.build(operator.workload_json, self.target, traces)
        built = {str(at): code for at, code in enumerate(codes) if code}
        batch = ArtifactBatch(args_of(read_workload(operator.workload_json)), seed, built)
        found = {share: bench.timed(batch, FIRST_POLICY) for share, bench in self.benches.items()}
        return {
            share: [each[str(at)].median_s if str(at) in each else math.inf for at in range(len(traces))]
            for share, each in found.items()
        }


@contextlib.contextmanager
def open_workshop(shares: Sequence[str]) -> Iterator[Workshop]:
    keep_out_gpu_intrinsics()
    benches = {share: MeasurementSession(Share.parse(share), range(Share.parse(share).cores)) for share in shares}
    builders = Builders(CORES)
    try:
        for bench in benches.values():
            bench.handshake()
        device_info = next(iter(benches.values())).device_info
        yield Workshop(with_cores(device_info["target"], CORES), builders, benches)
    finally:
        builders.stop()
        for bench in benches.values():
            bench.stop()


class Builders:
    """Warm compilers, each owned by a thread of its own."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._local = threading.local()
        self._lock = threading.Lock()
        self._children: list[Child] = []

    def build(self, workload: str, target: str, traces: Sequence[str]) -> list[bytes]:
        """Object files; empty where a build failed."""
        return list(self._pool.map(lambda trace: self._one(workload, target, trace), traces))

    def _one(self, workload: str, target: str, trace: str) -> bytes:
        child = self._child()
        try:
            told = (child.ensure(), workload)
            if getattr(self._local, "told", None) != told:
                child.call("learn_workload", 60.0, workload_hash="w", workload=workload)
                self._local.told = told
            limit = {"limit_cpu_s": _BUILD_LIMIT_CPU_S}
            answer = child.call("build", _BUILD_TIMEOUT_S, workload_hash="w", target=target, trace=trace, **limit)
        except (CallFailed, ChildTimeout, ChildDied):
            return b""
        return base64.b64decode(answer["object"])

    def _child(self) -> Child:
        if not hasattr(self._local, "child"):
            self._local.child = Child("fractune_workers.children.building.child")
            with self._lock:
                self._children.append(self._local.child)
        found: Child = self._local.child
        return found

    def stop(self) -> None:
        for child in self._children:
            child.kill()
        self._pool.shutdown()
