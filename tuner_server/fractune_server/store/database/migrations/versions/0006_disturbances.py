"""Disturbances of a measurement, and its number of attempts. Both are unknown for existing records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("disturbance", sa.JSON, nullable=True))
    op.add_column("records", sa.Column("attempts", sa.Integer, nullable=False, server_default="0"))
