"""The ledger of pieces of work, empty for earlier work."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pieces",
        sa.Column("work_id", sa.String(128), primary_key=True),
        sa.Column("job", sa.String(64), nullable=False),
        sa.Column("do", sa.String(16), nullable=False),
        sa.Column("share", sa.String(64), nullable=False),
        sa.Column("worked_s", sa.Float, nullable=False),
        sa.Column("cpu_s", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
    )
    op.create_index("ix_pieces_job", "pieces", ["job", "do", "share"])
