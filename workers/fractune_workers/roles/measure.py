"""Measure: run artifacts under this worker's share and write the records, failed builds included.

A batch is delivered whole, and measured again when the machine changed under it
(`measure_stable`).
"""

import math
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from fractune_core import tracing
from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.analysis.roofline import Roof
from fractune_core.errors import FractuneError
from fractune_core.fleet import messages
from fractune_core.fleet.blobs import get_signed_file
from fractune_core.fleet.redis_names import SERVER_STREAM, artifact_blob, bundle_blob, measure_queue
from fractune_core.fleet.redis_state import FAULT_EPOCHS, REMEASURED
from fractune_core.names import DEFAULT_TENANT
from fractune_core.records import UNTUNED, WARM, Kind, Status, TuningRecord, candidate_id
from fractune_core.shares import Device, GrantedShare, Share
from fractune_workers.context import ResultTransaction, WorkerContext
from fractune_workers.gpu.nvml import UNKNOWN_CLOCKS, GpuClock
from fractune_workers.locks.gpu_slots import ALONE, GpuTurns, MeasurementSlot, claim_of
from fractune_workers.measuring.audit import audit_file
from fractune_workers.measuring.session import (
    ATTEMPTS,
    FIRST_ATTEMPTS,
    ArtifactBatch,
    MeasurementSession,
    measure_stable,
    measured_record,
)
from fractune_workers.measuring.validation import validation
from fractune_workers.roles import Role
from fractune_workers.sandboxes import MeasurerLimits

_FIRST_ROOFS = 3
"""the first ones measure the memory too"""
_ROOF_EVERY_S = 1.0


class Measurer(Role):
    def __init__(
        self,
        context: WorkerContext,
        share: Share,
        margin: float = DEFAULT_MARGIN,
        cache: str = WARM,
        memory_bytes: int | None = None,
        secret_files: Sequence[Path] = (),
    ) -> None:
        """Its child cannot read `secret_files`."""
        self._context = context
        self._share = share
        self._audit = audit_file(context.name)
        locks = context.core_locks.directory
        self._bundles_dir = context.scratch_dir / "bundles"
        self._bundles_dir.mkdir(exist_ok=True)
        limits = MeasurerLimits(memory_bytes, readable=[self._bundles_dir], hidden=secret_files)
        self._session = MeasurementSession(share, context.cores, margin, locks, cache, limits)
        gpu = self._session.gpu_uuid
        self._turns = None if gpu is None else GpuTurns(locks, gpu)
        self._clocks = GpuClock().read if share.device_kind == "cuda" else lambda: UNKNOWN_CLOCKS
        self._best_s: dict[tuple[str, str, str], float] = {}
        """fastest median seen here, by tenant, workload and target: trials race against it"""
        self._highest_roof = Roof(0.0, 0.0, 0)
        self._roofs = 0
        self._next_roof_s = 0.0
        """in monotonic seconds; infinite after a failure"""

    def start(self) -> None:
        self._session.handshake()
        self._session.log_lacking()

    @property
    def _device(self) -> Device:
        return Device.from_json(self._session.device_info["device"])

    @property
    def _granted(self) -> GrantedShare:
        return GrantedShare.from_json(self._session.device_info["granted"])

    def queue(self) -> str:
        return measure_queue(self._device.key, str(self._share))

    def describe(self, info: messages.WorkerInfo) -> messages.WorkerInfo:
        target, versions = (self._session.device_info[name] for name in ("target", "versions"))
        share, device, granted = str(self._share), self._device, self._granted
        return replace(info, share=share, device=device, granted=granted, target=target, versions=versions)

    def keeps(self) -> bool:
        return self._turns is not None and self._turns.under_way

    def rest(self) -> None:
        if self._turns is not None:
            self._turns.end()

    def stop(self) -> None:
        self.rest()
        if self._audit is not None:
            self._audit.close()
        self._session.stop()

    def handle(self, work: messages.MeasureWork | messages.TimeModelWork) -> None:
        epochs_before = self._session.fault_epochs
        self._session.serve(work.tenant)
        try:
            if work.task == "time_model":
                self._time_model(work)
            else:
                self._measure(work)
        finally:
            self._context.counts.add(FAULT_EPOCHS, count=self._session.fault_epochs - epochs_before)

    def _measure(self, work: messages.MeasureWork) -> None:
        transaction = self._context.transaction(work)
        batch = self._batch(work)
        operator = (work.round.operator.workload_hash, work.round.operator.target_key)
        own = (work.tenant, *operator)
        is_validation = work.purpose is Kind.VALIDATION
        if is_validation:
            measure = validation(self._session, batch, candidate_id(*operator, UNTUNED))
        else:
            measure = partial(self._session.trials, batch, self._best_s.get(own, math.inf))
        with self._slot(alone=is_validation) as slot:
            # All tenants see it, so no process of another tenant than the default one may make it up.
            roof = self._higher_roof() if work.tenant == DEFAULT_TENANT or self._session.is_fresh else None
            attempts = FIRST_ATTEMPTS if work.round.validates else ATTEMPTS
            outcomes, conditions = measure_stable(self._session, self._clocks, measure, attempts)
        self._context.counts.add(REMEASURED, str(self._share), conditions.attempts - 1)
        if outcomes and work.purpose is Kind.TRIAL:
            fastest_s = min(outcome.median_s for outcome in outcomes.values())
            self._best_s[own] = min(fastest_s, self._best_s.get(own, math.inf))
        beside = slot.co_runners, self._context.name
        records = [
            measured_record(self._session, work, item, outcomes.get(item.candidate), conditions, *beside)
            for item in work.candidates
        ]
        if work.round.validates and is_validation:
            trials = [messages.trial_of(work, record) for record in records if record.trace != UNTUNED]
            # The trials come last, because they end the round. A candidate that was not built cannot be a finalist.
            records = [*(record for record in records if record.candidate_id in batch.codes), *trials]
        transaction.events(work.reply, (_measured(work, record) for record in records))
        if roof is not None:
            transaction.event(SERVER_STREAM, self._roof_measured(work, roof))
        self._send(transaction, records)

    def _send(self, transaction: ResultTransaction, records: Sequence[TuningRecord]) -> None:
        """Write the audit first, then send the results: the audit has also what is lost on the way."""
        if self._audit is not None:
            self._audit.measured(records)
        transaction.send()
        if self._audit is not None:
            self._audit.delivered(records)

    def _higher_roof(self) -> Roof | None:
        """The share's roof where it is higher than all that this process has found before; None otherwise.

        It is measured with the first batches and then once a second, when the cores are this worker's own. A co-runner
        on the same physical core may lower the roof for a while, but it lowers the kernels as much.
        """
        if time.monotonic() < self._next_roof_s:
            return None
        found = self._session.roof()
        if found is None:
            self._next_roof_s = math.inf
            return None
        self._roofs += 1
        self._next_roof_s = time.monotonic() + (_ROOF_EVERY_S if self._roofs >= _FIRST_ROOFS else 0.0)
        before, self._highest_roof = self._highest_roof, self._highest_roof.raised_to(found)
        return None if self._highest_roof == before else self._highest_roof

    def _roof_measured(self, work: messages.MeasureWork, roof: Roof) -> messages.RoofMeasured:
        return messages.RoofMeasured(
            job=work.job, device_key=self._device.key, share_key=self._granted.key, roof=roof.to_json()
        )

    def _slot(self, *, alone: bool) -> AbstractContextManager[MeasurementSlot]:
        """Wait until this measurement may run; `alone`: no other runs on the GPU. Its cores are always its own.

        On a GPU the slot is kept until `rest`, or until this measurer's turn is over.
        """
        locks, cores = self._context.core_locks, self._context.cores
        if self._turns is None:
            return locks.measuring(cores)
        return locks.measuring_on(self._turns, ALONE if alone else claim_of(self._granted), cores)

    def _batch(self, work: messages.MeasureWork) -> ArtifactBatch:
        """The artifacts that were built, their signatures checked. Raises NotFound or Unsigned."""
        codes = {
            item.candidate: self._context.signed_blob(artifact_blob(work.round.id, item.candidate))
            for item in work.candidates
            if item.status is Status.OK
        }
        traces = {item.candidate: item.trace for item in work.candidates}
        of = work.round.operator.workload_hash
        return ArtifactBatch.of(of, work.args_info, codes, traces, work.round.repeat_ms)

    def _time_model(self, work: messages.TimeModelWork) -> None:
        transaction = self._context.transaction(work)
        path = self._bundles_dir / "timed.fractune"
        try:
            path.unlink(missing_ok=True)
            get_signed_file(self._context.redis, self._context.secret, bundle_blob(work.bundle), path)
            with self._slot(alone=True):
                answer = self._session.time_model(path)
        except FractuneError as error:
            message = f"the compiled model could not be timed at {work.share}: {error}"
            transaction.event(SERVER_STREAM, transaction.failure("JobFailed", message))
        else:
            timed = messages.ModelTimed(job=work.job, share=str(self._share), granted=self._granted, **answer)
            transaction.event(SERVER_STREAM, timed)
        finally:
            path.unlink(missing_ok=True)
        transaction.send()


def _measured(work: messages.MeasureWork, record: TuningRecord) -> messages.Measured:
    return messages.Measured(job=work.job, round_id=work.round.id, record=record, traceparent=tracing.current(work.job))
