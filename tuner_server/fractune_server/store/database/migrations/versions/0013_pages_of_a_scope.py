"""A page of the log, and a look-up in it, is of one scope: what others hold is not read for it."""

from __future__ import annotations

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


_LOOKUP = "ix_records_lookup"


def upgrade() -> None:
    op.drop_index(_LOOKUP, "records")
    op.create_index(_LOOKUP, "records", ["workload_hash", "kind", "scope", "share_key", "median_s"])
    op.drop_index("ix_records_fastest", "records")
    op.create_index("ix_records_newest", "records", ["scope", "seq"])
    op.create_index("ix_records_fastest", "records", ["scope", "median_s", "seq"])
