"""Which rows a part of the server may reach: the one place where tenants are kept apart.

A repository adds the conditions of its sight to each statement. A connection of one tenant's sight refuses a statement
without them: who forgets them gets an error, and never another tenant's rows.

Pools are the records that a search may read. A tenant has one for each of its namespaces. Tenants that share searches
have one common pool for the jobs without a namespace. The pool stands in a record where workers know a namespace alone:
so nothing behind the server has to know about tenants to keep their searches apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BinaryExpression, Column, ColumnElement, Connection, Insert, Table, select
from sqlalchemy.sql import visitors

from fractune_core.errors import BadRequest, shortened
from fractune_core.names import DEFAULT_TENANT
from fractune_server.store.database.tables import COMMON, OF_JOBS, jobs, tenants

_SHOWN = 80
"""characters of a wrong namespace in a message"""
SHARED = "*/"
"""the common pool; no tenant has this name, and no namespace has this character"""


def pool_of(tenant: str, namespace: str, *, shares_searches: bool) -> str:
    """Raises BadRequest for a namespace with the character that sets tenants apart: it would be another's pool."""
    if "/" in namespace:
        raise BadRequest(f"namespace '{shortened(namespace, _SHOWN)}': write letters, digits, '.', '_' and '-'")
    if shares_searches and not namespace:
        return SHARED
    return namespace if tenant == DEFAULT_TENANT else f"{tenant}/{namespace}"


def namespace_of(pool: str) -> str:
    """The namespace as its tenant knows it."""
    return pool.rpartition("/")[2]


@dataclass(frozen=True)
class Sight:
    """The tenants whose rows can be reached, and the tenant of new rows."""

    seen: str | None
    """None = all tenants"""
    own: str = DEFAULT_TENANT

    def conditions(self, table: Table) -> list[ColumnElement[bool]]:
        """Conditions of the rows that can be reached."""
        if self.seen is None:
            return []
        if table in OF_JOBS:
            return [table.c.job.in_(select(jobs.c.id).where(jobs.c.tenant == self.seen))]
        return [_owner(table) == self.seen]


ALL_TENANTS = Sight(None)


def _owner(table: Table) -> Column[Any]:
    """Raises AttributeError for a table of the engine alone."""
    column: Column[Any] = table.c.name if table is tenants else table.c.tenant
    return column


class Fence:
    """A connection that runs the statements of one tenant's sight, and refuses others with RuntimeError."""

    def __init__(self, connection: Connection, sight: Sight) -> None:
        self._connection = connection
        self._sight = sight

    def execute(self, statement: Any, *rows: Any) -> Any:
        return self._connection.execute(self._checked(statement, *rows), *rows)

    def scalar(self, statement: Any, *rows: Any) -> Any:
        return self._connection.scalar(self._checked(statement, *rows), *rows)

    def scalars(self, statement: Any, *rows: Any) -> Any:
        return self._connection.scalars(self._checked(statement, *rows), *rows)

    def execution_options(self, **options: Any) -> Fence:
        return Fence(self._connection.execution_options(**options), self._sight)

    def _checked(self, statement: Any, rows: Any = None) -> Any:
        parts = list(visitors.iterate(statement))
        tables = {part for part in parts if isinstance(part, Table)}
        compared = {part.left for part in parts if isinstance(part, BinaryExpression) and self._is_own(part.right)}
        for table in tables - COMMON:
            if isinstance(statement, Insert) and statement.table is table:
                reached = all(self._is_row(row) for row in _rows(statement, rows))
            else:
                reached = jobs in tables if table in OF_JOBS else _owner(table) in compared
            if not reached:
                raise RuntimeError(f"a statement for tenant {self._sight.seen} does not choose its rows of {table}")
        return statement

    def _is_own(self, value: Any) -> bool:
        return getattr(value, "value", None) == self._sight.seen

    def _is_row(self, row: Mapping[str, Any]) -> bool:
        return bool(row.get("tenant") == self._sight.seen)


def _rows(statement: Insert, rows: Any) -> Iterable[Mapping[str, Any]]:
    if rows is None:
        return [statement.compile().params]
    return rows if isinstance(rows, list) else [rows]
