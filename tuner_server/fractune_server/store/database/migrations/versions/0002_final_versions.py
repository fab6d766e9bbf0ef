"""Counts of the changes of finals. Without a row an operator stands at 0, so that what is there needs none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "final_versions",
        sa.Column("workload_hash", sa.String(64), primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
