"""What disturbed a measurement, and how often it was made. Of the records that are there nobody knows."""

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
