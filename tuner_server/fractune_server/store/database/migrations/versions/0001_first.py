"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_ID = sa.String(64)
_POOL = sa.String(128)


def _tenant(*, primary_key: bool = False) -> sa.Column[str]:
    return sa.Column("tenant", sa.String(32), nullable=False, server_default="default", primary_key=primary_key)


def upgrade() -> None:
    op.create_table(
        "records",
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
        sa.Column("versions", sa.JSON, nullable=False),
        sa.Column("throttled_ns", sa.JSON, nullable=False, server_default="{}"),
        sa.Column("disturbance", sa.JSON(none_as_null=True)),
        sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
        sa.Column("namespace", _POOL, nullable=False, server_default=""),
        sa.Column("cpu_secs", sa.Float),
        _tenant(),
        sa.UniqueConstraint("record_id", "tenant"),
        sqlite_autoincrement=True,
    )
    lookup = ["workload_hash", "kind", "namespace", "share_key", "ranking_median_s"]
    op.create_index("ix_records_lookup", "records", lookup)
    op.create_index("ix_records_job", "records", ["job", "kind"])
    op.create_index("ix_records_newest", "records", ["namespace", "seq"])
    op.create_index("ix_records_fastest", "records", ["namespace", "ranking_median_s", "seq"])
    op.create_index("ix_records_share", "records", ["share", "seq"])
    op.create_table(
        "validation_versions",
        sa.Column("workload_hash", _ID, primary_key=True),
        sa.Column("version", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "record_counts",
        _tenant(primary_key=True),
        sa.Column("share", sa.String(64), primary_key=True),
        sa.Column("kind", sa.String(16), primary_key=True),
        sa.Column("status", sa.String(32), primary_key=True),
        sa.Column("records", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "workloads",
        sa.Column("workload_hash", _ID, primary_key=True),
        sa.Column("json_zlib", sa.LargeBinary, nullable=False),
        sa.Column("flops", sa.Float, nullable=False, server_default="0"),
        sa.Column("io_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.Column("written_bytes", sa.BigInteger, nullable=False, server_default="0"),
    )
    op.create_table(
        "roofs",
        sa.Column("device_key", sa.Text, primary_key=True),
        sa.Column("share_key", sa.String(64), primary_key=True),
        sa.Column("gflops", sa.Float, nullable=False),
        sa.Column("gb_per_s", sa.Float, nullable=False),
        sa.Column("cache_bytes", sa.BigInteger, nullable=False),
        sa.Column("launch_s", sa.Float, nullable=False, server_default="0"),
        sa.Column("read_gb_per_s", sa.Float, nullable=False, server_default="0"),
    )
    op.create_table(
        "spaces",
        sa.Column("workload_hash", _ID, primary_key=True),
        sa.Column("target_key", sa.Text, primary_key=True),
        sa.Column("exact", sa.Boolean, primary_key=True),
        sa.Column("pool", _POOL, primary_key=True),
        sa.Column("version", sa.String(64), nullable=False),
        sa.Column("candidates", sa.Integer, nullable=False),
    )
    op.create_table(
        "models",
        _tenant(primary_key=True),
        sa.Column("sha256", _ID, primary_key=True),
        sa.Column("display_name", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("token", _ID, nullable=False, server_default=""),
    )
    op.create_table(
        "ingested",
        _tenant(primary_key=True),
        sa.Column("key", _ID, primary_key=True),
        sa.Column("target", sa.Text, nullable=False),
        sa.Column("target_key", sa.Text, nullable=False),
        sa.Column("operators", sa.JSON, nullable=False),
    )
    op.create_table(
        "jobs",
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
        sqlite_autoincrement=True,
    )
    op.create_index("ix_jobs_state", "jobs", ["state"])
    op.create_index("ix_jobs_token", "jobs", ["token", "created_at"])
    op.create_index("ix_jobs_tenant", "jobs", ["tenant", "seq"])
    op.create_index("ix_jobs_model", "jobs", ["model"])
    op.create_table(
        "job_operators",
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
    op.create_table(
        "tenants",
        sa.Column("name", sa.String(32), primary_key=True),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("open_jobs", sa.BigInteger),
        sa.Column("trials_a_day", sa.BigInteger),
        sa.Column("stored_bytes", sa.BigInteger),
        sa.Column("share_seconds_a_day", sa.BigInteger),
        sa.Column("weight", sa.Integer, nullable=False),
        sa.Column("shares_searches", sa.Boolean, nullable=False),
    )
    op.create_table(
        "tokens",
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
        sa.Column("max_priority", sa.String(8), nullable=False, server_default="high"),
        sa.Column("all_tenants", sa.Boolean, nullable=False, server_default=sa.false()),
    )
    op.create_table(
        "bundles",
        sa.Column("id", _ID, primary_key=True),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("token", _ID, nullable=False),
        _tenant(),
    )
    op.create_index("ix_bundles_token", "bundles", ["token"])
    op.create_index("ix_bundles_tenant", "bundles", ["tenant"])
    op.create_table(
        "pieces",
        sa.Column("work_id", sa.String(128), primary_key=True),
        sa.Column("job", _ID, nullable=False),
        sa.Column("task", sa.String(16), nullable=False),
        sa.Column("share", sa.String(64), nullable=False),
        sa.Column("worked_s", sa.Float, nullable=False),
        sa.Column("cpu_s", sa.Float, nullable=False),
        sa.Column("ended_at", sa.Float, nullable=False),
    )
    op.create_index("ix_pieces_job", "pieces", ["job", "task", "share"])
    op.create_table(
        "pairs",
        sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
        _tenant(),
        sa.Column("pair_id", _ID, nullable=False),
        sa.Column("first_name", sa.Text, nullable=False),
        sa.Column("second_name", sa.Text, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.UniqueConstraint("tenant", "pair_id"),
    )
    op.create_table(
        "runtime_times",
        sa.Column("seq", _SERIAL, primary_key=True, autoincrement=True),
        _tenant(),
        sa.Column("time_id", _ID, nullable=False),
        sa.Column("model", _ID, nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.UniqueConstraint("tenant", "time_id"),
    )
    op.create_index("ix_runtime_times_model", "runtime_times", ["model"])
    op.create_table(
        "rounds",
        sa.Column("round_id", _ID, primary_key=True),
        sa.Column("job", _ID, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("workload_hash", _ID, nullable=False),
        sa.Column("instance", sa.Text, nullable=False),
        sa.Column("asked", sa.Integer, nullable=False),
        sa.Column("candidates", sa.JSON(none_as_null=True)),
        sa.Column("granted", sa.JSON, nullable=False),
    )
