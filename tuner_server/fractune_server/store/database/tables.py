"""The tables. A change here needs a migration beside it; a test compares the two."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    false,
)

from fractune_core.jobs import JobState
from fractune_core.names import DEFAULT_TENANT

metadata = MetaData()

ENDED = [state.value for state in JobState if not state.open]
"""states of ended jobs"""

_POOL = String(128)
"""a tenant and one of its namespaces: `fractune_server.store.database.sight.pool_of`"""


def _tenant(*, primary_key: bool = False) -> Column[str]:
    return Column("tenant", String(32), nullable=False, server_default=DEFAULT_TENANT, primary_key=primary_key)


_SERIAL = BigInteger().with_variant(Integer, "sqlite")
_ID = String(64)

records = Table(
    "records",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    Column("record_id", _ID, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("candidate_id", _ID, nullable=False),
    Column("workload_hash", _ID, nullable=False),
    Column("operator", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("target_key", Text, nullable=False),
    Column("trace", Text, nullable=False),
    Column("device", JSON, nullable=False),
    Column("device_key", Text, nullable=False),
    Column("share", String(64), nullable=False),
    Column("granted", JSON, nullable=False),
    Column("share_key", String(64), nullable=False),
    Column("status", String(32), nullable=False),
    Column("cause", Text, nullable=False),
    Column("run_secs", JSON, nullable=False),
    # Of the repeats used for selection, because rows are chosen by it. Infinite for a failure, so that it sorts last.
    Column("ranking_median_s", Float, nullable=False),
    Column("policy", JSON, nullable=False),
    Column("anchor_ratio", Float, nullable=False),
    Column("neighbours", Integer, nullable=False),
    Column("job", _ID, nullable=False),
    Column("worker", Text, nullable=False),
    Column("measured_at", Float, nullable=False),
    Column("build_secs", Float, nullable=False),
    Column("max_error", Float),
    Column("clock_mhz", Integer, nullable=False),
    Column("throttled_ns", JSON, nullable=False),
    Column("versions", JSON, nullable=False),
    Column("disturbance", JSON(none_as_null=True)),
    Column("attempts", Integer, nullable=False),
    Column("namespace", _POOL, nullable=False, server_default=""),  # the pool
    Column("cpu_secs", Float),
    _tenant(),
    UniqueConstraint("record_id", "tenant"),
    # The scheduler's and the match's look-ups; the fastest come first without a sort.
    Index("ix_records_lookup", "workload_hash", "kind", "namespace", "share_key", "ranking_median_s"),
    Index("ix_records_job", "job", "kind"),
    # Pages of the log, each of one namespace.
    Index("ix_records_newest", "namespace", "seq"),
    Index("ix_records_fastest", "namespace", "ranking_median_s", "seq"),
    Index("ix_records_share", "share", "seq"),
    sqlite_autoincrement=True,
)

validation_versions = Table(
    "validation_versions",
    metadata,
    Column("workload_hash", _ID, primary_key=True),
    Column("version", BigInteger, nullable=False),  # number of changes; see caches.py
)

record_counts = Table(
    "record_counts",
    metadata,
    _tenant(primary_key=True),
    Column("share", String(64), primary_key=True),
    Column("kind", String(16), primary_key=True),
    Column("status", String(32), primary_key=True),
    Column("records", BigInteger, nullable=False),  # including pruned ones
)

workloads = Table(
    "workloads",
    metadata,
    Column("workload_hash", _ID, primary_key=True),
    Column("json_zlib", LargeBinary, nullable=False),
    Column("flops", Float, nullable=False, server_default="0"),  # 0 = unknown, also for the bytes
    Column("io_bytes", BigInteger, nullable=False, server_default="0"),
    Column("written_bytes", BigInteger, nullable=False, server_default="0"),
)

roofs = Table(
    "roofs",
    metadata,
    Column("device_key", Text, primary_key=True),
    Column("share_key", String(64), primary_key=True),
    Column("gflops", Float, nullable=False),
    Column("gb_per_s", Float, nullable=False),
    Column("cache_bytes", BigInteger, nullable=False),
    Column("launch_s", Float, nullable=False, server_default="0"),  # 0 = unknown, as of a CPU
    Column("read_gb_per_s", Float, nullable=False, server_default="0"),
)

spaces = Table(
    "spaces",
    metadata,
    Column("workload_hash", _ID, primary_key=True),
    Column("target_key", Text, primary_key=True),
    Column("exact", Boolean, primary_key=True),
    Column("pool", _POOL, primary_key=True),
    Column("version", String(64), nullable=False),
    Column("candidates", Integer, nullable=False),
)

models = Table(
    "models",
    metadata,
    _tenant(primary_key=True),
    Column("sha256", _ID, primary_key=True),
    Column("display_name", Text, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("token", _ID, nullable=False, server_default=""),
)

ingested = Table(
    "ingested",
    metadata,
    _tenant(primary_key=True),
    Column("key", _ID, primary_key=True),
    Column("target", Text, nullable=False),
    Column("target_key", Text, nullable=False),
    Column("operators", JSON, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    Column("id", _ID, nullable=False, unique=True),
    Column("model", _ID, nullable=False),
    Column("model_name", Text, nullable=False),
    Column("spec", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("ended_at", Float),
    Column("error", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("device", JSON, nullable=False),
    Column("granted", JSON, nullable=False),
    Column("asked_target", Text, nullable=False),
    Column("target", Text, nullable=False),
    Column("target_key", Text, nullable=False),
    Column("notes", JSON, nullable=False),
    Column("revision", Integer, nullable=False),
    Column("tuning_began", Float),
    Column("tuning_ended", Float),
    Column("progress", JSON, nullable=False),
    Column("bundle", _ID, nullable=False),
    Column("checked", JSON),
    Column("timings", JSON, nullable=False),
    Column("token", _ID, nullable=False, server_default=""),
    _tenant(),
    Column("shares_searches", Boolean, nullable=False, server_default=false()),
    Index("ix_jobs_state", "state"),
    Index("ix_jobs_token", "token", "created_at"),
    Index("ix_jobs_tenant", "tenant", "seq"),
    Index("ix_jobs_model", "model"),
    sqlite_autoincrement=True,
)

job_operators = Table(
    "job_operators",
    metadata,
    Column("job", _ID, primary_key=True),
    Column("position", Integer, primary_key=True),
    Column("workload_hash", _ID, nullable=False),
    Column("name", Text, nullable=False),
    Column("weight", Integer, nullable=False),
    Column("selected", Boolean, nullable=False),
    Column("trials", Integer, nullable=False),
    Column("best_s", JSON, nullable=False),
    Column("untuned_s", JSON, nullable=False),
)

tenants = Table(
    "tenants",
    metadata,
    Column("name", String(32), primary_key=True),
    Column("created_at", Float, nullable=False),
    Column("open_jobs", BigInteger),
    Column("trials_a_day", BigInteger),
    Column("stored_bytes", BigInteger),
    Column("share_seconds_a_day", BigInteger),
    Column("weight", Integer, nullable=False),
    Column("shares_searches", Boolean, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", _ID, primary_key=True),
    _tenant(),
    Column("secret_sha256", _ID, nullable=False),
    Column("name", Text, nullable=False),
    Column("scope", String(16), nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("revoked_at", Float),
    Column("open_jobs", BigInteger),
    Column("trials_a_day", BigInteger),
    Column("stored_bytes", BigInteger),
    Column("share_seconds_a_day", BigInteger),
    Column("max_priority", String(8), nullable=False),
    Column("all_tenants", Boolean, nullable=False, server_default=false()),
)

bundles = Table(
    "bundles",
    metadata,
    Column("id", _ID, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("token", _ID, nullable=False),
    _tenant(),
    Index("ix_bundles_token", "token"),
    Index("ix_bundles_tenant", "tenant"),
)

pieces = Table(
    "pieces",
    metadata,
    Column("work_id", String(128), primary_key=True),
    Column("job", _ID, nullable=False),
    Column("task", String(16), nullable=False),
    Column("share", String(64), nullable=False),
    Column("worked_s", Float, nullable=False),
    Column("cpu_s", Float, nullable=False),
    Column("ended_at", Float, nullable=False),
    Index("ix_pieces_job", "job", "task", "share"),
)

pairs = Table(
    "pairs",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    _tenant(),
    Column("pair_id", _ID, nullable=False),
    Column("first_name", Text, nullable=False),
    Column("second_name", Text, nullable=False),
    Column("content", JSON, nullable=False),
    UniqueConstraint("tenant", "pair_id"),
)

runtime_times = Table(
    "runtime_times",
    metadata,
    Column("seq", _SERIAL, primary_key=True, autoincrement=True),
    _tenant(),
    Column("time_id", _ID, nullable=False),
    Column("model", _ID, nullable=False, index=True),
    Column("content", JSON, nullable=False),
    UniqueConstraint("tenant", "time_id"),
)

COMMON = {validation_versions, workloads, roofs}
"""facts about programs and processors, which belong to no tenant: found by their names, never listed for a tenant"""
OF_JOBS = {job_operators, pieces}
"""their rows belong to the tenant of their job"""

rounds = Table(
    "rounds",
    metadata,
    Column("round_id", _ID, primary_key=True),
    Column("job", _ID, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("workload_hash", _ID, nullable=False),
    Column("instance", Text, nullable=False),
    Column("asked", Integer, nullable=False),
    Column("candidates", JSON(none_as_null=True)),  # NULL until they are proposed
    Column("granted", JSON, nullable=False),
)
