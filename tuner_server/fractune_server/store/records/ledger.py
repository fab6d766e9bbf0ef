"""The ledger: what each piece of work cost, counted once, however often its results arrive."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable

from sqlalchemy import Connection, bindparam, func, select

from fractune_core.codec.plain_json import to_dict
from fractune_core.spending import Spending, WorkCost
from fractune_server.store.database.database import Database, Repository
from fractune_server.store.database.tables import pieces

_WORKED = (
    select(pieces.c.task, func.sum(pieces.c.worked_s))
    .where(pieces.c.job == bindparam("job"))
    .group_by(pieces.c.task)
    .order_by(pieces.c.task)
)
"""made once: building a statement takes longer than running it"""


def add_pieces(database: Database, connection: Connection, new: Iterable[WorkCost]) -> None:
    """Add pieces of work; existing ones stay as they are."""
    database.insert_new(connection, pieces, [to_dict(piece) for piece in new])


class Ledger(Repository):
    def spent(self, jobs: Collection[str], since: float = 0.0) -> dict[str, list[Spending]]:
        """Spending for each of these jobs by pieces of work that ended at `since` (seconds since 1970) or later.

        By job; those for which nothing was spent are absent.
        """
        key = pieces.c.job, pieces.c.task, pieces.c.share
        sums = func.count(), func.sum(pieces.c.worked_s), func.sum(pieces.c.cpu_s)
        chosen = select(*key, *sums).where(pieces.c.job.in_(jobs), pieces.c.ended_at >= since)
        found = defaultdict[str, list[Spending]](list)
        with self._database.read() as connection:
            for job, *spending in connection.execute(chosen.group_by(*key).order_by(*key)):
                found[job].append(Spending(*spending))
        return dict(found)

    def worked_s(self, job: str) -> dict[str, float]:
        """Seconds that workers worked for the job, by kind of work."""
        with self._database.read() as connection:
            return {task: float(secs) for task, secs in connection.execute(_WORKED, {"job": job})}
