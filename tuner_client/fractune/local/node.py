"""A node of a fleet: all workers of one machine, or of the part of it that a scheduler allots, as one program.

The workers are processes of their own and connect to the fleet's Redis themselves, as those of `fractune worker` do.
The node only starts them, starts them again when they die, and ends them in time.
"""

import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fractune.local.processes import POLL_S, Part, Running, end_in_order, tend_all
from fractune.local.programs import cpu_limits, require, visible_gpus
from fractune.local.stack import measurer_label, own_env, plan_builders
from fractune_core.cpu_limits import MILLICORES
from fractune_core.cuda import VISIBLE_DEVICES
from fractune_core.errors import BadRequest
from fractune_core.fleet.options import RoleName
from fractune_core.share_kinds import CPU, CUDA
from fractune_core.shares import MOST_SHARES, Share, with_kernel_shares

DEFAULT_GRACE_S = 50.0
"""a container gets 60 s, and Slurm's scripts ask for 180"""
MOST_WORKERS = 1024
_SAME_REQUEST_S = 1.0
"""A scheduler may send the same signal to every process of a step, and the terminal to every one of a group."""
_SLURM_CPUS = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeOptions:
    """The workers of a node. Raises BadRequest for numbers out of bounds, or for no worker at all."""

    shares: tuple[str, ...]
    """A measurer for each, of a GPU's share for each visible GPU; a share may stand twice. Empty = no measurers."""
    builders: int | None = None
    """None = one for each core that no measurer owns"""
    compilers: int = 1
    tuners: int = 1
    cores: tuple[int, ...] = ()
    """empty = all that this process may use"""
    grace_s: float = DEFAULT_GRACE_S
    """from the request to end until what still works is killed"""
    arguments: Mapping[RoleName, Sequence[str]] = field(default_factory=dict)
    """for `fractune worker`, by role"""

    def __post_init__(self) -> None:
        counts = {"--compilers": self.compilers, "--tuners": self.tuners, "--builders": self.builders or 0}
        for option, count in counts.items():
            if not 0 <= count <= MOST_WORKERS:
                raise BadRequest(f"{option} {count}: give a number from 0 to {MOST_WORKERS}")
        if not self.roles():
            raise BadRequest("this node would have no worker; give it shares to measure (--shares), or another role")
        if not 0 < self.grace_s <= 3600:
            raise BadRequest(f"--grace {self.grace_s:g}: give seconds, above 0 and at most 3600")

    def roles(self) -> list[RoleName]:
        """The roles that its workers have."""
        counts = {
            RoleName.MEASURE: len(self.shares),
            RoleName.COMPILE: self.compilers,
            RoleName.TUNE: self.tuners,
            RoleName.BUILD: self.builders,
        }
        return [role for role, count in counts.items() if count != 0]


def node_shares(text: str) -> tuple[str, ...]:
    """`cpu:1,cpu:1,mps:25` as names, with those at which their kernels are measured. A share may stand twice.

    Raises BadRequest.
    """
    named = Counter(str(Share.parse(each)) for each in text.split(",", MOST_SHARES) if each.strip())
    if named.total() > MOST_SHARES:
        raise BadRequest(f"--shares: more than {MOST_SHARES} shares; name less")
    return tuple(share for share in with_kernel_shares(named) for _ in range(max(named[share], 1)))


def run_node(options: NodeOptions) -> None:
    """Work until the caller's signal handler raises. Then the workers end the work in hand, and what is cut off after
    the grace time is handed back.

    Raises BadRequest, ShareUnavailable when no share can be verified, or FractuneError when a worker keeps dying.
    """
    require("worker", "rq", "tvm")
    os.sched_setaffinity(0, allotted_cores(options.cores))
    parts = list(node_parts(options, visible_gpus() if _on_gpu(options.shares) else []))
    running: list[Running] = []
    try:
        running.extend(map(Running, parts))
        _log.info("%d workers run: %s", len(parts), ", ".join(part.name for part in parts))
        while True:
            for part, refusal in tend_all(running):
                if not any(each.part.kind for each in running):
                    raise refusal
                _log.warning("this node goes on without %s: %s", part.name, refusal)
            time.sleep(POLL_S)
    finally:
        _drain(running, options.grace_s)


def _on_gpu(shares: Sequence[str]) -> bool:
    return any(Share.parse(share).device_kind == CUDA for share in shares)


def allotted_cores(named: Sequence[int] = (), environment: Mapping[str, str] = os.environ) -> list[int]:
    """The CPUs of this node: a scheduler confines its processes to those that it allots.

    Raises BadRequest where Slurm allots fewer than this process may use, as the rest may be another job's, and for a
    CPU in `named` that this process may not use.
    """
    allowed = sorted(os.sched_getaffinity(0))
    if named:
        if not set(named) <= set(allowed):
            raise BadRequest(f"--cores {','.join(map(str, named))}: this process may use {allowed} only")
        return sorted(named)
    allotted = next((environment[each] for each in _SLURM_CPUS if environment.get(each, "").isdecimal()), None)
    if allotted is not None and int(allotted) < len(allowed):
        raise BadRequest(
            f"Slurm allots {allotted} CPUs, and does not confine this process, which may use {len(allowed)}; set "
            "TaskPlugin=task/affinity or task/cgroup in slurm.conf, or name the CPUs by --cores"
        )
    return allowed


def node_parts(options: NodeOptions, gpus: Sequence[str]) -> Iterator[Part]:
    """The workers of a node as processes; `gpus` names the visible GPUs as CUDA_VISIBLE_DEVICES does."""
    labels: Counter[str] = Counter()

    def part(role: RoleName, label: str, args: Sequence[str] = (), **more: Any) -> Part:
        labels[label] += 1
        name = label if labels[label] == 1 else f"{label}-{labels[label]}"
        command = [sys.executable, "-m", "fractune.cli", "worker", "--role", role, *options.arguments[role], *args]
        env = own_env() | more.pop("env", {})
        return Part(name, lambda: command, None, env, rank=0, waits_for_redis=True, **more)

    for text in options.shares:
        share = Share.parse(text)
        for gpu in gpus if _one_each(share) else [""]:
            label = "-".join(filter(None, [measurer_label(share), gpu]))
            env = {VISIBLE_DEVICES: gpu} if gpu else {}
            yield part(RoleName.MEASURE, label, ["--share", text], kind=f"{text} {gpu}", env=env)
    for role, count in ((RoleName.COMPILE, options.compilers), (RoleName.TUNE, options.tuners)):
        yield from (part(role, role) for _ in range(count))
    yield from (part(RoleName.BUILD, "build") for _ in range(_builders(options)))


def _one_each(share: Share) -> bool:
    """Whether each GPU gets a measurer of the share. A MIG instance is claimed by one, wherever it lies."""
    return share.device_kind == CUDA and share.kind.word != "mig"


def _builders(options: NodeOptions) -> int:
    """As many as asked for, else one for each core that no measurer of a CPU owns, and at least one."""
    if options.builders is not None:
        return options.builders
    shares = [Share.parse(share) for share in options.shares]
    cores = sorted(os.sched_getaffinity(0))
    quota = cpu_limits()["quota_m"] // MILLICORES or len(cores)
    owned = sum(share.host_cores for share in shares if share.device_kind == CPU)
    return plan_builders(shares, cores[: max(min(len(cores), quota) - owned, 1)])


def _drain(running: Sequence[Running], grace_s: float) -> None:
    began_s = time.monotonic()

    def again(*_: object) -> None:
        if time.monotonic() - began_s > _SAME_REQUEST_S:
            for each in running:  # at a second signal a worker drops the work in hand
                each.terminate()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, again)
    _log.info("ending %d workers; the work in hand has %g s", len(running), grace_s)
    end_in_order(running, grace_s)
