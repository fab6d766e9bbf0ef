"""Number of candidates in the exhausted space of an operator. It is unknown for existing operators."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "spaces",
        sa.Column("workload_hash", sa.String(64), primary_key=True),
        sa.Column("target_key", sa.Text, primary_key=True),
        sa.Column("exact", sa.Boolean, primary_key=True),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("candidates", sa.Integer, nullable=False),
    )
