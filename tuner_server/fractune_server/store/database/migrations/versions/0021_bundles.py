"""The bundles of tokens, and one quota of bytes for models and bundles. Existing bundles do not count."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "bundles",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("token", sa.String(64), nullable=False),
    )
    op.create_index("ix_bundles_token", "bundles", ["token"])
    op.execute("ALTER TABLE tokens RENAME COLUMN upload_bytes TO stored_bytes")
