"""Everything that the server remembers, over one database."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from fractune_server.store.database.database import Database
from fractune_server.store.database.server_lock import ServerLock
from fractune_server.store.jobs import JobStore
from fractune_server.store.models import ModelStore
from fractune_server.store.records.ledger import Ledger
from fractune_server.store.records.log import TuningLog
from fractune_server.store.records.roofs import RoofStore
from fractune_server.store.records.spaces import SpaceStore
from fractune_server.store.tokens import TokenStore
from fractune_server.store.webhooks import WebhookStore


class Store:
    """The log, jobs, models, roofs, exhausted spaces, tokens, the ledger and webhooks.

    Raises StateUnusable without a usable database.
    """

    def __init__(self, url: str, lock: ServerLock | None = None) -> None:
        """`lock`: as for Database."""
        self.database = Database(url, lock=lock)
        self.log = TuningLog(self.database)
        self.jobs = JobStore(self.database)
        self.models = ModelStore(self.database)
        self.roofs = RoofStore(self.database)
        self.spaces = SpaceStore(self.database)
        self.tokens = TokenStore(self.database)
        self.ledger = Ledger(self.database)
        self.webhooks = WebhookStore(self.database)

    def reading(self) -> AbstractContextManager[None]:
        """As `Database.reading`."""
        return self.database.reading()

    def writing(self) -> AbstractContextManager[None]:
        """As `Database.writing`."""
        return self.database.writing()

    def check_writable(self) -> None:
        """Raises StateUnusable when nothing can be written now; writes nothing."""
        self.database.check_writable()

    def check_lock(self) -> None:
        """Raises StateUnusable when another server may be at work on this database."""
        self.database.check_lock()

    def keep_short(self) -> None:
        """As `Database.keep_short`."""
        self.database.keep_short()

    def close(self) -> None:
        self.database.close()


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'fractune.db'}"
