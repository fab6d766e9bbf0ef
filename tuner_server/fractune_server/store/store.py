"""Everything that the server remembers, in one database."""

import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, or_, select

from fractune_core import LOWERING, __version__
from fractune_core.analysis.model_times import MeasuredPair, RuntimeTime
from fractune_core.analysis.roofline import Roof
from fractune_core.codec.plain_json import JsonObject, from_json, to_dict
from fractune_core.errors import NotFound
from fractune_core.jobs import OperatorTask
from fractune_core.names import DEFAULT_TENANT
from fractune_server.store.database.database import NAMES, Database, Repository, ServerLock, as_dict, rows_for
from fractune_server.store.database.tables import bundles, ingested, models, pairs, roofs, runtime_times, spaces
from fractune_server.store.database.tenants import TenantStore, UsageStore
from fractune_server.store.jobs import JobStore
from fractune_server.store.records.log import Ledger, LogKey, TuningLog
from fractune_server.store.tokens import TokenStore


@dataclass(frozen=True)
class StoredModel:
    sha256: str
    display_name: str
    size_bytes: int
    token: str = ""
    """id of the token that uploaded it; empty = no token was needed"""
    tenant: str = DEFAULT_TENANT


@dataclass(frozen=True)
class IngestKey:
    """Everything that the result of an ingest depends on."""

    model: str
    inputs: dict[str, list[int]]
    target: str
    """requested target text"""
    tenant: str = DEFAULT_TENANT
    """each tenant's model is read for itself: how fast that is must not tell of another tenant's"""

    @property
    def key(self) -> str:
        # With the version: another one may import a model differently, and compiling must match the ingest.
        text = json.dumps([__version__, LOWERING, self.model, self.inputs, self.target], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class IngestedModel(JsonObject):
    target: str
    """TVM's target as JSON"""
    target_key: str
    operators: list[OperatorTask]


class ModelStore(Repository):
    def add(self, model: StoredModel) -> None:
        with self._database.write() as connection:
            self._database.insert_new(connection, models, [to_dict(model)])

    def get(self, sha256: str) -> StoredModel:
        """The tenant's own model, else another one that is seen. Raises NotFound."""
        query = self._seen(select(models).where(models.c.sha256 == sha256), models)
        query = query.order_by(models.c.tenant != self._sight.own)
        with self._database.read() as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise NotFound(f"no model {sha256}; upload it first")
        return StoredModel(**row)

    def check_bundle(self, bundle: str) -> None:
        """Raises NotFound for a bundle that is not seen."""
        query = self._seen(select(bundles.c.id).where(bundles.c.id == bundle), bundles)
        with self._database.read() as connection:
            if connection.scalar(query) is None:
                raise NotFound(f"no bundle '{bundle}'; a job names its bundle when it is done")

    def save_ingested(self, key: IngestKey, found: IngestedModel) -> None:
        row = {"tenant": key.tenant, "key": key.key, **found.to_json()}
        with self._database.write() as connection:
            self._database.insert_new(connection, ingested, [row])

    def find_ingested(self, key: IngestKey) -> IngestedModel | None:
        with self._database.read() as connection:
            query = select(ingested).where(ingested.c.tenant == key.tenant, ingested.c.key == key.key)
            row = connection.execute(query).mappings().first()
        if row is None:
            return None
        return from_json(IngestedModel, as_dict(row))


class PairStore(Repository):
    def add(self, pair: MeasuredPair) -> bool:
        """False if it is there already, and stays as it was."""
        first, second = (each.model_name for each in pair.models)
        row: dict[str, Any] = {"first_name": first, "second_name": second, "content": pair.to_json()}
        row |= {"tenant": self._sight.own, "pair_id": pair.pair_id}
        with self._database.write() as connection:
            return bool(self._database.insert_new_returning(connection, pairs, [row], [pairs.c.seq]))

    def newest(self, most: int, model_name: str = "") -> list[MeasuredPair]:
        """At most so many, the newest first; with `model_name` only pairs with a model of this name."""
        query = self._seen(select(pairs.c.content), pairs).order_by(pairs.c.seq.desc()).limit(most)
        if model_name:
            query = query.where(or_(pairs.c.first_name == model_name, pairs.c.second_name == model_name))
        with self._database.read() as connection:
            return [MeasuredPair.from_json(content) for (content,) in connection.execute(query)]


class RuntimeTimeStore(Repository):
    def add(self, times: Sequence[RuntimeTime]) -> int:
        """The number of those that were not there; the others stay as they were."""
        if not times:
            return 0
        own = {"tenant": self._sight.own}
        rows = [{**own, "time_id": each.time_id, "model": each.model, "content": each.to_json()} for each in times]
        with self._database.write() as connection:
            return len(self._database.insert_new_returning(connection, runtime_times, rows, [runtime_times.c.seq]))

    def newest(self, most: int, model: str = "") -> list[RuntimeTime]:
        """At most so many, the newest first; with `model`, a SHA-256, only those of this model."""
        query = self._seen(select(runtime_times.c.content), runtime_times)
        query = query.order_by(runtime_times.c.seq.desc()).limit(most)
        if model:
            query = query.where(runtime_times.c.model == model)
        with self._database.read() as connection:
            return [RuntimeTime.from_json(content) for (content,) in connection.execute(query)]


# Sizes of exhausted search spaces, so that no later job searches for more candidates.
#
# An operator that moves or pools data has one candidate or a few.

_VERSION = f"{__version__} {LOWERING}"
"""another version may search in another space"""


class SpaceStore(Repository):
    def add(self, key: LogKey, candidates: int) -> None:
        """Note that the space has this many candidates, or as many as this version has found before."""
        named = {"workload_hash": key.workload_hash, "target_key": key.target_key, "exact": key.exact}
        named |= {"pool": key.namespace}
        row = self._database.insert(spaces).values(**named, version=_VERSION, candidates=candidates)
        is_known = and_(spaces.c.version == _VERSION, spaces.c.candidates > candidates)
        larger = {"version": _VERSION, "candidates": case((is_known, spaces.c.candidates), else_=candidates)}
        with self._database.write() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=list(named), set_=larger))

    def of(self, target_key: str, workload_hashes: Collection[str], pool: str = "", *, exact: bool) -> dict[str, int]:
        """Number of candidates by workload hash, of the exhausted spaces."""
        query = select(spaces.c.workload_hash, spaces.c.candidates).where(
            spaces.c.target_key == target_key,
            spaces.c.exact == exact,
            spaces.c.pool == pool,
            spaces.c.version == _VERSION,
            spaces.c.workload_hash.in_(NAMES),
        )
        with self._database.read() as connection:
            return dict(rows_for(connection, query, workload_hashes))


_FIGURES = tuple(roofs.c[field.name] for field in fields(Roof))
_OF_DEVICE = select(roofs.c.share_key, *_FIGURES).where(roofs.c.device_key == bindparam("device"))


class RoofStore(Repository):
    def add(self, device_key: str, share_key: str, roof: Roof) -> None:
        """Store the roof; of each figure the better one is kept: the larger rate, and the smaller known time."""
        row = self._database.insert(roofs).values(device_key=device_key, share_key=share_key, **roof.to_json())
        better = {
            old.name: case((_is_better(row.excluded[old.name], old), row.excluded[old.name]), else_=old)
            for old in _FIGURES
        }
        with self._database.write() as connection:
            connection.execute(row.on_conflict_do_update(index_elements=["device_key", "share_key"], set_=better))

    def of(self, device_key: str) -> dict[str, Roof]:
        """The roofs of a device, by share key."""
        with self._database.read() as connection:
            rows = connection.execute(_OF_DEVICE, {"device": device_key})
            return {share_key: Roof(*figures) for share_key, *figures in rows}


def _is_better(new: ColumnElement[float], old: ColumnElement[float]) -> ColumnElement[bool]:
    """As `Roof.raised_to` decides."""
    if old.name != roofs.c.launch_s.name:
        return new > old
    return and_(new > 0, or_(new < old, old == 0))


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
