"""Tokens have a highest priority. Those that are there may ask for any, as before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("max_priority", sa.String(8), nullable=False, server_default="high"))
