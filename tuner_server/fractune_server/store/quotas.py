"""The usage of a token, counted from its jobs, models and bundles, and the checks of its quotas."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection, func, or_, select

from fractune_core.access.tokens import Quotas
from fractune_core.errors import QuotaExceeded
from fractune_core.jobs import JobSpec, JobState
from fractune_server.store.database.tables import ENDED, bundles, jobs, models, tokens

_DAY_S = 24 * 3600.0


@dataclass(frozen=True)
class Usage:
    """Current usage, in the units of `fractune_core.access.tokens.Quotas`."""

    open_jobs: int
    trials_a_day: int
    stored_bytes: int


def usage_of(connection: Connection, token_id: str) -> Usage:
    since = time.time() - _DAY_S
    query = select(jobs.c.state, jobs.c.created_at, jobs.c.spec, jobs.c.progress).where(
        jobs.c.token == token_id, or_(jobs.c.created_at > since, jobs.c.state.not_in(ENDED))
    )
    open_jobs = trials = 0
    for state, created_at, spec, progress in connection.execute(query):
        is_open = JobState(state).open
        open_jobs += is_open
        if created_at > since:
            requested = trials_asked(JobSpec.from_json(spec)) if is_open else 0
            trials += max(requested, int(progress["done"]))
    return Usage(open_jobs, trials, _stored_bytes(connection, token_id))


def _stored_bytes(connection: Connection, token_id: str) -> int:
    """Of the token's models and bundles."""
    sums = (
        select(func.coalesce(func.sum(kind.c.size_bytes), 0)).where(kind.c.token == token_id)
        for kind in (models, bundles)
    )
    return sum(int(connection.scalar(each) or 0) for each in sums)


def trials_asked(spec: JobSpec) -> int:
    """Trials that the job may make. Beyond them every new operator gets at least one."""
    return spec.extra_trials or spec.trials


def check_job(connection: Connection, token_id: str, quotas: Quotas, spec: JobSpec) -> None:
    """Raises QuotaExceeded if the token may not have this job. Call it in the transaction that adds the job."""
    if quotas == Quotas():
        return
    used = usage_of(connection, token_id)
    if quotas.open_jobs is not None and used.open_jobs >= quotas.open_jobs:
        raise QuotaExceeded(
            f"token {token_id} has {used.open_jobs} open jobs of at most {quotas.open_jobs}; "
            "wait until one ends, or cancel one"
        )
    if quotas.stored_bytes is not None and used.stored_bytes >= quotas.stored_bytes:
        raise QuotaExceeded(
            f"token {token_id} has stored {used.stored_bytes} of {quotas.stored_bytes} bytes, so no bundle has room; "
            "ask the server's operator for more"
        )
    left = None if quotas.trials_a_day is None else max(quotas.trials_a_day - used.trials_a_day, 0)
    # A job that searches nothing needs one trial left, because its measurements are known only at its end.
    if left is not None and max(trials_asked(spec), 1) > left:
        raise QuotaExceeded(
            f"the job asks for {trials_asked(spec)} trials, and token {token_id} has {left} of "
            f"{quotas.trials_a_day} in 24 hours left; ask for fewer, or wait"
        )


def check_bundle(connection: Connection, token_id: str, size_bytes: int) -> None:
    """Raises QuotaExceeded if the token may not store the bundle. Call it in the transaction that adds the bundle."""
    quota = connection.scalar(select(tokens.c.stored_bytes).where(tokens.c.id == token_id))
    if quota is None:
        return
    left = max(int(quota) - _stored_bytes(connection, token_id), 0)
    if size_bytes > left:
        raise QuotaExceeded(
            f"the bundle has {size_bytes} bytes, and token {token_id} has {left} of {quota} left; "
            "ask the server's operator for more"
        )
