"""The tables. A change here needs a migration beside it; a test compares the two."""

import sqlalchemy as sa

from fractune_core.jobs import JobState
from fractune_core.names import DEFAULT_TENANT

metadata = sa.MetaData()

ENDED = [state.value for state in JobState if not state.open]
"""states of ended jobs"""

_POOL = sa.String(128)
"""a tenant and one of its namespaces: `fractune_server.store.database.sight.pool_of`"""


def _tenant(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column("tenant", sa.String(32), nullable=False, server_default=DEFAULT_TENANT, primary_key=primary_key)


_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ID = sa.String(64)

records = sa.Table(
    "records",
    metadata,
    sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    sa.Column("record_id", _ID, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("candidate_id", _ID, nullable=False),
    sa.Column("workload_hash", _ID, nullable=False),
    sa.Column("operator", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("trace", sa.Text, nullable=False),
    sa.Column("device", sa.JSON, nullable=False),
    sa.Column("device_key", sa.Text, nullable=False),
    sa.Column("share", sa.String(64), nullable=False),
    sa.Column("granted", sa.JSON, nullable=False),
    sa.Column("share_key", sa.String(64), nullable=False),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("run_secs", sa.JSON, nullable=False),
    # Of the repeats used for selection, because rows are chosen by it. Infinite for a failure, so that it sorts last.
    sa.Column("ranking_median_s", sa.Float, nullable=False),
    sa.Column("policy", sa.JSON, nullable=False),
    sa.Column("anchor_ratio", sa.Float, nullable=False),
    sa.Column("neighbours", sa.Integer, nullable=False),
    sa.Column("job", _ID, nullable=False),
    sa.Column("worker", sa.Text, nullable=False),
    sa.Column("measured_at", sa.Float, nullable=False),
    sa.Column("build_secs", sa.Float, nullable=False),
    sa.Column("max_error", sa.Float),
    sa.Column("clock_mhz", sa.Integer, nullable=False),
    sa.Column("throttled_ns", sa.JSON, nullable=False),
    sa.Column("versions", sa.JSON, nullable=False),
    sa.Column("disturbance", sa.JSON(none_as_null=True)),
    sa.Column("attempts", sa.Integer, nullable=False),
    sa.Column("namespace", _POOL, nullable=False, server_default=""),  # the pool
    sa.Column("cpu_secs", sa.Float),
    _tenant(),
    sa.UniqueConstraint("record_id", "tenant"),
    # The scheduler's and the match's look-ups; the fastest come first without a sort.
    sa.Index("ix_records_lookup", "workload_hash", "kind", "namespace", "share_key", "ranking_median_s"),
    sa.Index("ix_records_job", "job", "kind"),
    # Pages of the log, each of one namespace.
    sa.Index("ix_records_newest", "namespace", "seq"),
    sa.Index("ix_records_fastest", "namespace", "ranking_median_s", "seq"),
    sa.Index("ix_records_share", "share", "seq"),
    sqlite_autoincrement=True,
)

validation_versions = sa.Table(
    "validation_versions",
    metadata,
    sa.Column("workload_hash", _ID, primary_key=True),
    sa.Column("version", sa.BigInteger, nullable=False),  # number of changes; see caches.py
)

record_counts = sa.Table(
    "record_counts",
    metadata,
    _tenant(primary_key=True),
    sa.Column("share", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("status", sa.String(32), primary_key=True),
    sa.Column("records", sa.BigInteger, nullable=False),  # including pruned ones
)

workloads = sa.Table(
    "workloads",
    metadata,
    sa.Column("workload_hash", _ID, primary_key=True),
    sa.Column("json_zlib", sa.LargeBinary, nullable=False),
    sa.Column("flops", sa.Float, nullable=False, server_default="0"),  # 0 = unknown, also for the bytes
    sa.Column("io_bytes", sa.BigInteger, nullable=False, server_default="0"),
    sa.Column("written_bytes", sa.BigInteger, nullable=False, server_default="0"),
)

roofs = sa.Table(
    "roofs",
    metadata,
    sa.Column("device_key", sa.Text, primary_key=True),
    sa.Column("share_key", sa.String(64), primary_key=True),
    sa.Column("gflops", sa.Float, nullable=False),
    sa.Column("gb_per_s", sa.Float, nullable=False),
    sa.Column("cache_bytes", sa.BigInteger, nullable=False),
    sa.Column("launch_s", sa.Float, nullable=False, server_default="0"),  # 0 = unknown, as of a CPU
    sa.Column("read_gb_per_s", sa.Float, nullable=False, server_default="0"),
)

spaces = sa.Table(
    "spaces",
    metadata,
    sa.Column("workload_hash", _ID, primary_key=True),
    sa.Column("target_key", sa.Text, primary_key=True),
    sa.Column("exact", sa.Boolean, primary_key=True),
    sa.Column("pool", _POOL, primary_key=True),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Column("candidates", sa.Integer, nullable=False),
)

models = sa.Table(
    "models",
    metadata,
    _tenant(primary_key=True),
    sa.Column("sha256", _ID, primary_key=True),
    sa.Column("display_name", sa.Text, nullable=False),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("token", _ID, nullable=False, server_default=""),
)

ingested = sa.Table(
    "ingested",
    metadata,
    _tenant(primary_key=True),
    sa.Column("key", _ID, primary_key=True),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("operators", sa.JSON, nullable=False),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    sa.Column("id", _ID, nullable=False, unique=True),
    sa.Column("model", _ID, nullable=False),
    sa.Column("model_name", sa.Text, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float),
    sa.Column("error", sa.String(64), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("device", sa.JSON, nullable=False),
    sa.Column("granted", sa.JSON, nullable=False),
    sa.Column("asked_target", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("target_key", sa.Text, nullable=False),
    sa.Column("notes", sa.JSON, nullable=False),
    sa.Column("revision", sa.Integer, nullable=False),
    sa.Column("tuning_began", sa.Float),
    sa.Column("tuning_ended", sa.Float),
    sa.Column("progress", sa.JSON, nullable=False),
    sa.Column("bundle", _ID, nullable=False),
    sa.Column("checked", sa.JSON),
    sa.Column("timings", sa.JSON, nullable=False),
    sa.Column("token", _ID, nullable=False, server_default=""),
    _tenant(),
    sa.Column("shares_searches", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("ix_jobs_state", "state"),
    sa.Index("ix_jobs_token", "token", "created_at"),
    sa.Index("ix_jobs_tenant", "tenant", "seq"),
    sa.Index("ix_jobs_model", "model"),
    sqlite_autoincrement=True,
)

job_operators = sa.Table(
    "job_operators",
    metadata,
    sa.Column("job", _ID, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("workload_hash", _ID, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("weight", sa.Integer, nullable=False),
    sa.Column("selected", sa.Boolean, nullable=False),
    sa.Column("trials", sa.Integer, nullable=False),
    sa.Column("best_s", sa.JSON, nullable=False),
    sa.Column("untuned_s", sa.JSON, nullable=False),
)

tenants = sa.Table(
    "tenants",
    metadata,
    sa.Column("name", sa.String(32), primary_key=True),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("open_jobs", sa.BigInteger),
    sa.Column("trials_a_day", sa.BigInteger),
    sa.Column("stored_bytes", sa.BigInteger),
    sa.Column("share_seconds_a_day", sa.BigInteger),
    sa.Column("weight", sa.Integer, nullable=False),
    sa.Column("shares_searches", sa.Boolean, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    _tenant(),
    sa.Column("secret_sha256", _ID, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("scope", sa.String(16), nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("expires_at", sa.Float),
    sa.Column("revoked_at", sa.Float),
    sa.Column("open_jobs", sa.BigInteger),
    sa.Column("trials_a_day", sa.BigInteger),
    sa.Column("stored_bytes", sa.BigInteger),
    sa.Column("share_seconds_a_day", sa.BigInteger),
    sa.Column("max_priority", sa.String(8), nullable=False),
    sa.Column("all_tenants", sa.Boolean, nullable=False, server_default=sa.false()),
)

bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("id", _ID, primary_key=True),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("token", _ID, nullable=False),
    _tenant(),
    sa.Index("ix_bundles_token", "token"),
    sa.Index("ix_bundles_tenant", "tenant"),
)

pieces = sa.Table(
    "pieces",
    metadata,
    sa.Column("work_id", sa.String(128), primary_key=True),
    sa.Column("job", _ID, nullable=False),
    sa.Column("task", sa.String(16), nullable=False),
    sa.Column("share", sa.String(64), nullable=False),
    sa.Column("worked_s", sa.Float, nullable=False),
    sa.Column("cpu_s", sa.Float, nullable=False),
    sa.Column("ended_at", sa.Float, nullable=False),
    sa.Index("ix_pieces_job", "job", "task", "share"),
)

pairs = sa.Table(
    "pairs",
    metadata,
    sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    _tenant(),
    sa.Column("pair_id", _ID, nullable=False),
    sa.Column("first_name", sa.Text, nullable=False),
    sa.Column("second_name", sa.Text, nullable=False),
    sa.Column("content", sa.JSON, nullable=False),
    sa.UniqueConstraint("tenant", "pair_id"),
)

runtime_times = sa.Table(
    "runtime_times",
    metadata,
    sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    _tenant(),
    sa.Column("time_id", _ID, nullable=False),
    sa.Column("model", _ID, nullable=False, index=True),
    sa.Column("content", sa.JSON, nullable=False),
    sa.UniqueConstraint("tenant", "time_id"),
)

COMMON = {validation_versions, workloads, roofs}
"""facts about programs and processors, which belong to no tenant: found by their names, never listed for a tenant"""
OF_JOBS = {job_operators, pieces}
"""their rows belong to the tenant of their job"""

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("round_id", _ID, primary_key=True),
    sa.Column("job", _ID, nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("workload_hash", _ID, nullable=False),
    sa.Column("instance", sa.Text, nullable=False),
    sa.Column("asked", sa.Integer, nullable=False),
    sa.Column("candidates", sa.JSON(none_as_null=True)),  # NULL until they are proposed
    sa.Column("granted", sa.JSON, nullable=False),
)
