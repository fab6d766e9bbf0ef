"""Workloads are named by the SHA-256 of their text. The tables stay; a database with other names is not migrated."""

from __future__ import annotations

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Changes no table."""
