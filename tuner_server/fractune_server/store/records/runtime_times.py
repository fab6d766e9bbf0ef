"""Times of other runtimes beside bundles. A few a job, so that all are kept."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import runtime_times


class RuntimeTimeStore(Repository):
    def add(self, times: Sequence[RuntimeTime]) -> int:
        """The number of those that were not there; the others stay as they were."""
        if not times:
            return 0
        rows = [{"time_id": each.time_id, "model": each.model, "content": each.to_json()} for each in times]
        with self._database.write() as connection:
            return len(self._database.insert_new_returning(connection, runtime_times, rows, [runtime_times.c.seq]))

    def newest(self, most: int, model: str = "") -> list[RuntimeTime]:
        """At most so many, the newest first; with `model`, a SHA-256, only those of this model."""
        query = select(runtime_times.c.content).order_by(runtime_times.c.seq.desc()).limit(most)
        if model:
            query = query.where(runtime_times.c.model == model)
        with self._database.read() as connection:
            return [RuntimeTime.from_json(content) for (content,) in connection.execute(query)]
