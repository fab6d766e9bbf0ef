"""Launch floors of a GPU's shares. They are unknown for existing roofs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("roofs", sa.Column("launch_s", sa.Float, nullable=False, server_default="0"))
