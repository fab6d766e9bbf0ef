"""How many records pass a filter: counted once from the start, and from then on only among those that came since.

The log only grows, but for `prune`; so a page of a long log, which says how many records there are, need not read them.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from sqlalchemy import Connection, func, select

from fractune_server.store.database.tables import records
from fractune_server.store.records.filters import RecordFilter

_MOST = 256


@dataclass(frozen=True)
class _Counted:
    upto: int
    """the number of the last record that was looked at"""
    passing: int


class CountCache:
    """Any thread may call."""

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
        if not chosen.model:  # which operators a model has may change
            self._keep(chosen, found, prunings)
        return found.passing

    def forget(self) -> None:
        """Records were deleted; to be called when that is committed."""
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
