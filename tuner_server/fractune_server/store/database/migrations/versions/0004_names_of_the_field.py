"""Stored words follow the code: rounds have an id, finals are validations; ingests note nothing.

docs/decisions/0021-names-in-storage.md lists them.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_VALUES = (
    ("records", "kind", "final", "validation"),
    ("rounds", "kind", "final", "validation"),
    ("jobs", "state", "finishing", "validating"),
)
_POLICY_BEFORE, _POLICY_AFTER = '"name": "final"', '"name": "validation"'


def upgrade() -> None:
    op.alter_column("rounds", "lease", new_column_name="round_id")
    op.rename_table("final_versions", "validation_versions")
    op.drop_column("ingested", "notes")
    _replace_policy(_POLICY_BEFORE, _POLICY_AFTER, "final")
    for table, column, before, after in _VALUES:
        _replace(table, column, before, after)


def _replace(name: str, column: str, before: str, after: str) -> None:
    table = sa.table(name, sa.column(column, sa.String))
    op.execute(sa.update(table).where(table.c[column] == before).values({column: after}))


def _replace_policy(before: str, after: str, kind: str) -> None:
    """The policy's name within its JSON text; only records of this kind have it."""
    table = sa.table("records", sa.column("policy", sa.JSON), sa.column("kind", sa.String))
    text = sa.func.replace(sa.cast(table.c.policy, sa.Text), before, after)
    json = sa.cast(text, sa.JSON) if op.get_bind().dialect.name == "postgresql" else sa.type_coerce(text, sa.Text)
    op.execute(sa.update(table).where(table.c.kind == kind).values(policy=json))
