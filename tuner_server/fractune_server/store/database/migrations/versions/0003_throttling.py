"""What held the clock of a GPU down during a measurement. Of the records that are there nobody knows."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("throttled_ns", sa.JSON, nullable=False, server_default="{}"))
