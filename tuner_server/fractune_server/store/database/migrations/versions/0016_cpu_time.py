"""CPU time of a measurement. It is unknown for existing records."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("records", sa.Column("cpu_secs", sa.Float, nullable=True))
