"""Models that were measured together. A few a day, so that all are kept."""

from __future__ import annotations

from sqlalchemy import or_, select

from fractune_core.analysis.pairs import MeasuredPair
from fractune_server.store.database.database import Repository
from fractune_server.store.database.tables import pairs


class PairStore(Repository):
    def add(self, pair: MeasuredPair) -> bool:
        """False if it is there already, and stays as it was."""
        first, second = (each.model_name for each in pair.models)
        row = {"pair_id": pair.pair_id, "first_name": first, "second_name": second, "content": pair.to_json()}
        with self._database.write() as connection:
            return bool(self._database.insert_new_returning(connection, pairs, [row], [pairs.c.seq]))

    def newest(self, most: int, model_name: str = "") -> list[MeasuredPair]:
        """At most so many, the newest first; with `model_name` only pairs with a model of this name."""
        query = select(pairs.c.content).order_by(pairs.c.seq.desc()).limit(most)
        if model_name:
            query = query.where(or_(pairs.c.first_name == model_name, pairs.c.second_name == model_name))
        with self._database.read() as connection:
            return [MeasuredPair.from_json(content) for (content,) in connection.execute(query)]
