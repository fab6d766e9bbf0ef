"""Jobs, their operators, and the rounds in progress."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, delete, func, insert, select, update

from fractune_core.access.tokens import Quotas
from fractune_core.codec.plain_json import from_json, to_dict
from fractune_core.errors import NotFound
from fractune_core.jobs import JobState
from fractune_core.shares import Device, GrantedShare
from fractune_server.store.database.database import NAMES, Repository, as_dict, rows_for
from fractune_server.store.database.tables import ENDED, job_operators, jobs, rounds
from fractune_server.store.database.tenants import tenant_of
from fractune_server.store.quotas import Owner, check_job
from fractune_server.store.stored_job import Round, StoredJob, StoredOperator

# Made once: building a statement takes longer than running it.
_BY_ID = select(jobs).where(jobs.c.id == bindparam("job"))
_OPERATORS_OF = select(job_operators).where(job_operators.c.job == bindparam("job")).order_by(job_operators.c.position)
_OPEN = select(jobs.c.id).where(jobs.c.state.in_([state.value for state in JobState if state.open]))
_SAVE = update(jobs).where(jobs.c.id == bindparam("job"), jobs.c.state.not_in(ENDED))
_ADD_ROUND = insert(rounds)
_DROP_ROUND = delete(rounds).where(rounds.c.round_id == bindparam("round"))
_REVISIONS = select(jobs.c.id, jobs.c.revision).where(jobs.c.id.in_(NAMES))


class JobStore(Repository):
    def create(self, job: StoredJob, quotas: Quotas | None = None) -> None:
        """Raises QuotaExceeded if the quotas of its token or of its tenant are used up."""
        with self._database.write() as connection:
            tenant = tenant_of(connection, job.tenant)
            if quotas is not None:
                check_job(connection, Owner(job.tenant, job.token), quotas, job.spec)
                check_job(connection, Owner(job.tenant), tenant.quotas, job.spec)
            job.shares_searches = tenant.shares_searches
            connection.execute(insert(jobs).values(_to_row(job)))

    def get(self, job: str) -> StoredJob:
        """Raises NotFound."""
        with self._database.read() as connection:
            row = connection.execute(self._seen(_BY_ID, jobs), {"job": job}).mappings().first()
        if row is None:
            raise NotFound(f"no job '{job}'; `fractune jobs` lists them")
        return _from_row(row)

    def revisions(self, names: Iterable[str]) -> dict[str, int]:
        """Revisions of the existing jobs among `names`, by id."""
        with self._database.read() as connection:
            return dict(rows_for(connection, self._seen(_REVISIONS, jobs), names))

    def page(self, limit: int, before: int | None, *, open_only: bool) -> list[tuple[int, StoredJob]]:
        """At most `limit` jobs before a number (None = from the newest), newest first, with their numbers."""
        query = self._seen(select(jobs), jobs).order_by(jobs.c.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(jobs.c.seq < before)
        if open_only:
            query = query.where(jobs.c.state.not_in(ENDED))
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [(row["seq"], _from_row(row)) for row in rows]

    def count_by_state(self) -> dict[JobState, int]:
        """Number of jobs by state, without states that have none."""
        query = self._seen(select(jobs.c.state, func.count()), jobs).group_by(jobs.c.state)
        with self._database.read() as connection:
            return {JobState(state): count for state, count in connection.execute(query)}

    def open_ids(self) -> set[str]:
        """Ids of the jobs that have not ended."""
        with self._database.read() as connection:
            return set(connection.scalars(_OPEN))

    def timings(self, bundle: str, device: Device, granted: Mapping[str, GrantedShare]) -> dict[str, dict[str, Any]]:
        """The newest job's timings of the bundle at the same granted shares of this device; empty if there are none.

        `granted` and the result are by share as text; the result is like `StoredJob.timings`.
        """
        same = (
            job
            for job in self._done(jobs.c.bundle == bundle)
            if job.device.key == device.key and _keys(job.granted) == _keys(granted)
        )
        return next((job.timings for job in same), {})

    def done_of_model(self, model: str) -> list[StoredJob]:
        """The finished jobs for the model with this SHA-256, newest first."""
        return self._done(jobs.c.model == model)

    def _done(self, condition: ColumnElement[bool]) -> list[StoredJob]:
        query = select(jobs).where(condition, jobs.c.state == JobState.DONE.value)
        query = self._seen(query, jobs).order_by(jobs.c.seq.desc())
        with self._database.read() as connection:
            return list(map(_from_row, connection.execute(query).mappings().all()))

    def save(self, job: StoredJob, operators: Mapping[int, StoredOperator] = MappingProxyType({})) -> bool:
        """Write the job as its next revision, and the given operators by their position in the model.

        False, with nothing written, if the job has ended in the store meanwhile: an end is final.
        """
        row = {**_to_row(job), "job": job.id, "revision": job.revision + 1}
        del row["id"]
        with self._database.write() as connection:
            changed = connection.execute(_SAVE, row).rowcount
            if changed and operators:
                self._save_operators(connection, job.id, operators)
        if changed:
            job.revision += 1
        return bool(changed)

    def _save_operators(self, connection: Connection, job: str, operators: Mapping[int, StoredOperator]) -> None:
        insert_ = self._database.insert(job_operators)
        values = {column.name: insert_.excluded[column.name] for column in job_operators.c if not column.primary_key}
        rows = [{"job": job, "position": place, **to_dict(operator)} for place, operator in operators.items()]
        keys = [column.name for column in job_operators.primary_key]
        connection.execute(insert_.on_conflict_do_update(index_elements=keys, set_=values), rows)

    def end(self, job: str, state: JobState, error: str, message: str) -> bool:
        """End an open job from outside the engine. False if it had already ended."""
        values = {
            "state": state.value,
            "error": error,
            "message": message,
            "ended_at": time.time(),
            "revision": jobs.c.revision + 1,
        }
        with self._database.write() as connection:
            ended = self._seen(update(jobs).where(jobs.c.id == job, jobs.c.state.not_in(ENDED)), jobs).values(values)
            changed = connection.execute(ended).rowcount
        return bool(changed)

    def operators(self, job: str) -> list[StoredOperator]:
        with self._database.read() as connection:
            rows = connection.execute(self._seen(_OPERATORS_OF, job_operators), {"job": job}).mappings().all()
        return [from_json(StoredOperator, as_dict(row)) for row in rows]

    def drop_operators(self, job: str) -> None:
        with self._database.write() as connection:
            connection.execute(delete(job_operators).where(job_operators.c.job == job))

    def save_round(self, round_: Round) -> None:
        granted = [share.to_json() for share in round_.granted.values()]
        row = {**to_dict(round_), "kind": round_.kind.value, "granted": granted}
        with self._database.write() as connection:
            connection.execute(_DROP_ROUND, {"round": round_.round_id})
            connection.execute(_ADD_ROUND, row)

    def drop_round(self, round_id: str) -> None:
        with self._database.write() as connection:
            connection.execute(_DROP_ROUND, {"round": round_id})

    def rounds(self) -> list[Round]:
        """All rounds in progress, also of ended jobs, because other jobs may wait for them."""
        with self._database.read() as connection:
            rows = connection.execute(select(rounds)).mappings().all()
        return list(map(_round_from_row, rows))


def _keys(granted: Mapping[str, GrantedShare]) -> dict[str, str]:
    return {share: each.key for share, each in granted.items()}


def _round_from_row(row: RowMapping) -> Round:
    return from_json(Round, {**as_dict(row), "granted": {share["share"]: share for share in row["granted"]}})


def _to_row(job: StoredJob) -> dict[str, Any]:
    row = job.to_json()
    # A list, because JSON objects are not promised to keep their order in every database.
    granted = list(row["granted"].values())
    return {**row, "model": job.spec.model, "model_name": job.spec.model_name, "granted": granted}


def _from_row(row: RowMapping) -> StoredJob:
    return StoredJob.from_json({**as_dict(row), "granted": {share["share"]: share for share in row["granted"]}})
