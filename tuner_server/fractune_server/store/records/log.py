"""The tuning log: all records. Only `prune` removes some."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, delete, func, not_, select, tuple_, update

from fractune_core.analysis.roofline import Arithmetic
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.errors import BadRequest, NotFound
from fractune_core.names import DEFAULT_TENANT
from fractune_core.operators import INEXACT, check_workload, is_exact, text_of
from fractune_core.records import Kind, Spending, Status, TuningRecord, WorkCost
from fractune_server.store.database.database import NAMES, Database, Repository, rows_for
from fractune_server.store.database.sight import namespace_of, pool_of
from fractune_server.store.database.tables import jobs, pieces, records, workloads
from fractune_server.store.database.tenants import seen_pools, shares_searches
from fractune_server.store.records.caches import (
    COUNTED,
    CountCache,
    RecordGroup,
    ValidatedCache,
    count_change,
    count_records,
    record_totals,
)
from fractune_server.store.records.rows import RecordFilter, record_from_row, record_to_row

_WORKED = (
    select(pieces.c.task, func.sum(pieces.c.worked_s))
    .where(pieces.c.job == bindparam("job"))
    .group_by(pieces.c.task)
    .order_by(pieces.c.task)
)
"""made once: building a statement takes longer than running it"""


def add_pieces(database: Database, connection: Connection, new: Iterable[WorkCost]) -> None:
    """Add pieces of work; existing ones stay as they are."""
    rows = [{column.name: getattr(piece, column.name) for column in pieces.c} for piece in new]
    database.insert_new(connection, pieces, rows)


class Ledger(Repository):
    def spent(self, names: Collection[str], since: float = 0.0) -> dict[str, list[Spending]]:
        """Spending for each of these jobs by pieces of work that ended at `since` (seconds since 1970) or later.

        By job; those for which nothing was spent are absent.
        """
        key = pieces.c.job, pieces.c.task, pieces.c.share
        sums = func.count(), func.sum(pieces.c.worked_s), func.sum(pieces.c.cpu_s)
        chosen = select(*key, *sums).where(pieces.c.job.in_(names), pieces.c.ended_at >= since)
        chosen = self._seen(chosen, pieces)
        found = defaultdict[str, list[Spending]](list)
        with self._database.read() as connection:
            for job, *spending in connection.execute(chosen.group_by(*key).order_by(*key)):
                found[job].append(Spending(*spending))
        return dict(found)

    def worked_s(self, job: str) -> dict[str, float]:
        """Seconds that workers worked for the job, by kind of work."""
        with self._database.read() as connection:
            return {task: float(secs) for task, secs in connection.execute(_WORKED, {"job": job})}


_PAGE = 500


_ARITHMETIC = select(workloads.c.workload_hash, *(workloads.c[field.name] for field in fields(Arithmetic))).where(
    workloads.c.workload_hash.in_(NAMES)
)
"""made once: building a statement takes longer than running it"""


@dataclass(frozen=True)
class LogKey:
    """The subject of a record, without the share."""

    workload_hash: str
    target_key: str
    device_key: str
    exact: bool = False
    """without candidates that round differently from the operator itself"""
    namespace: str = ""
    """the pool"""
    job: str = ""
    """only records of this job; empty = of any job of the pool"""

    @cached_property
    def search(self) -> LogKey:
        """The key of the operator's search: one search serves all jobs, exact or not."""
        return replace(self, exact=False) if self.exact else self

    def has(self, record: TuningRecord) -> bool:
        """Whether the record has this subject."""
        named = (record.workload_hash, record.target_key, record.device.key)
        fits = named == (self.workload_hash, self.target_key, self.device_key) and self.may_read(record)
        return fits and (not self.exact or is_exact(record.trace))

    def may_read(self, record: TuningRecord) -> bool:
        """Whether the record is in the pool and, if the key names a job, of this job."""
        return record.namespace == self.namespace and self.job in ("", record.job)

    def clauses(self, kind: Kind) -> list[ColumnElement[bool]]:
        """SQL conditions of the rows of this kind that `has` accepts."""
        inexact = sorted(INEXACT) if self.exact else []
        return [
            records.c.workload_hash == self.workload_hash,
            records.c.kind == kind.value,
            records.c.target_key == self.target_key,
            records.c.device_key == self.device_key,
            *self.readable(),
            *(not_(records.c.trace.startswith(text_of(name, ""), autoescape=True)) for name in inexact),
        ]

    def readable(self) -> list[ColumnElement[bool]]:
        """As `may_read`."""
        return [records.c.namespace == self.namespace, *([records.c.job == self.job] if self.job else [])]


@dataclass(frozen=True)
class Donor:
    """Number of good trials of an operator at one share."""

    workload_hash: str
    share_key: str
    operator: str
    trials: int


@dataclass(frozen=True)
class TrialRow:
    """The few facts about a trial that scheduling needs."""

    candidate_id: str
    share_key: str
    share: str
    ranking_median_s: float
    status: Status
    job: str


@dataclass(frozen=True)
class RecordPlace:
    """The place of a record in a listing: its median in seconds and its number. The next page begins after it."""

    ranking_median_s: float
    seq: int


class TuningLog(Repository):
    """The records and their workloads in the database."""

    def __init__(self, database: Database, beside: TuningLog | None = None) -> None:
        """`beside`: a log of the same database, to share its caches."""
        super().__init__(database)
        self._validated: ValidatedCache = ValidatedCache(database) if beside is None else beside._validated  # noqa: SLF001
        self._counts: CountCache = CountCache() if beside is None else beside._counts  # noqa: SLF001

    # ---- writing --------------------------------------------------------------------------------

    def add(self, new: Sequence[TuningRecord], done: Sequence[WorkCost] = ()) -> int:
        """Commit records and, to the ledger, pieces of work in one transaction. Existing ids stay as they are.

        Returns the number of new records.
        """
        with self._database.write() as connection:
            add_pieces(self._database, connection, done)
            return self._add(connection, new, _places(connection, new))

    def import_all(self, found: Iterable[tuple[str, str]], new: Sequence[TuningRecord]) -> int:
        """Commit workloads (as `add_workloads`) and records of the own tenant in one transaction.

        Returns the number of new records. Raises BadRequest, and imports nothing, for a record whose workload is
        neither in the log nor in `found`, and as `add_workloads`.
        """
        with self._database.write() as connection:
            self._add_workloads(connection, found)
            wanted = {record.workload_hash for record in new}
            missing = wanted - self._known_workloads(connection, wanted)
            if missing:
                culprit = next(record for record in new if record.workload_hash in missing)
                raise BadRequest(
                    f"records/{culprit.record_id}: workload {culprit.workload_hash} is not in the log; "
                    "import it together with its workload"
                )
            tenant = self._sight.own
            shares = shares_searches(connection, tenant)
            pools = {each.namespace: pool_of(tenant, each.namespace, shares_searches=shares) for each in new}
            return self._add(connection, new, [(tenant, pools[each.namespace]) for each in new])

    def add_workloads(self, found: Sequence[tuple[str, str]]) -> None:
        """Commit workloads: hash and text. Raises BadRequest for a text that does not belong to its hash."""
        with self._database.write() as connection:
            self._add_workloads(connection, found)

    def set_arithmetic(self, found: Mapping[str, Arithmetic]) -> None:
        """Store the arithmetic of workloads, by workload hash."""
        columns = workloads.c
        with self._database.write() as connection:
            for name, each in found.items():
                connection.execute(update(workloads).where(columns.workload_hash == name).values(asdict(each)))

    def prune(self, chosen: RecordFilter, keep_best: int, *, dry_run: bool) -> tuple[int, int]:
        """Delete records that pass the filter, except the fastest of every operator, target, device and share.

        Validations stay unless the filter names them. Returns the number of deleted records, and of those that passed
        the filter and stay.
        """
        with self._database.write() as connection:
            clauses = self._clauses(connection, chosen)
            total = _count(connection, clauses)
            doomed = _beyond_best(chosen, clauses, keep_best)
            count = connection.scalar(select(func.count()).select_from(doomed.subquery())) or 0
            if not dry_run:
                self._delete(connection, records.c.seq.in_(doomed), validations=chosen.kind is Kind.VALIDATION)
        self._counts.forget()
        return count, total - count

    def _clauses(self, connection: Connection, chosen: RecordFilter) -> list[ColumnElement[bool]]:
        return chosen.clauses(self._sight, seen_pools(connection, self._sight, chosen.namespace))

    def _add(self, connection: Connection, new: Sequence[TuningRecord], places: Iterable[tuple[str, str]]) -> int:
        """`places`: the tenant and the pool of each record."""
        columns = [records.c[name] for name in COUNTED]
        rows = [record_to_row(record, *place) for record, place in zip(new, places, strict=True)]
        added = self._database.insert_new_returning(connection, records, rows, columns)
        count_records(self._database, connection, map(tuple, added))
        count_change(self._database, connection, (r.workload_hash for r in new if r.kind is Kind.VALIDATION))
        return len(added)

    def _delete(self, connection: Connection, clause: ColumnElement[bool], *, validations: bool) -> None:
        """Delete validations, or trials only."""
        deleted = self._seen(delete(records).where(clause), records)
        if validations:
            # The rows that were really deleted: another server may have added validations since the count.
            changed = connection.scalars(deleted.returning(records.c.workload_hash)).all()
            count_change(self._database, connection, changed)
        else:
            connection.execute(deleted)

    def _add_workloads(self, connection: Connection, found: Iterable[tuple[str, str]]) -> None:
        texts = dict(found)
        for name, text in texts.items():
            check_workload(name, text)
        rows = [{"workload_hash": name, "json_zlib": zlib.compress(text.encode())} for name, text in texts.items()]
        self._database.insert_new(connection, workloads, rows)

    def _known_workloads(self, connection: Connection, wanted: set[str]) -> set[str]:
        query = select(workloads.c.workload_hash).where(workloads.c.workload_hash.in_(NAMES))
        return {name for (name,) in rows_for(connection, query, wanted)}

    # ---- reading --------------------------------------------------------------------------------

    def workload(self, workload_hash: str) -> str:
        """The text of the workload. Raises NotFound."""
        query = select(workloads.c.json_zlib).where(workloads.c.workload_hash == workload_hash)
        with self._database.read() as connection:
            packed = connection.scalar(query)
        if packed is None:
            raise NotFound(f"workload {workload_hash} is not in the log")
        return zlib.decompress(packed).decode()

    def arithmetic(self, workload_hashes: Iterable[str]) -> dict[str, Arithmetic]:
        """The known arithmetic of these workloads, by workload hash."""
        with self._database.read() as connection:
            rows = rows_for(connection, _ARITHMETIC, dict.fromkeys(workload_hashes))
            return {name: Arithmetic(*figures) for name, *figures in rows if any(figures)}

    def totals(self) -> dict[RecordGroup, int]:
        """Numbers of records that were ever added to the log."""
        with self._database.read() as connection:
            return record_totals(connection, self._sight)

    def existing(self, record_ids: Iterable[str]) -> set[str]:
        """The record ids that the log holds."""
        query = select(records.c.record_id).where(records.c.record_id.in_(NAMES))
        with self._database.read() as connection:
            return {name for (name,) in rows_for(connection, query, record_ids)}

    def trials(self, key: LogKey) -> list[TrialRow]:
        """All trials of one operator, at all shares."""
        columns = records.c
        query = select(
            columns.candidate_id,
            columns.share_key,
            columns.share,
            columns.ranking_median_s,
            columns.status,
            columns.job,
        ).where(*key.clauses(Kind.TRIAL))
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [TrialRow(c, key_, share, median, Status(status), job) for c, key_, share, median, status, job in rows]

    def best_trials(self, key: LogKey, share_key: str, limit: int) -> list[TuningRecord]:
        """The fastest trials at one share that ran well, one record for each candidate, fastest first."""
        best: dict[str, TuningRecord] = {}
        query = (
            select(records)
            .where(*key.clauses(Kind.TRIAL), records.c.share_key == share_key, records.c.status == Status.OK.value)
            .order_by(records.c.ranking_median_s)
        )
        with self._database.read() as connection, connection.execution_options(yield_per=_PAGE).execute(query) as found:
            for row in found.mappings():
                best.setdefault(row["candidate_id"], record_from_row(row))
                if len(best) >= limit:
                    break
        return list(best.values())

    def share_keys(self, key: LogKey, mechanism: str) -> list[str]:
        """Keys of a mechanism's shares with a trial of the operator, sorted."""
        query = select(records.c.share_key).where(
            *key.clauses(Kind.TRIAL), records.c.share_key.startswith(f"{mechanism}/", autoescape=True)
        )
        with self._database.read() as connection:
            return sorted(connection.scalars(query.distinct()))

    def traces(self, key: LogKey, candidates: Iterable[str]) -> dict[str, str]:
        """Trace by candidate, for candidates of one operator."""
        query = select(records.c.candidate_id, records.c.trace).where(
            *key.clauses(Kind.TRIAL), records.c.candidate_id.in_(NAMES)
        )
        with self._database.read() as connection:
            return dict(rows_for(connection, query, candidates))

    def donors(self, key: LogKey, kind: str, tenant: str = DEFAULT_TENANT) -> list[Donor]:
        """Donors among the tenant's operators with `kind` in their names, including the operator's own trials at other
        shares. Tenants that share a pool share what they know of equal operators, and of no others.
        """
        columns = records.c
        query = (
            select(columns.workload_hash, columns.share_key, func.min(columns.operator), func.count())
            .where(
                columns.kind == Kind.TRIAL.value,
                columns.status == Status.OK.value,
                columns.target_key == key.target_key,
                columns.device_key == key.device_key,
                columns.operator.icontains(kind, autoescape=True),
                columns.tenant == tenant,
                *key.readable(),
            )
            .group_by(columns.workload_hash, columns.share_key)
        )
        with self._database.read() as connection:
            return [Donor(*row) for row in connection.execute(query)]

    def validated_of(
        self, workload_hashes: Iterable[str], pool: str, reader: str = DEFAULT_TENANT
    ) -> dict[str, ValidatedRecords]:
        """Validations of many operators in the pool, by workload hash. Those of other tenants than the `reader` have no
        names.
        """
        return self._validated.of(workload_hashes, pool, reader)

    def pool(self, namespace: str) -> str:
        """The pool that the own tenant's searches of this namespace read."""
        own = self._sight.own
        with self._database.read() as connection:
            return pool_of(own, namespace, shares_searches=shares_searches(connection, own))

    def newest(self, share: str) -> TuningRecord | None:
        """The latest record at `share`, which is text."""
        return self._last(records.c.share == share)

    def newest_of_kind(self, device_kind: str) -> TuningRecord | None:
        """The latest record of a kind of device: `cpu` or `cuda`."""
        return self._last(records.c.device_key.startswith(f"{device_kind}-"))

    def _last(self, clause: ColumnElement[bool]) -> TuningRecord | None:
        query = self._seen(select(records).where(clause), records).order_by(records.c.seq.desc()).limit(1)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else record_from_row(row)

    def page(
        self, chosen: RecordFilter, limit: int, after: RecordPlace | None, *, fastest_first: bool
    ) -> list[tuple[RecordPlace, TuningRecord]]:
        """At most `limit` records after a place (None = from the start), fastest or newest first, with their places."""
        order = (records.c.ranking_median_s, records.c.seq) if fastest_first else (records.c.seq.desc(),)
        beyond = [] if after is None else [_beyond(after, fastest_first=fastest_first)]
        with self._database.read() as connection:
            query = select(records).where(*self._clauses(connection, chosen), *beyond).order_by(*order)
            rows = connection.execute(query.limit(limit)).mappings().all()
        return [(RecordPlace(row["ranking_median_s"], row["seq"]), record_from_row(row)) for row in rows]

    def count(self, chosen: RecordFilter) -> int:
        """The number of records that pass."""
        with self._database.read() as connection:
            pools = seen_pools(connection, self._sight, chosen.namespace)
            return self._counts.count(connection, chosen, self._sight, pools)

    def all(self, chosen: RecordFilter) -> Iterator[TuningRecord]:
        """All records that pass, oldest first. No transaction is open between pages."""
        last = 0
        while True:
            with self._database.read() as connection:
                query = select(records).where(*self._clauses(connection, chosen), records.c.seq > last)
                rows = connection.execute(query.order_by(records.c.seq).limit(_PAGE)).mappings().all()
            if not rows:
                return
            last = rows[-1]["seq"]
            yield from (record_from_row(row) for row in rows)


def _beyond(after: RecordPlace, *, fastest_first: bool) -> ColumnElement[bool]:
    if fastest_first:
        return tuple_(records.c.ranking_median_s, records.c.seq) > tuple_(after.ranking_median_s, after.seq)
    return records.c.seq < after.seq


def _count(connection: Connection, clauses: list[ColumnElement[bool]]) -> int:
    return connection.scalar(select(func.count()).select_from(records).where(*clauses)) or 0


def _places(connection: Connection, new: Sequence[TuningRecord]) -> list[tuple[str, str]]:
    """The tenant and the pool of each record, by its job. A worker's word for it is not needed."""
    known = select(jobs.c.id, jobs.c.tenant, jobs.c.shares_searches).where(jobs.c.id.in_(NAMES))
    owners = {job: (tenant, shares) for job, tenant, shares in rows_for(connection, known, {each.job for each in new})}
    places = []
    for each in new:
        tenant, shares = owners.get(each.job, (DEFAULT_TENANT, False))
        places.append((tenant, pool_of(tenant, namespace_of(each.namespace), shares_searches=shares)))
    return places


def _beyond_best(chosen: RecordFilter, clauses: list[ColumnElement[bool]], keep_best: int) -> Select[Any]:
    """Numbers of the rows that pass the filter and are not among the best."""
    columns = records.c
    identity = (columns.tenant, columns.workload_hash, columns.target_key, columns.device_key, columns.share_key)
    place = func.row_number().over(partition_by=identity, order_by=(columns.ranking_median_s, columns.seq))
    trials = [columns.kind == Kind.TRIAL.value] if chosen.kind is None else []
    ranked = select(columns.seq, place.label("place")).where(and_(*clauses, *trials)).subquery()
    return select(ranked.c.seq).where(ranked.c.place > keep_best)
