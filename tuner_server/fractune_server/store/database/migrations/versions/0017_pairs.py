"""Models that were measured together."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pairs",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("pair_id", sa.String(64), nullable=False, unique=True),
        sa.Column("first_name", sa.Text, nullable=False),
        sa.Column("second_name", sa.Text, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
    )
