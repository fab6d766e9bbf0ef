"""A measurement session: a confined child, the batches that are measured on it, and whether they count.

A trial is timed shortly, and once more for longer when it can win, one candidate after the other. Finalists are
validated (`fractune_workers.measuring.validation`). A batch is void when the anchor kernel after it differs from the
anchor before it. It is void when heat or the power supply slowed the GPU down meanwhile. It is also void when its
threads were kept from their cores for too long. A void batch is measured again, a few times at most. The records then
have the number of attempts, the drift of the anchor, the reasons of a low clock, and the disturbances.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import math
import os
import statistics
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from fractune_core import records
from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.analysis.roofline import Roof
from fractune_core.codec.plain_json import from_json
from fractune_core.errors import FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.fleet.messages import MeasureWork, work_record
from fractune_core.operators import DIRECT, implementation_of
from fractune_core.served import TRIES
from fractune_core.shares import Device, GrantedShare, Share
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS, ChildDied, ChildTimeout
from fractune_workers.child.process import Start
from fractune_workers.confinement import confinement_for, launcher_of
from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.faults.guard import Preparation, Quarantined, guard_for
from fractune_workers.gpu.nvml import Clocks
from fractune_workers.locks.core_locks import default_lock_dir
from fractune_workers.sandboxes import NO_FILES, MeasurerLimits, measurer_sandbox
from fractune_workers.scratch_dir import open_scratch_dir

CHILD_ERRORS = (*CALL_ERRORS, Quarantined)
"""raised by a call when the artifact is to blame"""
LOAD_TIMEOUT_S = 30.0
ATTEMPTS, FIRST_ATTEMPTS = 3, 2
"""how often a batch is measured at most, and one of a first candidate: a third time would choose no other"""
DRIFT_ALLOWED = 0.15
"""fraction by which the anchor after a batch may differ from the anchor before it"""
LOSS_ALLOWED = 0.1
"""Part of a batch's time in which its threads may be kept from their cores (`Disturbance.lost`)."""
ONE_CORE_LOSS_ALLOWED = 0.5
"""The same at a share of one core. Its times do not contain the lost time: only colder caches show in them."""
VOIDING = frozenset({"sw_thermal", "hw_thermal", "hw_power_brake"})
"""Temporary reasons to slow down. The cap on power is not one: a kernel that draws too much power meets it every time,
here and in production."""
_CHILD = "fractune_workers.children.measuring.child"
_ANCHOR_HOLDS_S = 2.0
"""An anchor younger than this counts as the one after a batch and as the one before the next batch. If the machine
changes between the two, the next batch is measured once more for nothing."""
_HANDSHAKE_TIMEOUT_S = 60.0
_TRIAL_TIMEOUT_S = 30.0
_MODEL_TIMEOUT_S = TRIES * 900.0
"""of a bundle whose operators' times are not known"""
_LOADED_WITHIN_S, _LOADED_BYTES_PER_S, _PACED_S = 60.0, 50e6, 180.0
"""_PACED_S: of the requests under a CPU limit"""
_VARIANT_S, _VARIANT_RUNS = 12.0, 30.0
"""of a variant: of its loops, which last for a moment each, and in times of the model. All are several times what they
take on a busy machine"""
_MODEL_REPEATS = 11
"""Enough for an interval of a table that compares 50 pairs of variants"""
_RUNGS = (records.FIRST_POLICY, records.TRIAL_POLICY)

_T = TypeVar("_T")


def _model_timeout_s(path: Path, share: Share) -> float:
    """From the measured times of the bundle's operators, so that a bundle that never ends does not hold the worker for
    as long as the slowest model takes. Raises BadBundle.
    """
    with contextlib.closing(Bundle(path)) as bundle:
        untuned_s, variants = bundle.untuned_sum_s(str(share)), len(bundle.variants)
    once_s = _LOADED_WITHIN_S + path.stat().st_size / _LOADED_BYTES_PER_S
    once_s += 0.0 if share.kind.measures_kernels else _PACED_S
    known_s = TRIES * (once_s + variants * (_VARIANT_S + _VARIANT_RUNS * untuned_s))
    return min(_MODEL_TIMEOUT_S, known_s) if untuned_s else _MODEL_TIMEOUT_S


class TimeOver(FractuneError):
    """A session's time was over before a call had ended: it says nothing of a candidate."""


@dataclass(frozen=True)
class Outcome:
    """The result of one measurement."""

    status: records.Status
    cause: str = ""
    run_secs: tuple[float, ...] = ()
    policy: records.TimingPolicy = records.FIRST_POLICY
    cpu_secs: float | None = None
    """CPU time of all threads in one call; None = not measured"""
    max_error: float | None = None
    disturbance: records.Disturbance | None = None
    """of its timing, together with all candidates that were timed interleaved with it; None = not known"""

    @property
    def median_s(self) -> float:
        """Infinite for a failure."""
        return statistics.median(self.run_secs) if self.run_secs else math.inf

    @classmethod
    def of(cls, error: FractuneError) -> Outcome:
        """The outcome of an artifact whose run raised one of CHILD_ERRORS."""
        if isinstance(error, Quarantined):
            return cls(error.status, str(error))
        if isinstance(error, ChildDied):
            return cls(records.Status.CRASHED, str(error))
        return cls(
            records.Status.RUN_TIMEOUT if isinstance(error, ChildTimeout) else records.Status.RUN_FAILED, str(error)
        )


@dataclass(frozen=True, eq=False)
class ArtifactBatch:
    """Artifacts of one workload."""

    args_info: list[Any]
    seed: int
    """seed of the random arguments"""
    codes: dict[str, bytes]
    """object files by candidate, of those that could be built"""
    implementations: Mapping[str, str] = field(default_factory=dict)
    """by candidate, of those that are not of the direct one: what arguments they take"""
    repeat_ms: float | None = None
    """milliseconds of one repeat of a validation with a warm cache; None = the policy's own length"""

    @classmethod
    def of(
        cls,
        workload_hash: str,
        args_info: list[Any],
        codes: dict[str, bytes],
        traces: Mapping[str, str],
        repeat_ms: float | None = None,
    ) -> ArtifactBatch:
        """The artifacts `codes` of one workload, whose random arguments are the same everywhere. `traces`: by
        candidate, of these and perhaps others.
        """
        named = {candidate: implementation_of(traces[candidate]) for candidate in codes}
        others = {candidate: implementation for candidate, implementation in named.items() if implementation != DIRECT}
        return cls(args_info, zlib.crc32(workload_hash.encode()), codes, others, repeat_ms)

    def implementation(self, candidate: str) -> str:
        return self.implementations.get(candidate, DIRECT)

    def repeated(self, policy: records.TimingPolicy) -> records.TimingPolicy:
        """The policy with this batch's length of repeats."""
        if self.repeat_ms is None or policy.cache != records.WARM:
            return policy
        return replace(policy, min_repeat_ms=self.repeat_ms)


class MeasurementSession:
    """One share of this machine. A child that dies is replaced, and its share verified again.

    Where faults spread to the other clients of a device, everything that touches the child goes through
    `fractune_workers.faults.guard`. The sessions of one device find each other in `lock_dir`, a folder; None = that of
    the core locks of this user's workers. `cache`: WARM or COLD, of a GPU. The child runs in a sandbox within
    `limits`, which must let it read the bundles that it times. `packed`: the folder of a pack, in place of TVM's
    compiler (`children/measuring/setup.py`).
    """

    def __init__(
        self,
        share: Share,
        cores: Sequence[int],
        margin: float = DEFAULT_MARGIN,
        lock_dir: Path | None = None,
        cache: str = records.WARM,
        limits: MeasurerLimits = NO_FILES,
        packed: Path | None = None,
    ) -> None:
        self._share = str(share)
        self._margin = margin
        self._rungs = [records.with_cache(policy, cache) for policy in _RUNGS]
        self.validation_policy = records.with_cache(records.VALIDATION_POLICY, cache)
        """how finalists are timed"""
        LimitCgroups().remove_dead()
        self._confinement = confinement_for(share, cores)
        self._confinement.probe()
        self._held = ExitStack()
        own_dir = self._held.enter_context(open_scratch_dir())
        units = ",".join(str(core) for core in cores)
        self._child = Child(
            _CHILD,
            [str(share), units, *([] if packed is None else [str(packed)])],
            env={**_folders_of_all(), **self._confinement.environment()},
            before_kill=self._confinement.before_kill,
            # A CPU share confines its process itself; that of a GPU launches its kernels from these cores.
            start=Start(cores if share.device_kind == "cuda" else (), launcher_of(self._confinement)),
            sandbox=measurer_sandbox(share, own_dir, limits if packed is None else replace(limits, readable=[packed])),
        )
        try:
            self._guard = guard_for(self._child, self._confinement, lock_dir or default_lock_dir())
        except FractuneError:
            self._held.close()
            self._confinement.leave()  # else a daemon that it started would stay
            raise
        self._tenant: str | None = None
        self._ran_in = 0
        """the last child that ran code of a tenant"""
        self._verified = 0
        self._prepared: tuple[int, ArtifactBatch | None] = (0, None)
        self._last_anchor = (0.0, 0, 0.0)
        """its ratio, the child, and when it was timed, in monotonic seconds"""
        self.preparation = 0
        """how often a child got the arguments of a batch; each time it loses the kernels that it has loaded"""
        self.loss_allowed = ONE_CORE_LOSS_ALLOWED if share.host_cores == 1 else LOSS_ALLOWED
        """part of a batch's time in which its threads may be kept from their cores"""
        self.end_s = math.inf
        """monotonic seconds at which every call has ended"""
        self.device_info: dict[str, Any] = {}
        """the child's device, granted share, target and versions (`MeasurerChild.device_info`)"""

    @property
    def fault_epochs(self) -> int:
        """Number of fault epochs that this session has begun; 0 where a fault stays with its process."""
        return self._guard.epochs

    def handshake(self) -> None:
        """Verify the share of the present child. Raises ShareUnavailable: nothing is measured unconfined."""
        self._guard.get_ready(self._preparation())

    def serve(self, tenant: str) -> None:
        """Have a child that has run nothing of another tenant. Raises ShareUnavailable.

        What ran in a process before may have changed it: its answers, and all that it keeps of the next candidate.
        """
        if self._tenant not in (None, tenant):
            self._guard.end_process()
            self.handshake()
        self._tenant = tenant

    def log_lacking(self) -> None:
        """Log, once, the protections that the sandbox of the child lacks on this host."""
        self._child.log_lacking("measures candidates")

    def stop(self) -> None:
        try:
            self._guard.stop()
        finally:
            self._held.close()
            self._confinement.leave()

    @property
    def gpu_uuid(self) -> str | None:
        """The GPU that the share is a part of; None for a CPU share."""
        return self._confinement.gpu_uuid

    @property
    def generation(self) -> int:
        """Number of children so far."""
        return self._child.generation

    def anchor(self) -> float:
        """Time of the anchor kernel over its first time in this child; 0 when it could not be timed."""
        try:
            ratio = float(self.run((), None, partial(self.call, "anchor", _TRIAL_TIMEOUT_S)))
        except CHILD_ERRORS:
            return 0.0
        self._last_anchor = ratio, self.generation, time.monotonic()
        return ratio

    def anchor_before(self) -> float:
        """As `anchor`. On a CPU the anchor after the last batch counts, if it was timed in this child just before."""
        ratio, generation, timed_s = self._last_anchor
        if self.gpu_uuid is None and generation == self.generation and time.monotonic() - timed_s < _ANCHOR_HOLDS_S:
            return ratio
        return self.anchor()

    @property
    def is_fresh(self) -> bool:
        """Whether the present child has run no code of a tenant yet, which may make up all that it says then."""
        return self._ran_in != self.generation

    def roof(self) -> Roof | None:
        """The roof that this session's child measures now, on a GPU the launch floor; None after a failure."""
        try:
            return Roof.from_json(self.run((), None, partial(self.call, "roof", _TRIAL_TIMEOUT_S)))
        except CHILD_ERRORS:
            return None

    def trials(
        self, batch: ArtifactBatch, best_s: float = math.inf, among: Sequence[str] | None = None
    ) -> dict[str, Outcome]:
        """Race the candidates, or those `among` them, each on its own: only one that comes close to the fastest so far
        is timed for longer.

        `best_s`: the fastest median of this operator before, in seconds. Successive halving in its smallest form
        (Jamieson and Talwalkar, AISTATS 2016): two rungs, and a margin instead of a quota. A candidate without a
        competitor gets the first rung only.
        """
        outcomes: dict[str, Outcome] = {}
        names = list(batch.codes) if among is None else among
        is_alone = len(names) == 1 and best_s == math.inf
        rungs = self._rungs[:1] if is_alone else self._rungs
        for name in names:
            outcomes[name] = self._race(batch, name, rungs, best_s * self._margin)
            best_s = min(best_s, outcomes[name].median_s)
        return outcomes

    def timed(self, batch: ArtifactBatch, policy: records.TimingPolicy) -> dict[str, Outcome]:
        """Time every candidate under `policy`, one after the other."""
        return {name: self._race(batch, name, [policy], math.inf) for name in batch.codes}

    def time_model(self, path: Path) -> dict[str, Any]:
        """Time every variant of the bundle at `path`: `run_secs` and `max_error` by variant, `at_load` of the best."""
        options = {"path": str(path), "repeats": _MODEL_REPEATS, "own": self._share}
        timed = partial(self.call, "time_model", _model_timeout_s(path, Share.parse(self._share)), **options)
        answer: dict[str, Any] = self.run([path], None, timed, alone=True)
        return answer

    def run(
        self, codes: Sequence[bytes | Path], batch: ArtifactBatch | None, run: Callable[[], _T], *, alone: bool = False
    ) -> _T:
        """The result of `run` in a child that is prepared for `batch`; `codes` is the machine code that it runs there,
        or a file of it.

        `alone`: while nothing else runs on the device, as far as faults spread there. Raises one of CHILD_ERRORS.
        """

        def noted() -> _T:
            self._ran_in = self.generation if codes else self._ran_in
            return run()

        return self._guard.run(map(artifact_name, codes), self._preparation(batch), noted, alone=alone)

    def call(self, method: str, timeout_s: float, **payload: Any) -> Any:
        """Call the child, within `run`. Raises TimeOver."""
        left_s = self.end_s - time.monotonic()
        if left_s <= 0:
            raise TimeOver("the time for measuring is over")
        try:
            return self._child.call(method, min(timeout_s, left_s), **payload)
        except ChildTimeout as error:
            if timeout_s > left_s:
                raise TimeOver("the time for measuring is over") from error
            raise

    def is_prepared(self, batch: ArtifactBatch | None) -> bool:
        """Whether the present child's share is verified, and it has the arguments of `batch`. Starts no child."""
        present = self._child.generation
        if self._child.pid is None or self._verified != present:
            return False
        return batch is None or self._prepared == (present, batch)

    def forget_batch(self) -> None:
        """Have the child prepared again before it runs anything of a batch."""
        self._prepared = (0, None)

    def _race(self, batch: ArtifactBatch, name: str, rungs: Sequence[records.TimingPolicy], bar_s: float) -> Outcome:
        code = batch.codes[name]
        options = {
            "policies": [policy.to_json() for policy in rungs],
            "bar_s": bar_s,
            "implementation": batch.implementation(name),
        }
        raced = partial(self.call, "race", _TRIAL_TIMEOUT_S, code=code, **options)
        try:
            answer = self.run([code], batch, raced)
        except CHILD_ERRORS as error:
            return Outcome.of(error)
        return from_json(Outcome, {"status": records.Status.OK, **answer})

    def _preparation(self, batch: ArtifactBatch | None = None) -> Preparation:
        return Preparation(partial(self.is_prepared, batch), partial(self._prepare, batch))

    def _prepare(self, batch: ArtifactBatch | None = None) -> None:
        if self.is_prepared(batch):
            return
        if self._child.ensure() != self._verified:
            self.device_info = self.call("device_info", _HANDSHAKE_TIMEOUT_S)
            self._verified = self._child.generation
        if batch is not None and not self.is_prepared(batch):
            self.call("begin", LOAD_TIMEOUT_S, args_info=batch.args_info, seed=batch.seed)
            self._prepared = (self._child.generation, batch)
            self.preparation += 1


def _folders_of_all() -> dict[str, str]:
    """Variables by which a process finds the locks and MPS daemons that all processes of the host share."""
    return {name: os.environ[name] for name in ("TMPDIR", "XDG_RUNTIME_DIR") if name in os.environ}


def measured_record(
    session: MeasurementSession,
    work: MeasureWork,
    item: records.ArtifactItem,
    measured: Outcome | None,
    conditions: Conditions,
    co_runners: int,
    worker: str,
) -> records.TuningRecord:
    """The record of a candidate of `work`. `measured`: None for what could not be built."""
    outcome = measured or Outcome(item.status, item.cause)
    device, granted = (session.device_info[name] for name in ("device", "granted"))
    shown = (Device.from_json(device), GrantedShare.from_json(granted), outcome.status, outcome.cause, outcome.policy)
    return replace(
        work_record(work, item, *shown),
        run_secs=outcome.run_secs,
        cpu_secs=outcome.cpu_secs,
        anchor_ratio=conditions.anchor_ratio,
        neighbours=co_runners,
        worker=worker,
        build_secs=item.build_secs,
        max_error=outcome.max_error,
        clock_mhz=conditions.clock_mhz,
        throttled_ns=dict(conditions.throttled_ns),
        versions={**session.device_info["versions"], **item.versions},
        disturbance=outcome.disturbance,
        attempts=conditions.attempts,
    )


def artifact_name(code: bytes | Path) -> str:
    """The name of an artifact, or of one in a file: the same bytes share a verdict, wherever they run."""
    with io.BytesIO(code) if isinstance(code, bytes) else code.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:32]


class AnchoredSession(Protocol):
    """The part of a session that shows whether the machine has changed."""

    loss_allowed: float

    @property
    def generation(self) -> int: ...

    def anchor_before(self) -> float:
        """The anchor before a batch; 0 when it could not be timed."""
        ...

    def anchor(self) -> float:
        """The anchor now; 0 when it could not be timed."""
        ...


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a batch was measured."""

    anchor_ratio: float
    clock_mhz: int = 0
    throttled_ns: Mapping[str, int] = field(default_factory=dict)
    attempts: int = 1
    """how often it was measured, this time included"""


def measure_stable(
    session: AnchoredSession,
    clocks: Callable[[], Clocks],
    measure: Callable[[], Mapping[str, Outcome]],
    attempts: int = ATTEMPTS,
) -> tuple[Mapping[str, Outcome], Conditions]:
    """The result of `measure` while nothing changed, or of the last attempt; and its conditions.

    1. Time the anchor, then read the clock: an idle GPU has slowed down, and is awake after the anchor.
    2. Measure, time the anchor again, and read the clock again.
    3. Accept, unless the anchor drifted, the clock was held down for one of the reasons that void, or the threads that
       measured were kept from their cores.
    """
    for attempt in range(1, attempts + 1):
        before, child = session.anchor_before(), session.generation
        clock_before = clocks()
        outcomes = measure()
        after = session.anchor()
        clock_after = clocks()
        conditions = Conditions(
            after, min(clock_before.sm_mhz, clock_after.sm_mhz), clock_after.throttled_since(clock_before), attempt
        )
        # Each ratio is over the first time in its own child: the ratios of two children do not show a drift.
        comparable = before and after and session.generation == child
        drifted = bool(comparable) and abs(after / before - 1.0) > DRIFT_ALLOWED
        if not drifted and not VOIDING & conditions.throttled_ns.keys() and _lost(outcomes) <= session.loss_allowed:
            break
    return outcomes, conditions


def _lost(outcomes: Mapping[str, Outcome]) -> float:
    # Candidates that were timed interleaved share their time: counted together, the part stays the same.
    disturbance = records.total(outcome.disturbance for outcome in outcomes.values())
    return 0.0 if disturbance is None else disturbance.lost
