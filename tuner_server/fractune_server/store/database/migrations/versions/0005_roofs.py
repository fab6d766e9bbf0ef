"""Roofs of shares, and operations and bytes of workloads. They are unknown for existing workloads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "roofs",
        sa.Column("device_key", sa.Text, primary_key=True),
        sa.Column("share_key", sa.String(64), primary_key=True),
        sa.Column("gflops", sa.Float, nullable=False),
        sa.Column("gb_per_s", sa.Float, nullable=False),
        sa.Column("cache_bytes", sa.BigInteger, nullable=False),
    )
    op.add_column("workloads", sa.Column("flops", sa.Float, nullable=False, server_default="0"))
    op.add_column("workloads", sa.Column("io_bytes", sa.BigInteger, nullable=False, server_default="0"))
