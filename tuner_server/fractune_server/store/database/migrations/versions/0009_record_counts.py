"""How many records the log has taken in, by share, kind and status. Of before, those that it holds are counted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "record_counts",
        sa.Column("share", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("status", sa.String(32), primary_key=True),
        sa.Column("records", sa.BigInteger, nullable=False),
    )
    op.execute(
        "INSERT INTO record_counts SELECT share, kind, status, count(*) FROM records GROUP BY share, kind, status"
    )
