"""Models, and the results of their ingests: a model is read once for each shapes and target."""

import hashlib
import json
from dataclasses import dataclass

from sqlalchemy import select

from fractune_core import LOWERING, __version__
from fractune_core.codec.plain_json import JsonObject, from_json, to_dict
from fractune_core.errors import NotFound
from fractune_core.jobs import OperatorTask
from fractune_core.names import DEFAULT_TENANT
from fractune_server.store.database.database import Repository, as_dict
from fractune_server.store.database.tables import bundles, ingested, models


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
