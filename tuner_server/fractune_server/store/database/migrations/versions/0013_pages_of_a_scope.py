"""A page of the log is of one scope: what others hold is not read for it."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.drop_index("ix_records_fastest", "records")
    op.create_index("ix_records_newest", "records", ["scope", "seq"])
    op.create_index("ix_records_fastest", "records", ["scope", "median_s", "seq"])


def downgrade() -> None:
    op.drop_index("ix_records_fastest", "records")
    op.drop_index("ix_records_newest", "records")
    op.create_index("ix_records_fastest", "records", ["median_s", "seq"])
