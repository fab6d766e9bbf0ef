"""Rounds outlive the job that asked for them, and say at which shares they measure; records say in which scope."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("scope", sa.String(64), nullable=False, server_default=""))
    op.add_column("rounds", sa.Column("granted", sa.JSON, nullable=False, server_default="[]"))
    op.drop_index("ix_rounds_job", "rounds")
