"""Everything that the server remembers, in one database."""

from __future__ import annotations

from pathlib import Path

from fractune_server.store.database.database import Database, ServerLock
from fractune_server.store.database.tenants import TenantStore
from fractune_server.store.jobs import JobStore
from fractune_server.store.models import ModelStore
from fractune_server.store.quotas import UsageStore
from fractune_server.store.records.log import Ledger, TuningLog
from fractune_server.store.records.small_tables import PairStore, RoofStore, RuntimeTimeStore, SpaceStore
from fractune_server.store.tokens import TokenStore


class View:
    """The log, jobs, models, pairs, runtimes' times, the tenants' usage and the ledger, as far as a sight goes; and the
    roofs, which are facts about the fleet.
    """

    def __init__(self, database: Database, beside: TuningLog | None = None) -> None:
        """`beside`: as for TuningLog."""
        self.sight = database.sight
        self.reading = database.reading
        self.log = TuningLog(database, beside)
        self.jobs = JobStore(database)
        self.models = ModelStore(database)
        self.roofs = RoofStore(database)
        self.pairs = PairStore(database)
        self.runtime_times = RuntimeTimeStore(database)
        self.usage = UsageStore(database)
        self.ledger = Ledger(database)


class Store(Database):
    """The database with everything that a View has, for all tenants, and beside it tenants, tokens and the exhausted
    spaces.

    Raises StateUnusable if the database cannot be used.
    """

    def __init__(self, url: str, lock: ServerLock | None = None) -> None:
        """`lock`: as for Database."""
        super().__init__(url, lock=lock)
        whole = View(self)
        self.log, self.jobs, self.models, self.roofs = whole.log, whole.jobs, whole.models, whole.roofs
        self.pairs, self.runtime_times, self.ledger = whole.pairs, whole.runtime_times, whole.ledger
        self.spaces = SpaceStore(self)
        self.tenants = TenantStore(self)
        self.tokens = TokenStore(self)


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'fractune.db'}"
