"""A process that times models at a share of this machine's CPU, or under a CPU limit, confined as a measurer is.

Core locks keep every other fractune process of this user off the cores meanwhile.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from fractune.local.programs import require
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

if TYPE_CHECKING:
    from fractune_workers.locks.core_locks import CoreLocks

_TIMEOUT_S = 1800.0
_WAIT_NOTED_S = 5.0
"""a little more than `CoreLocks.awaited_holders` needs"""


def check_share(share: Share) -> None:
    """Raises ShareUnavailable if this machine does not have the CPU share."""
    require("worker", "tvm")
    from fractune_workers.confinement.cpu import CpuConfinement

    CpuConfinement(share).probe()


@contextlib.contextmanager
def timing_process(
    module: str,
    share: str,
    env: Mapping[str, str],
    served_s: float = 0.0,
    report_line: Callable[[str], None] = lambda _: None,
) -> Iterator[Callable[..., Any]]:
    """A function that calls the methods of `module`, which runs in a process at `share`. Its `open_child` gets the
    share, and the cores separated by commas.

    The process has cores of its own until the block ends; `env` points it to our packages. `served_s` is the time that
    its requests take to arrive. `report_line` gets a line if another fractune process keeps the cores for some seconds.
    Raises ShareUnavailable.
    The call raises the errors of the method.
    """
    require("worker", "tvm")
    from fractune_workers.child import Child
    from fractune_workers.confinement.cpu import CpuConfinement
    from fractune_workers.confinement.cpu_limit import CpuLimitConfinement
    from fractune_workers.confinement.limit_cgroups import LimitCgroups
    from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir

    LimitCgroups().remove_dead()
    named = Share.parse(share)
    confinement = CpuConfinement(named) if named.mechanism == CPU else CpuLimitConfinement(named)
    confinement.probe()
    args = [share, ",".join(map(str, confinement.cores))]
    child = Child(module, args, {**env, **confinement.environment()})
    locks = CoreLocks(default_lock_dir())
    try:
        with noting_a_wait(locks, report_line), locks.measuring(confinement.cores):
            yield lambda method, **arguments: child.call(method, served_s + _TIMEOUT_S, **arguments)
    finally:
        child.stop()
        confinement.leave()


@contextlib.contextmanager
def noting_a_wait(locks: CoreLocks, report_line: Callable[[str], None]) -> Iterator[None]:
    """Name the processes that keep this one from its cores, once it has waited for some seconds."""

    def note() -> None:
        for holder in locks.awaited_holders():
            report_line(f"waiting for the measurement cores, held by PID {holder['pid']} of another stack")

    timer = threading.Timer(_WAIT_NOTED_S, note)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
