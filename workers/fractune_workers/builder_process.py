"""The builder's child as its supervisors drive it: a workload is learned once a process, then candidates are built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fractune_core.host.memory import model_memory_bytes
from fractune_core.records import Status
from fractune_workers.child import Child

LIMIT_CPU_S = 10
"""CPU time of a build, unless the caller says otherwise"""
_LEARN_TIMEOUT_S = 30.0
_STUCK_S = 300.0
"""for a child that does not answer, by the clock: far beyond what the limit on CPU time allows, all tries together"""


@dataclass(frozen=True)
class BuiltCandidate:
    """How one build ended."""

    status: Status
    cause: str
    """one line; empty for a success"""
    code: bytes
    """an object file, for a GPU an archive of two; empty for a failure"""
    build_secs: float
    """CPU seconds"""
    versions: dict[str, str]
    """of what made the code, beside TVM"""


class BuilderProcess:
    """A builder's child, and what the present one was told. Owned by one thread, as the child is.

    `memory_bytes`: the memory of the child, and of each of its builds; None = a share of the host's memory.
    """

    def __init__(self, memory_bytes: int | None = None) -> None:
        # One thread: a fork takes only the calling one along.
        threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        module, limit_bytes = "fractune_workers.children.building.child", model_memory_bytes(memory_bytes)
        self.child = Child(module, env=threads, memory_bytes=limit_bytes)
        self._generation = 0
        self._args_info: dict[str, list[Any]] = {}

    def learn(self, workload_hash: str, load: Callable[[], str]) -> list[Any]:
        """The workload's argument descriptions. `load` gives it as MetaSchedule's JSON text, and is called when the
        present child does not know it. Raises CallFailed, ChildTimeout or ChildDied.
        """
        if self.child.ensure() != self._generation:
            self._generation, self._args_info = self.child.generation, {}
        if workload_hash not in self._args_info:
            self._args_info[workload_hash] = self.child.call(
                "learn_workload", _LEARN_TIMEOUT_S, workload_hash=workload_hash, workload=load()
            )
        return self._args_info[workload_hash]

    def build(self, workload_hash: str, target: str, trace: str, limit_cpu_s: int = LIMIT_CPU_S) -> BuiltCandidate:
        """Build a candidate of a workload that was learned, for `target` (TVM's JSON text). A build that fails is an
        answer too. Raises CallFailed, ChildTimeout or ChildDied.
        """
        answer = self.child.call(
            "build", _STUCK_S, workload_hash=workload_hash, target=target, trace=trace, limit_cpu_s=limit_cpu_s
        )
        return BuiltCandidate(
            Status(answer["status"]),
            answer["cause"],
            answer["object"],
            answer["build_secs"],
            answer["versions"],
        )

    def stop(self) -> None:
        self.child.stop()
