"""The messages of the public contract as the client's plain values: the one place where they are taken apart."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fractune.server.job_status import (
    JobStatus,
    OfferedShare,
    OperatorMatch,
    OperatorRecords,
    OperatorStatus,
    ShareResult,
    Worker,
)
from fractune_core.convert import (
    arithmetic_from_proto,
    device_from_proto,
    granted_from_proto,
    record_from_proto,
    roof_from_proto,
    seconds,
    shapes_from_proto,
    state_from_proto,
)
from fractune_core.jobs import JobState, Priority
from fractune_core.pb import fractune_pb2 as pb


def job_status(job: pb.Job) -> JobStatus:
    progress = job.progress
    return JobStatus(
        name=job.name,
        state=state_from_proto(job.state),
        model=job.spec.model,
        model_name=job.model_display_name,
        shares=tuple(job.spec.shares),
        inputs=shapes_from_proto(job.spec.inputs),
        target=job.spec.target,
        scope=job.spec.scope,
        priority=Priority.of(job.spec.priority).value,
        minutes=job.spec.minutes,
        created_at=seconds(job.create_time),
        error=job.error,
        message=job.message,
        notes=tuple(job.notes),
        trials_planned=progress.trials_planned,
        trials_done=dict(progress.trials_done),
        candidates_done=progress.candidates_done,
        candidates_shared=progress.candidates_shared,
        failures=dict(progress.failures),
        trials_per_s=progress.trials_per_s,
        elapsed_s=progress.elapsed_s,
        phases_s=phases_in_order(progress.phases_s),
        busy_s=dict(sorted(progress.busy_s.items())),
        operators=tuple(map(operator_status, job.operators)),
        results=tuple(map(share_result, job.result.shares)),
        wall_s=job.result.wall_s,
        bundle=job.result.bundle,
        revision=job.revision,
        roofs={share: roof_from_proto(roof) for share, roof in job.roofs.items()},
        trials_saved=progress.trials_saved,
    )


def phases_in_order(phases_s: Mapping[str, float]) -> dict[str, float]:
    """In the order in which a job goes through them; a map of the contract has none."""
    return {state.value: phases_s[state.value] for state in JobState if state.value in phases_s}


def operator_status(operator: pb.Operator) -> OperatorStatus:
    return OperatorStatus(
        name=operator.display_name,
        workload_hash=operator.workload_hash,
        weight=operator.weight,
        trials=operator.trials,
        best_s=dict(operator.best_s),
        untuned_s=dict(operator.untuned_s),
        selected=operator.selected,
        arithmetic=arithmetic_from_proto(operator.arithmetic) if operator.HasField("arithmetic") else None,
    )


def share_result(result: pb.ShareResult) -> ShareResult:
    return ShareResult(
        share=result.share,
        granted=granted_from_proto(result.granted),
        untuned_s=result.untuned_s,
        tuned_s=result.tuned_s,
        run_secs={variant: tuple(repeats.secs) for variant, repeats in result.run_secs.items()},
        max_error=dict(result.max_error),
        earlier_job=result.earlier_job,
        timed_at=seconds(result.time),
    )


def operator_records(answer: pb.OperatorTable) -> OperatorRecords:
    cells = tuple((each.tuned_at, each.run_at, record_from_proto(each.record)) for each in answer.cells)
    return OperatorRecords(operator_status(answer.operator), cells)


def operator_match(answer: pb.OperatorMatch) -> OperatorMatch:
    return OperatorMatch(
        operator=operator_status(answer.operator),
        how=answer.how,
        regret=None if math.isnan(answer.regret) else answer.regret,
        reason=answer.reason,
        record=record_from_proto(answer.record) if answer.HasField("record") else None,
    )


def worker(message: pb.Worker) -> Worker:
    measures = message.HasField("granted")
    return Worker(
        name=message.name,
        role=message.role,
        host=message.host,
        pid=message.pid,
        started_at=seconds(message.start_time),
        device=device_from_proto(message.device) if measures else None,
        granted=granted_from_proto(message.granted) if measures else None,
    )


def offered_share(message: pb.OfferedShare) -> OfferedShare:
    return OfferedShare(device_from_proto(message.device), granted_from_proto(message.granted), message.workers)
