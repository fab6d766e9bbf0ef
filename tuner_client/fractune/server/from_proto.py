"""Messages of the public contract as the client's dataclasses, if a value is more than one field of a message."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fractune.server.job_status import JobStatus, OperatorMatch, OperatorRecords
from fractune_core.codec.messages import from_proto
from fractune_core.jobs import JobState, Priority
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord


def job_status(job: pb.Job) -> JobStatus:
    return from_proto(
        JobStatus,
        job,
        job.spec,
        job.progress,
        job.result,
        priority=Priority.of(job.spec.priority).value,
        phases_s=phases_in_order(job.progress.phases_s),
        busy_s=dict(sorted(job.progress.busy_s.items())),
    )


def phases_in_order(phases_s: Mapping[str, float]) -> dict[str, float]:
    """In the order of a job's phases; a map of the contract has no order."""
    return {state.value: phases_s[state.value] for state in JobState if state.value in phases_s}


def operator_records(answer: pb.OperatorTable) -> OperatorRecords:
    cells = tuple((each.tuned_at, each.run_at, from_proto(TuningRecord, each.record)) for each in answer.cells)
    return from_proto(OperatorRecords, answer, cells=cells)


def operator_match(answer: pb.OperatorMatch) -> OperatorMatch:
    return from_proto(OperatorMatch, answer, regret=None if math.isnan(answer.regret) else answer.regret)
