"""Causes that lowered a GPU's clock during a measurement. They are unknown for existing records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("throttled_ns", sa.JSON, nullable=False, server_default="{}"))
