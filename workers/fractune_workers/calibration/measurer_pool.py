"""Measurers side by side, and builds beside them, which disturb a measurement on purpose."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from fractune_core.errors import ShareUnavailable
from fractune_core.host.cpus import EACH_A_CORE, CpuTopology
from fractune_core.records import TimingPolicy
from fractune_core.share_kinds import CPU
from fractune_core.shares import GrantedShare, Share, units_text
from fractune_workers.calibration.candidates import ChildThread, OperatorBuilder, running
from fractune_workers.locks.gpu_slots import claim_of
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome

BUILDERS_AT_MOST = 8


def assign_cores(
    share: Share, count: int, available: Sequence[int], topology: CpuTopology = EACH_A_CORE
) -> list[list[int]]:
    """Cores for each of `count` measurers: apart while there are cores left, then from the first one on again.

    A GPU's measurer has one, from which it launches.
    """
    assigned: list[list[int]] = []
    free: list[int] = []
    for _ in range(count):
        if len(free) < share.host_cores:
            free += [core for core in available if core not in free]
        assigned.append(topology.choose(free, share.host_cores))
        free = [core for core in free if core not in assigned[-1]]
    return assigned


@dataclass(frozen=True)
class TimedBatch:
    """A measurer's results for a batch."""

    outcomes: dict[str, Outcome]
    anchor_ratio: float
    """of the anchor, the mean of before and after; 0 = it could not be timed"""


class PooledMeasurer:
    """A measurement session, and the thread that its child belongs to. Raises ShareUnavailable."""

    def __init__(self, share: Share, cores: Sequence[int]) -> None:
        self.cores = list(cores)
        self._session = MeasurementSession(share, cores)
        self.gpu_uuid = self._session.gpu_uuid
        self.thread = ChildThread(self._session.stop)

    def handshake(self) -> Future[dict[str, Any]]:
        """The child's `device_info`, once its share is verified. The future raises ShareUnavailable."""

        def device_info() -> dict[str, Any]:
            self._session.handshake()
            return self._session.device_info

        return self.thread.submit(device_info)

    def time_anchored(self, batch: ArtifactBatch, policy: TimingPolicy | None) -> Future[TimedBatch]:
        """Time every candidate under `policy`, or race them if there is none. The anchor is timed before and after, as
        beside the batches of a job.
        """

        def timed() -> TimedBatch:
            before = self._session.anchor()
            outcomes = self._session.timed(batch, policy) if policy else self._session.trials(batch)
            after = self._session.anchor()
            return TimedBatch(outcomes, (before + after) / 2 if before and after else 0.0)

        return self.thread.submit(timed)


@dataclass(frozen=True)
class MeasurerPool:
    """Measurers at one share that are ready."""

    measurers: list[PooledMeasurer]
    counts: list[int]
    """how many of them may measure at the same time, of the numbers asked for"""
    device_info: dict[str, Any]
    """what the first one's child says of its device, share and target"""
    notes: list[str]
    """which other numbers were asked for, and why they cannot be"""

    @property
    def granted(self) -> GrantedShare:
        return GrantedShare.from_json(self.device_info["granted"])


def start_pool(
    share: Share, counts: Sequence[int], available: Sequence[int], held: contextlib.ExitStack
) -> MeasurerPool:
    """As many measurers as the largest of `counts` (ascending, from 1 on) that can be had; `held` ends them.

    Raises ShareUnavailable when not even one can be had.
    """
    first, *others = assign_cores(share, counts[-1], available, CpuTopology.read())
    measurers = [held.enter_context(running(PooledMeasurer(share, first)))]
    device_info = measurers[0].handshake().result()
    fitting, notes = _fitting(GrantedShare.from_json(device_info["granted"]), counts)
    for cores in others[: fitting[-1] - 1]:
        try:
            measurers.append(held.enter_context(running(PooledMeasurer(share, cores))))
        except ShareUnavailable as refusal:
            notes += [f"{count} measurers were not tried: {refusal}" for count in fitting if count > len(measurers)]
            break
    for handshake in [measurer.handshake() for measurer in measurers[1:]]:
        handshake.result()
    return MeasurerPool(measurers, [count for count in fitting if count <= len(measurers)], device_info, notes)


def _fitting(granted: GrantedShare, counts: Sequence[int]) -> tuple[list[int], list[str]]:
    """The numbers of measurers that may measure at the same time, and why each other number may not."""
    if granted.kind.device_kind == CPU:
        return list(counts), []
    claim = claim_of(granted)
    fitting = [count for count in counts if claim.fits([claim] * (count - 1))]
    why = f"{granted.units} of {units_text(granted.units_total, granted.unit)} each are too many"
    if not claim.exclusion_group:
        why = f"at {granted.share} measurements do not run side by side"
    return fitting, [f"{count} measurers were not tried: {why}" for count in counts if count not in fitting]


@contextlib.contextmanager
def builds_beside(builders: Sequence[OperatorBuilder], traces: Sequence[str], cores: Sequence[int]) -> Iterator[None]:
    """`builders` at work on `cores` until the block ends. They take no core locks: the disturbance is the purpose."""
    ended = threading.Event()
    busy = [threading.Event() for _ in builders]
    under_way = [builder.build_until(ended, each, traces, cores) for builder, each in zip(builders, busy, strict=True)]
    try:
        for each in busy:
            each.wait()
        yield
    finally:
        ended.set()
    for work in under_way:
        work.result()
