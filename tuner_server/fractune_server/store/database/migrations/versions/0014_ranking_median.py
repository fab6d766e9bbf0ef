"""The column of the median that ranks records gets a name of its own: `median_s` of a record is the reported one."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # SQLite and PostgreSQL rename the column in its indexes as well.
    op.execute("ALTER TABLE records RENAME COLUMN median_s TO ranking_median_s")
