"""The builder's child, for its supervisors: it learns a workload once, then builds candidates of it."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune_core.errors import FractuneError
from fractune_core.names import DEFAULT_TENANT
from fractune_core.records import Status
from fractune_workers.child import Child
from fractune_workers.child.errors import ChildDied, ChildTimeout
from fractune_workers.sandboxes import builder_sandbox
from fractune_workers.scratch_dir import open_scratch_dir

_CHILD = "fractune_workers.children.building.child"
LIMIT_CPU_S = 10
"""CPU time of a build, by default."""
_LEARN_TIMEOUT_S = 30.0
_STUCK_S = 300.0
"""Wall time until a child that does not answer is killed: far more than the limit on CPU time allows for all tries."""


@dataclass(frozen=True)
class BuiltCandidate:
    """The result of one build."""

    status: Status
    cause: str
    """one line; empty for a success"""
    code: bytes
    """an object file, for a GPU an archive of two; empty for a failure"""
    kernel: str
    """names the kernel by its content, for a CPU; empty for a GPU, and for a failure"""
    build_secs: float
    """CPU seconds"""
    versions: dict[str, str]
    """Versions of the compilers that made the code, beside TVM's."""


def build_failure(error: FractuneError) -> tuple[Status, str]:
    """How a build ended that raised CallFailed, ChildTimeout or ChildDied, and the cause."""
    if isinstance(error, ChildDied):
        return Status.CRASHED, f"while it was built: {error}"
    return Status.BUILD_TIMEOUT if isinstance(error, ChildTimeout) else Status.BUILD_FAILED, str(error)


class BuilderProcess:
    """A builder's child in its sandbox, and the workloads that the present one knows. One thread owns both.

    `memory_bytes`: the memory of the child, and of each of its builds; None = a share of the host's memory. `hidden`:
    files that it must fail to read, which it tries.
    """

    def __init__(self, memory_bytes: int | None = None, hidden: Sequence[Path] = ()) -> None:
        self._held = ExitStack()
        own_dir = self._held.enter_context(open_scratch_dir())
        # One thread: a fork takes only the calling one along.
        env = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(own_dir)}
        sandbox = builder_sandbox(own_dir, memory_bytes, hidden)
        self.child = Child(_CHILD, env=env, sandbox=sandbox)
        self._generation = 0
        self._args_info: dict[tuple[str, str], list[Any]] = {}
        """by the workload's hash and the target"""
        self.tenants: set[str] = set()
        """that the present child has worked for"""

    def learn(
        self, workload_hash: str, target: str, load: Callable[[], str], tenant: str = DEFAULT_TENANT
    ) -> list[Any]:
        """The workload's argument descriptions for `target` (TVM's JSON text). `load` gives the workload's
        text, and is called when the present child does not know it.

        Raises CallFailed, ChildTimeout or ChildDied.
        """
        self._ensure()
        self.tenants.add(tenant)
        key = workload_hash, target
        if key not in self._args_info:
            self._args_info[key] = self.child.call(
                "learn_workload", _LEARN_TIMEOUT_S, workload_hash=workload_hash, workload=load(), target=target
            )
        return self._args_info[key]

    def host_facts(self, target: str) -> dict[str, Any]:
        """What a host needs that measures code for `target`, as of the child's `host_facts`. Raises CallFailed,
        ChildTimeout or ChildDied.
        """
        self._ensure()
        facts: dict[str, Any] = self.child.call("host_facts", _LEARN_TIMEOUT_S, target=target)
        return facts

    def _ensure(self) -> None:
        """Have a child; a new one knows nothing yet."""
        if self.child.ensure() != self._generation:
            self._generation, self._args_info, self.tenants = self.child.generation, {}, set()

    def build(
        self, workload_hash: str, target: str, trace: str, limit_cpu_s: int = LIMIT_CPU_S, *, as_text: bool = False
    ) -> BuiltCandidate:
        """Build a candidate of a learned workload, for `target` (TVM's JSON text). A failed build is a result too.
        `as_text`: its code is JSON with the scheduled TIR as `tir`, and for a CPU the `assembly`, else empty.

        Raises CallFailed, ChildTimeout or ChildDied.
        """
        candidate = {"workload_hash": workload_hash, "target": target, "trace": trace}
        answer = self.child.call("build", _STUCK_S, **candidate, limit_cpu_s=limit_cpu_s, as_text=as_text)
        return BuiltCandidate(
            Status(answer["status"]),
            answer["cause"],
            answer["object"],
            answer["kernel"],
            answer["build_secs"],
            answer["versions"],
        )

    def stop(self) -> None:
        """End the child for good."""
        self.child.stop()
        self._held.close()
