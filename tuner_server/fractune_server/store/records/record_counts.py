"""How many records the log holds and has ever taken in, without reading all of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from fractune_server.store.database.database import Database
from fractune_server.store.database.tables import record_counts, records
from fractune_server.store.records.rows import RecordFilter

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
        self._counted: dict[RecordFilter, _Counted] = {}
        self._prunings = 0

    def count(self, connection: Connection, chosen: RecordFilter) -> int:
        with self._lock:
            prunings, before = self._prunings, self._counted.get(chosen, _Counted(0, 0))
        upto = connection.scalar(select(func.max(records.c.seq))) or 0
        since = [*chosen.clauses(), records.c.seq > before.upto, records.c.seq <= upto]
        more = connection.scalar(select(func.count()).select_from(records).where(*since)) or 0
        found = _Counted(upto, before.passing + more)
        if not chosen.model:  # the operators of a model may change
            self._keep(chosen, found, prunings)
        return found.passing

    def forget(self) -> None:
        """Call this after a transaction that deleted records."""
        with self._lock:
            self._prunings += 1
            self._counted.clear()

    def _keep(self, chosen: RecordFilter, found: _Counted, prunings: int) -> None:
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


def count_records(database: Database, connection: Connection, added: Iterable[RecordGroup]) -> None:
    """Count, within the transaction, the records that it adds. The counts only grow: pruning does not change them."""
    # In a fixed order, so that two transactions never deadlock.
    rows = [{**group._asdict(), "records": count} for group, count in sorted(Counter(added).items())]
    if rows:
        insert = database.insert(record_counts)
        more = {"records": record_counts.c.records + insert.excluded.records}
        connection.execute(insert.on_conflict_do_update(index_elements=RecordGroup._fields, set_=more), rows)


def record_totals(connection: Connection) -> dict[RecordGroup, int]:
    return {RecordGroup(*row[:3]): row[3] for row in connection.execute(select(record_counts))}
