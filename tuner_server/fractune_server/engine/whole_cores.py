"""CPU limits in a job: kernels are measured at the whole cores that a limit spans, whole models under the limit.

A limit has no search of its own. So a job at nothing but limits searches only what no job has tuned at these cores.
"""

from __future__ import annotations

from collections.abc import Iterable

from fractune_core.shares import Share
from fractune_server.store.stored_job import StoredJob


def limit_note(job: StoredJob) -> str:
    """The whole cores that the job tunes at beside the requested shares; empty for none."""
    limits = [share for share in job.spec.shares if share not in job.tuned_at]
    added = [share for share in job.tuned_at if share not in job.spec.shares]
    if not added:
        return ""
    return f"{', '.join(limits)}: kernels are tuned at {', '.join(added)}, and the whole model is timed under the limit"


def tuned_before(job: StoredJob, done: Iterable[StoredJob]) -> list[str]:
    """Ids of the `done` jobs that tuned the same operators at all whole cores of a job at nothing but limits, newest
    first; empty if the job has to search.
    """
    spec, missing = job.spec, set(job.tuned_at)
    if spec.fresh or spec.extra_trials or any(Share.parse(share).kind.measures_kernels for share in spec.shares):
        return []
    found = []
    for earlier in done:
        new = missing & earlier.tuned_at.keys()
        searched = not earlier.spec.rerank and earlier.spec.trials > 0
        if new and searched and _scope(earlier) == _scope(job) and earlier.spec.only in ("", spec.only):
            found.append(earlier.id)
            missing -= new
    return [] if missing else found


def _scope(job: StoredJob) -> tuple[object, ...]:
    """What decides which records a job may read (`ActiveJob.log_key`), and which operators its model has."""
    return job.spec.inputs, job.target_key, job.device.key, job.spec.exact, job.spec.namespace
