"""How many records the log holds and has ever taken in, without reading all of them."""

import threading
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from fractune_server.store.database.database import Database
from fractune_server.store.database.sight import Sight
from fractune_server.store.database.tables import record_counts, records
from fractune_server.store.records.rows import RecordFilter, within

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
