"""Caches over the log's records, so that callers need not read all of them: validations, and numbers of records."""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.names import DEFAULT_TENANT
from fractune_core.records import Kind, TuningRecord
from fractune_server.store.database.database import NAMES, Database, parts, rows_for
from fractune_server.store.database.sight import SHARED, Sight
from fractune_server.store.database.tables import record_counts, records, validation_versions
from fractune_server.store.records.rows import RecordFilter, RecordReader, within

_MOST = 256


@dataclass(frozen=True)
class _Counted:
    upto: int
    """number of the last counted record"""
    passing: int


class CountCache:
    """Numbers of records that pass a filter. Each is counted once in full, and later only among the new records.

    Any thread may call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted: dict[tuple[Sight, RecordFilter], _Counted] = {}
        self._prunings = 0

    def count(self, connection: Connection, chosen: RecordFilter, sight: Sight, pools: Collection[str]) -> int:
        with self._lock:
            prunings, before = self._prunings, self._counted.get((sight, chosen), _Counted(0, 0))
        seen = sight.conditions(records)
        newest = select(func.max(records.c.seq)).where(*seen, *([within(pools, by_index=True)] if seen else []))
        upto = connection.scalar(newest) or 0
        since = [*chosen.clauses(sight, pools), records.c.seq > before.upto, records.c.seq <= upto]
        more = connection.scalar(select(func.count()).select_from(records).where(*since)) or 0
        found = _Counted(upto, before.passing + more)
        if not chosen.model:  # the operators of a model may change
            self._keep((sight, chosen), found, prunings)
        return found.passing

    def forget(self) -> None:
        """Call this after a transaction that deleted records."""
        with self._lock:
            self._prunings += 1
            self._counted.clear()

    def _keep(self, chosen: tuple[Sight, RecordFilter], found: _Counted, prunings: int) -> None:
        with self._lock:
            if prunings != self._prunings:
                return
            while len(self._counted) >= _MOST and chosen not in self._counted:
                del self._counted[next(iter(self._counted))]
            self._counted[chosen] = found


class RecordGroup(NamedTuple):
    share: str
    """as text, as requested"""
    kind: str
    """`fractune_core.records.Kind`"""
    status: str
    """`fractune_core.records.Status`"""


COUNTED = ("tenant", *RecordGroup._fields)
"""columns of a record by which it is counted"""


def count_records(database: Database, connection: Connection, added: Iterable[tuple[str, ...]]) -> None:
    """Count, within the transaction, the records that it adds, each as its COUNTED. The counts only grow: pruning does
    not change them.
    """
    # In a fixed order, so that two transactions never deadlock.
    rows = [
        {**dict(zip(COUNTED, group, strict=True)), "records": count} for group, count in sorted(Counter(added).items())
    ]
    if rows:
        insert = database.insert(record_counts)
        more = {"records": record_counts.c.records + insert.excluded.records}
        connection.execute(insert.on_conflict_do_update(index_elements=COUNTED, set_=more), rows)


def record_totals(connection: Connection, sight: Sight) -> dict[RecordGroup, int]:
    columns = [record_counts.c[name] for name in RecordGroup._fields]
    query = select(*columns, func.sum(record_counts.c.records)).where(*sight.conditions(record_counts))
    return {RecordGroup(*row[:3]): int(row[3]) for row in connection.execute(query.group_by(*columns))}


KEPT_BYTES = 64 << 20
"""approximate limit of the cache; the least recently used entry goes first"""
_RECORD_BYTES = 1450
"""measured size of a record without its trace, with the values that a match derives"""
_ENTRY_BYTES = 3000
"""measured further size of an entry, also of an empty one; most namespaces have no validations of most operators"""

_VERSIONS = select(validation_versions.c.workload_hash, validation_versions.c.version).where(
    validation_versions.c.workload_hash.in_(NAMES)
)
"""made once: building a statement takes longer than running it"""


_Key = tuple[str, str, str]
"""workload hash, pool and reader"""


@dataclass(frozen=True)
class _Kept:
    version: int
    validated: ValidatedRecords
    size_bytes: int


class ValidatedCache:
    """ValidatedRecords by operator and pool.

    A row of `validation_versions` counts the changes of an operator's validations. Every transaction that adds or
    deletes validations also increases the count, in any process. Validations that were read at the current count are
    therefore up to date. Readers compare the counts at every call, so no process needs to be notified.

    Any thread may call. Raises StateUnusable when the database cannot be used.
    """

    def __init__(self, database: Database, kept_bytes: int = KEPT_BYTES) -> None:
        self._database = database
        self._most_bytes = kept_bytes
        self._lock = threading.Lock()
        self._kept: dict[_Key, _Kept] = {}
        """the most recently used entry at the end"""
        self.kept_bytes = 0

    def of(
        self, workload_hashes: Iterable[str], pool: str, reader: str = DEFAULT_TENANT
    ) -> dict[str, ValidatedRecords]:
        """All validations of these operators in the pool; an operator without any has an empty entry. Those of tenants
        that share the pool with the `reader` have their times and schedules, and no names.
        """
        reader = reader if pool == SHARED else ""
        wanted = list(dict.fromkeys(workload_hashes))
        with self._database.read() as connection:
            versions = _versions(connection, wanted)
            found = self._current(versions, pool, reader)
            missing = [name for name in wanted if name not in found]
            # After the counts: validations that change in between are cached under the old count, and read again.
            read = _read(connection, missing, pool, reader) if missing else {}
        self._keep({(name, pool, reader): _Kept(versions[name], each, _size(each)) for name, each in read.items()})
        return {name: found[name] if name in found else read[name] for name in wanted}

    def _current(self, versions: dict[str, int], pool: str, reader: str) -> dict[str, ValidatedRecords]:
        with self._lock:
            found = {}
            for name, version in versions.items():
                key = (name, pool, reader)
                kept = self._kept.get(key)
                if kept is not None and kept.version == version:
                    self._kept[key] = self._kept.pop(key)
                    found[name] = kept.validated
            return found

    def _keep(self, read: dict[_Key, _Kept]) -> None:
        with self._lock:
            for key, kept in read.items():
                self._drop(key)
                self._kept[key] = kept
                self.kept_bytes += kept.size_bytes
            while self.kept_bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        old = self._kept.pop(key, None)
        self.kept_bytes -= 0 if old is None else old.size_bytes


def count_change(database: Database, connection: Connection, workload_hashes: Iterable[str]) -> None:
    """Count, within the transaction, its change of these operators' validations."""
    # In a fixed order, so that two transactions never deadlock.
    rows = [{"workload_hash": name, "version": 1} for name in sorted(set(workload_hashes))]
    if rows:
        one_more = {"version": validation_versions.c.version + 1}
        added = database.insert(validation_versions).on_conflict_do_update(
            index_elements=["workload_hash"], set_=one_more
        )
        connection.execute(added, rows)


def _versions(connection: Connection, workload_hashes: Sequence[str]) -> dict[str, int]:
    """Counts of changes; 0 for an operator without any."""
    found = dict(rows_for(connection, _VERSIONS, workload_hashes))
    return dict.fromkeys(workload_hashes, 0) | found


def _read(
    connection: Connection, workload_hashes: Sequence[str], pool: str, reader: str
) -> dict[str, ValidatedRecords]:
    found: dict[str, list[TuningRecord]] = {name: [] for name in workload_hashes}
    rows = RecordReader(reader)
    for part in parts(workload_hashes):
        clauses = (
            records.c.workload_hash.in_(part),
            records.c.kind == Kind.VALIDATION.value,
            records.c.namespace == pool,
        )
        for record in rows.read(connection, *clauses):
            found[record.workload_hash].append(record)
    return {name: ValidatedRecords(tuple(validations)) for name, validations in found.items()}


def _size(validations: ValidatedRecords) -> int:
    """Approximate bytes; records of one schedule share its trace."""
    traces = sum(map(len, {record.trace for record in validations.records}))
    return _ENTRY_BYTES + len(validations.records) * _RECORD_BYTES + traces
