"""The noise of measurements on this machine: the same candidates, timed with more and less care, alone or not.

Every setting is passed twice, interleaved with the others, so that all meet the same conditions. The second pass takes
the candidates backwards and on another measurer: a slowing machine, or a slower core, shows as spread. Measurers side
by side, and builds beside them, disturb a measurement on purpose.
"""

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fractune_core.errors import ShareUnavailable
from fractune_core.host.cpus import EACH_A_CORE, CpuTopology
from fractune_core.records import TRIAL_POLICY, TimingPolicy
from fractune_core.share_kinds import CPU
from fractune_core.shares import Device, GrantedShare, Share, units_text
from fractune_workers.calibration.candidates import (
    BuildCores,
    Candidates,
    ChildThread,
    OperatorBuilder,
    SampleOperator,
    builtin_operator,
    heaviest_operator,
    running,
    sample,
)
from fractune_workers.calibration.report import FIRST, RACE, REFERENCE, Pass, Setting, report
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.locks.gpu_slots import ALONE, GpuSlots, claim_of
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


_PASSES = 2
_BATCH = 8
"""candidates given to a measurer at once, about as many as a search gives"""

Progress = Callable[[str], None]


@dataclass(frozen=True)
class NoiseOptions:
    """Options of the noise experiment: what is timed, and beside how much else."""

    share: Share
    measurers: tuple[int, ...] = (1, 2)
    """numbers of concurrent measurers; one alone is always among them"""
    candidates: int = 24
    seed: int = 0
    model: Path | None = None
    """take its heaviest operator; None = a convolution"""
    inputs: dict[str, list[int]] = field(default_factory=dict)
    only: str = ""


def measure_noise(options: NoiseOptions, progress: Progress) -> dict[str, Any]:
    """Measure and judge; the report as plain JSON values (see `noise_report`).

    `progress` is given lines of progress. Raises ShareUnavailable, BadModel, or FractuneError when too few
    candidates can be built or timed.
    """
    start = time.perf_counter()
    cores = sorted(os.sched_getaffinity(0))
    core_locks = CoreLocks(default_lock_dir())
    measurers = sorted({1, *options.measurers})
    with contextlib.ExitStack() as held:
        pool = start_pool(options.share, measurers, cores, held)
        progress(f"measurers at {options.share}: {len(pool.measurers)}")
        build_cores = BuildCores(core_locks, cores)
        operator = _operator(options, pool, build_cores)
        progress(f"operator {operator.name}: building {options.candidates} candidates")
        operator = operator.for_units(pool.granted.units)
        # A builder's child starts with its first work: those that are never needed cost nothing.
        builders = [held.enter_context(running(OperatorBuilder(operator))) for _ in cores[:BUILDERS_AT_MOST]]
        candidates = sample(operator, options.candidates, options.seed, build_cores, builders[0])
        experiment = Experiment(core_locks, cores, pool.measurers, builders, candidates)
        passes = experiment.run(settings(pool.counts), progress)
    own_cores = {count: experiment.are_apart(count) for count in pool.counts}
    return {
        "event": "noise",
        "share": str(options.share),
        "granted": pool.granted.to_json(),
        "device": Device.from_json(pool.device_info["device"]).key,
        "operator": candidates.operator.name,
        "seed": options.seed,
        **report(passes, own_cores, pool.notes),
        "wall_s": time.perf_counter() - start,
    }


def settings(measurers: Sequence[int]) -> list[Setting]:
    """The reference, the shortest timing alone, the race, and each number of measurers without and with builds."""
    crowds = itertools.product(measurers, (False, True))
    return [REFERENCE, FIRST, RACE, *(Setting(TRIAL_POLICY, count, builds) for count, builds in crowds)]


class Experiment:
    """The candidates, the measurers and the builders; every pass has the whole machine to itself."""

    def __init__(
        self,
        core_locks: CoreLocks,
        cores: Sequence[int],
        measurers: Sequence[PooledMeasurer],
        builders: Sequence[OperatorBuilder],
        candidates: Candidates,
    ) -> None:
        self._locks = core_locks
        self._cores = cores
        self._measurers = measurers
        self._builders = builders
        self._candidates = candidates

    def run(self, wanted: Sequence[Setting], progress: Progress) -> dict[Setting, list[Pass]]:
        passes: dict[Setting, list[Pass]] = {setting: [] for setting in wanted}
        for pass_number, setting in itertools.product(range(_PASSES), wanted):
            with self._undisturbed():
                timed = self._pass(setting, pass_number)
            progress(f"pass {pass_number + 1} of {_PASSES}: {setting}: {timed.wall_s:.1f} s, {timed.failures} failed")
            passes[setting].append(timed)
        return passes

    @contextlib.contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """No other measurement on the GPU, nor anything else on the cores."""
        gpu = self._measurers[0].gpu_uuid
        with contextlib.ExitStack() as held:
            if gpu is not None:
                held.enter_context(GpuSlots(self._locks.directory, gpu).holding(ALONE))
            held.enter_context(self._locks.measuring(self._cores))
            yield

    def are_apart(self, count: int) -> bool:
        """Whether the first `count` measurers have no core in common."""
        taken = [core for measurer in self._measurers[:count] for core in measurer.cores]
        return len(set(taken)) == len(taken)

    def _pass(self, setting: Setting, pass_number: int) -> Pass:
        measurers = self._measurers[: setting.measurers]
        with self._builds_beside(measurers) if setting.builds else contextlib.nullcontext():
            start = time.perf_counter()
            timings = [
                measurer.time_anchored(batch, setting.policy)
                for measurer, batch in self._distributed(measurers, setting, pass_number)
            ]
            batches = [timing.result() for timing in timings]
            wall_s = time.perf_counter() - start
        return Pass(
            {name: outcome for batch in batches for name, outcome in batch.outcomes.items()},
            wall_s,
            {name: batch.anchor_ratio for batch in batches for name in batch.outcomes},
        )

    def _builds_beside(self, measurers: Sequence[PooledMeasurer]) -> contextlib.AbstractContextManager[None]:
        """As the one-machine stack has them: one a core that is not measured, or one a core if none is left."""
        measured = {core for measurer in measurers for core in measurer.cores}
        rest = [core for core in self._cores if core not in measured] or self._cores
        return builds_beside(self._builders[: len(rest)], self._candidates.traces, rest)

    def _distributed(
        self, measurers: Sequence[PooledMeasurer], setting: Setting, pass_number: int
    ) -> Iterator[tuple[PooledMeasurer, ArtifactBatch]]:
        """Every candidate to one of the measurers, in batches; in the next pass backwards, and to the next one."""
        names = list(self._candidates.codes)
        for number, measurer in enumerate(measurers):
            own = names[(number + pass_number) % len(measurers) :: len(measurers)][:: -1 if pass_number else 1]
            # A race goes on from the fastest so far, which is known within a batch only.
            size = _BATCH if setting.policy else len(own)
            for first in range(0, len(own), size):
                yield measurer, self._candidates.batch(own[first : first + size])


def _operator(options: NoiseOptions, pool: MeasurerPool, build_cores: BuildCores) -> SampleOperator:
    target = pool.device_info["target"] if options.share.device_kind == "cuda" else ""
    if options.model is None:
        return builtin_operator(target, build_cores)
    return heaviest_operator(options.model, options.inputs, options.only, target, build_cores)
