"""Tokens, and the token of each job and model. Existing jobs and models have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(64), primary_key=True),
        sa.Column("secret_sha256", sa.String(64), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("scope", sa.String(16), nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("revoked_at", sa.Float),
        sa.Column("open_jobs", sa.BigInteger),
        sa.Column("trials_a_day", sa.BigInteger),
        sa.Column("upload_bytes", sa.BigInteger),
    )
    op.add_column("jobs", sa.Column("token", sa.String(64), nullable=False, server_default=""))
    op.create_index("ix_jobs_token", "jobs", ["token", "created_at"])
    op.add_column("models", sa.Column("token", sa.String(64), nullable=False, server_default=""))
