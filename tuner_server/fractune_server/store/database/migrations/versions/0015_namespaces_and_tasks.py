"""`scope` of jobs and records becomes `namespace`, `more` of jobs `extra_trials`, `do` of pieces of work `task`."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_OF_JOBS = {"scope": "namespace", "more": "extra_trials"}


def upgrade() -> None:
    # SQLite and PostgreSQL rename the columns in their indexes as well.
    op.execute("ALTER TABLE records RENAME COLUMN scope TO namespace")
    op.execute('ALTER TABLE pieces RENAME COLUMN "do" TO task')
    # What is 0 or empty is the default of the new name too.
    jobs = sa.table("jobs", sa.column("seq"), sa.column("spec", sa.JSON))
    connection = op.get_bind()
    for seq, spec in connection.execute(sa.select(jobs)).all():
        if spec.get("scope") or spec.get("more"):
            renamed = {_OF_JOBS.get(name, name): value for name, value in spec.items()}
            connection.execute(sa.update(jobs).where(jobs.c.seq == seq).values(spec=renamed))
