"""Jobs, their operators, and the rounds in progress."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from sqlalchemy import ColumnElement, Connection, RowMapping, bindparam, delete, func, insert, select, update

from fractune_core.access import Quotas
from fractune_core.codec.plain_json import In, JsonObject, from_json, to_dict
from fractune_core.errors import NotFound
from fractune_core.files.compared import Checked
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import DEFAULT_TENANT, Collection, place_owner
from fractune_core.records import Kind
from fractune_core.share_kinds import CPU
from fractune_core.shares import Device, GrantedShare
from fractune_server.store.database.database import NAMES, Repository, as_dict, rows_for
from fractune_server.store.database.sight import pool_of
from fractune_server.store.database.tables import ENDED, job_operators, jobs, rounds
from fractune_server.store.database.tenants import Owner, check_job, tenant_of


@dataclass
class Progress:
    """Counts of one job; see the message of the same name in the public contract."""

    planned: Annotated[int, In("trials_planned")] = 0
    done: Annotated[int, In("candidates_done")] = 0
    """candidates measured at every share for this job"""
    shared: Annotated[int, In("candidates_shared")] = 0
    """candidates measured at every share for other jobs meanwhile"""
    known: Annotated[int | None, In("trials_known")] = None
    """candidates that the log held at every share when tuning began; None = not counted yet"""
    by_share: Annotated[dict[str, int], In("trials_done")] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    saved: Annotated[int, In("trials_saved")] = 0
    """candidates that were not searched, because the operators are near their roof"""
    entered_at: dict[str, float] = field(default_factory=dict)
    """time of day when the job entered each state"""
    busy_s: dict[str, float] = field(default_factory=dict)
    """seconds that workers worked for the job, by kind of work"""


@dataclass
class StoredOperator:
    """One operator of a job. Times in seconds by share, as text."""

    workload_hash: str
    name: Annotated[str, In("display_name")]
    weight: int
    selected: bool
    trials: int = 0
    best_s: dict[str, float] = field(default_factory=dict)
    untuned_s: dict[str, float] = field(default_factory=dict)

    @property
    def search_weight(self) -> int:
        """The weight with which it gets trials and validations: an alternative counts as if the model ran it once."""
        return self.weight or 1


@dataclass
class StoredJob(JsonObject):
    """Times of day in seconds since 1970."""

    id: Annotated[str, In("name", Collection.JOBS)]
    spec: JobSpec
    created_at: Annotated[float, In("create_time")]
    device: Device
    granted: dict[str, GrantedShare]
    """by share, as text; in the order of the request, with the whole cores of CPU limits"""
    asked_target: str
    """target text for ingest"""
    state: JobState = JobState.QUEUED
    ended_at: Annotated[float | None, In("end_time")] = None
    error: str = ""
    message: str = ""
    target: str = ""
    """TVM's target as JSON; known after ingest"""
    target_key: str = ""
    notes: list[str] = field(default_factory=list)
    revision: int = 1
    tuning_began: float | None = None
    tuning_ended: float | None = None
    progress: Progress = field(default_factory=Progress)
    bundle: str = ""
    checked: Checked | None = None
    """of the bundle; None before there is one, and where it does not say"""
    timings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by share: `run_secs` and `max_error` by variant, `untuned_sum_s`, `granted` and `at_load` as JSON,
    `others_cores`; `job`, which timed it, and `timed_at`"""
    token: str = ""
    """id of the token that created the job; empty = no token was needed"""
    tenant: str = DEFAULT_TENANT
    shares_searches: bool = False
    """its tenant shares searches with other tenants"""

    @property
    def owner(self) -> str:
        """As `place_owner`."""
        return place_owner(self.tenant, self.token)

    @property
    def pool(self) -> str:
        """The records that its searches read and add to."""
        return pool_of(self.tenant, self.spec.namespace, shares_searches=self.shares_searches)

    @property
    def tuned_at(self) -> dict[str, GrantedShare]:
        """Those of `granted` under which kernels are measured; under the others only the whole model is timed."""
        return {share: granted for share, granted in self.granted.items() if granted.kind.measures_kernels}

    @property
    def cores(self) -> int:
        """Cores of the largest CPU share; 0 for other mechanisms. The target's num-cores."""
        return max(g.units if g.kind.device_kind == CPU else 0 for g in self.tuned_at.values())

    @property
    def latest(self) -> float:
        """The latest time that the job has noted."""
        return max(self.created_at, self.tuning_began or 0.0, *self.progress.entered_at.values())

    def phases_s(self, now: float) -> dict[str, float]:
        """Seconds in each state that the job has entered, by name and in order; their sum is the job's age.

        Empty for a job that has not begun.
        """
        if not self.progress.entered_at:
            return {}
        begun = {JobState.QUEUED.value: self.created_at, **self.progress.entered_at}
        order = sorted((at, state) for state, at in begun.items() if JobState(state).open)
        ends = [*(at for at, _ in order[1:]), max(self.ended_at or now, self.latest)]
        return {state: end - at for (at, state), end in zip(order, ends, strict=True)}


@dataclass
class Round:
    """Kept in the store while it lasts, so that a restarted server knows what is under way."""

    round_id: str
    job: str
    """job that requested the round"""
    kind: Kind
    workload_hash: str
    instance: str
    """the tuner instance that searches; empty for validations"""
    asked: int
    """number of requested candidates"""
    candidates: list[str] | None = None
    """None until the tuner instance has proposed them"""
    granted: dict[str, GrantedShare] = field(default_factory=dict)
    """by share as text: where the candidates are measured"""


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
