"""Sizes of exhausted search spaces, so that no later job searches for more candidates.

An operator that moves or pools data has one candidate or a few.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import and_, case, select

from fractune_core import LOWERING, __version__
from fractune_server.store.database.database import NAMES, Repository, rows_for
from fractune_server.store.database.tables import spaces
from fractune_server.store.records.log import LogKey

_VERSION = f"{__version__} {LOWERING}"
"""another version may search in another space"""


class SpaceStore(Repository):
    def add(self, key: LogKey, candidates: int) -> None:
        """Note that the space has this many candidates, or as many as this version has found before."""
        named = {"workload_hash": key.workload_hash, "target_key": key.target_key, "exact": key.exact}
        row = self._database.insert(spaces).values(**named, version=_VERSION, candidates=candidates)
        is_known = and_(spaces.c.version == _VERSION, spaces.c.candidates > candidates)
        larger = {"version": _VERSION, "candidates": case((is_known, spaces.c.candidates), else_=candidates)}
        with self._database.write() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=list(named), set_=larger))

    def of(self, target_key: str, workload_hashes: Collection[str], *, exact: bool) -> dict[str, int]:
        """Number of candidates by workload hash, of the exhausted spaces."""
        query = select(spaces.c.workload_hash, spaces.c.candidates).where(
            spaces.c.target_key == target_key,
            spaces.c.exact == exact,
            spaces.c.version == _VERSION,
            spaces.c.workload_hash.in_(NAMES),
        )
        with self._database.read() as connection:
            return dict(rows_for(connection, query, workload_hashes))
