"""A stored job as the public contract shows it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.convert import (
    arithmetic_to_proto,
    granted_to_proto,
    roof_to_proto,
    spec_to_proto,
    state_to_proto,
    timestamp,
)
from fractune_core.jobs import JobState
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import GrantedShare
from fractune_server.store.stored_job import StoredJob, StoredOperator


def job_to_proto(
    job: StoredJob,
    operators: Sequence[StoredOperator] = (),
    arithmetic: Mapping[str, Arithmetic] = MappingProxyType({}),
    roofs: Mapping[str, Roof] = MappingProxyType({}),
) -> pb.Job:
    """`arithmetic` holds what is known of the operators, by workload hash; `roofs` those of the device by share key."""
    message = pb.Job(
        name=Collection.JOBS.of(job.id),
        spec=spec_to_proto(job.spec),
        state=state_to_proto(job.state),
        create_time=timestamp(job.created_at),
        error=job.error,
        message=job.message,
        notes=job.notes,
        progress=_progress(job),
        operators=[_operator(operator, arithmetic.get(operator.workload_hash)) for operator in operators],
        revision=job.revision,
        model_display_name=job.spec.model_name,
        roofs={share: roof_to_proto(roofs[each.key]) for share, each in job.granted.items() if each.key in roofs},
    )
    if job.ended_at is not None:
        message.end_time.CopyFrom(timestamp(job.ended_at))
    if job.state is JobState.DONE:
        message.result.CopyFrom(_result(job))
    return message


def _progress(job: StoredJob) -> pb.Progress:
    progress, now = job.progress, max(time.time(), job.latest)
    tuning_s = (job.tuning_ended or job.ended_at or now) - (job.tuning_began or now)
    return pb.Progress(
        trials_planned=progress.planned,
        trials_done=progress.by_share,
        candidates_done=progress.done,
        candidates_shared=progress.shared,
        failures=progress.failures,
        trials_per_s=(progress.done + progress.shared) / tuning_s if tuning_s > 0 else 0.0,
        elapsed_s=max(job.ended_at or now, job.latest) - job.created_at,
        trials_saved=progress.saved,
        phases_s=job.phases_s(now),
        busy_s=progress.busy_s,
    )


def _operator(operator: StoredOperator, arithmetic: Arithmetic | None) -> pb.Operator:
    return pb.Operator(
        display_name=operator.name,
        weight=operator.weight,
        workload_hash=operator.workload_hash,
        trials=operator.trials,
        best_s=operator.best_s,
        untuned_s=operator.untuned_s,
        selected=operator.selected,
        arithmetic=None if arithmetic is None else arithmetic_to_proto(arithmetic),
    )


def _result(job: StoredJob) -> pb.JobResult:
    return pb.JobResult(
        wall_s=(job.ended_at or 0.0) - job.created_at,
        shares=[_share_result(job.id, share, timing) for share, timing in job.timings.items()],
        bundle=Collection.BUNDLES.of(job.bundle),
    )


def _share_result(job: str, share: str, timing: dict[str, Any]) -> pb.ShareResult:
    run_secs, timed_by = timing["run_secs"], timing.get("job", job)
    return pb.ShareResult(
        share=share,
        granted=granted_to_proto(GrantedShare.from_json(timing["granted"])),
        untuned_s=statistics.median(run_secs[UNTUNED_VARIANT]),
        tuned_s=statistics.median(run_secs.get(share) or run_secs[ROBUST_VARIANT]),
        run_secs={variant: pb.Repeats(secs=secs) for variant, secs in run_secs.items()},
        max_error=timing["max_error"],
        earlier_job=Collection.JOBS.of(timed_by) if timed_by != job else "",
        time=timestamp(timing["timed_at"]) if "timed_at" in timing else None,
    )
