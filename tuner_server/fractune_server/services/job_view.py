"""A stored job as the public contract shows it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.codec.messages import from_lists, to_proto
from fractune_core.codec.times import timestamp
from fractune_core.jobs import JobState
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import GrantedShare
from fractune_server.selection.model_match import served_variant, timed_at_load
from fractune_server.store.stored_job import StoredJob, StoredOperator

_SHORTEST_SEARCH_S = 0.1
"""A job that searches nothing takes less. Trials of other jobs may still be shared with it later"""


def job_to_proto(
    job: StoredJob,
    operators: Sequence[StoredOperator] = (),
    arithmetic: Mapping[str, Arithmetic] = MappingProxyType({}),
    roofs: Mapping[str, Roof] = MappingProxyType({}),
    validated: Mapping[str, ValidatedRecords] = MappingProxyType({}),
) -> pb.Job:
    """`arithmetic` holds what is known of the operators, by workload hash, and `validated` their validations; `roofs`
    those of the device by share key.
    """
    return to_proto(
        job,
        pb.Job,
        progress=_progress(job),
        operators=[
            to_proto(
                operator,
                pb.Operator,
                arithmetic=arithmetic_to_proto(arithmetic.get(operator.workload_hash)),
                implementations=_implementations(job, operator, validated.get(operator.workload_hash)),
            )
            for operator in operators
        ],
        model_display_name=job.spec.model_name,
        roofs={share: to_proto(roofs[each.key], pb.Roof) for share, each in job.granted.items() if each.key in roofs},
        result=_result(job) if job.state is JobState.DONE else None,
    )


def _implementations(job: StoredJob, operator: StoredOperator, validated: ValidatedRecords | None) -> dict[str, str]:
    """By share: the implementation of the validation that gave the operator's best time."""
    if validated is None:
        return {}
    return {
        share: record.implementation
        for share, granted in job.granted.items()
        for record in validated.measured(job.device.key, job.target_key, granted.mechanism).records
        if record.granted.key == granted.key and record.median_s == operator.best_s.get(share)
    }


def arithmetic_to_proto(arithmetic: Arithmetic | None) -> pb.Arithmetic | None:
    return None if arithmetic is None else to_proto(arithmetic, pb.Arithmetic)


def _progress(job: StoredJob) -> pb.Progress:
    progress, now = job.progress, max(time.time(), job.latest)
    tuning_s = (job.tuning_ended or job.ended_at or now) - (job.tuning_began or now)
    return to_proto(
        progress,
        pb.Progress,
        trials_per_s=(progress.done + progress.shared) / tuning_s if tuning_s > _SHORTEST_SEARCH_S else 0.0,
        elapsed_s=max(job.ended_at or now, job.latest) - job.created_at,
        phases_s=job.phases_s(now),
    )


def _result(job: StoredJob) -> pb.JobResult:
    return pb.JobResult(
        wall_s=(job.ended_at or 0.0) - job.created_at,
        shares=[_share_result(job.id, share, timing) for share, timing in job.timings.items()],
        bundle=Collection.BUNDLES.of(job.bundle),
    )


def _share_result(job: str, share: str, timing: dict[str, Any]) -> pb.ShareResult:
    run_secs, timed_by = timing["run_secs"], timing.get("job", job)
    tuned = ROBUST_VARIANT if share not in run_secs and ROBUST_VARIANT in run_secs else served_variant(timing, share)
    return pb.ShareResult(
        share=share,
        granted=to_proto(GrantedShare.from_json(timing["granted"]), pb.GrantedShare),
        untuned_s=statistics.median(run_secs[UNTUNED_VARIANT]),
        tuned_s=statistics.median(run_secs[tuned]),
        run_secs=from_lists(run_secs, pb.Repeats),
        max_error=timing["max_error"],
        earlier_job=Collection.JOBS.of(timed_by) if timed_by != job else "",
        time=timestamp(timing["timed_at"]) if "timed_at" in timing else None,
        at_load=[to_proto(each, pb.AtLoad) for each in timed_at_load(timing)],
        others_cores=timing.get("others_cores", 0.0),
        variant=tuned,
    )
