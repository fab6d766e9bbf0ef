"""Times of other runtimes beside bundles."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "runtime_times",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("time_id", sa.String(64), nullable=False, unique=True),
        sa.Column("model", sa.String(64), nullable=False, index=True),
        sa.Column("content", sa.JSON, nullable=False),
    )
