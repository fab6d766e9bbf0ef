"""How many records the log has ever taken in, by share, kind and status.

Counted in the transaction that adds them, because to count the rows would read the whole log; `prune` takes nothing
away here, so that the numbers only grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import Connection, select

from fractune_server.store.database.database import Database
from fractune_server.store.database.tables import record_counts


class RecordGroup(NamedTuple):
    share: str
    """as text, as it was asked for"""
    kind: str
    """`fractune_core.records.Kind`"""
    status: str
    """`fractune_core.records.Status`"""


def count_records(database: Database, connection: Connection, added: Iterable[RecordGroup]) -> None:
    """Count, within the transaction, records that it adds."""
    # In one order, so that two transactions never wait for each other.
    rows = [{**group._asdict(), "records": count} for group, count in sorted(Counter(added).items())]
    if rows:
        insert = database.insert(record_counts)
        more = {"records": record_counts.c.records + insert.excluded.records}
        connection.execute(insert.on_conflict_do_update(index_elements=RecordGroup._fields, set_=more), rows)


def record_totals(connection: Connection) -> dict[RecordGroup, int]:
    return {RecordGroup(*row[:3]): row[3] for row in connection.execute(select(record_counts))}
