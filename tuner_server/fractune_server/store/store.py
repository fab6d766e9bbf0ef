"""Everything that the server remembers, in one database."""

from __future__ import annotations

from pathlib import Path

from fractune_server.store.database.database import Database, ServerLock
from fractune_server.store.jobs import JobStore
from fractune_server.store.models import ModelStore
from fractune_server.store.records.log import Ledger, TuningLog
from fractune_server.store.records.small_tables import PairStore, RoofStore, RuntimeTimeStore, SpaceStore
from fractune_server.store.tokens import TokenStore


class Store(Database):
    """The database with the log, jobs, models, roofs, exhausted spaces, pairs, runtimes' times, tokens and the
    ledger.

    Raises StateUnusable if the database cannot be used.
    """

    def __init__(self, url: str, lock: ServerLock | None = None) -> None:
        """`lock`: as for Database."""
        super().__init__(url, lock=lock)
        self.log = TuningLog(self)
        self.jobs = JobStore(self)
        self.models = ModelStore(self)
        self.roofs = RoofStore(self)
        self.spaces = SpaceStore(self)
        self.pairs = PairStore(self)
        self.runtime_times = RuntimeTimeStore(self)
        self.tokens = TokenStore(self)
        self.ledger = Ledger(self)


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'fractune.db'}"
