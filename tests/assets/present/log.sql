BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE bundles (
	id VARCHAR(64) NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	token VARCHAR(64) NOT NULL, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE ingested (
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	"key" VARCHAR(64) NOT NULL, 
	target TEXT NOT NULL, 
	target_key TEXT NOT NULL, 
	operators JSON NOT NULL, 
	PRIMARY KEY (tenant, "key")
);
CREATE TABLE job_operators (
	job VARCHAR(64) NOT NULL, 
	position INTEGER NOT NULL, 
	workload_hash VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	weight INTEGER NOT NULL, 
	selected BOOLEAN NOT NULL, 
	trials INTEGER NOT NULL, 
	best_s JSON NOT NULL, 
	untuned_s JSON NOT NULL, 
	PRIMARY KEY (job, position)
);
CREATE TABLE jobs (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	id VARCHAR(64) NOT NULL, 
	model VARCHAR(64) NOT NULL, 
	model_name TEXT NOT NULL, 
	spec JSON NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	error VARCHAR(64) NOT NULL, 
	message TEXT NOT NULL, 
	device JSON NOT NULL, 
	granted JSON NOT NULL, 
	asked_target TEXT NOT NULL, 
	target TEXT NOT NULL, 
	target_key TEXT NOT NULL, 
	notes JSON NOT NULL, 
	revision INTEGER NOT NULL, 
	tuning_began FLOAT, 
	tuning_ended FLOAT, 
	progress JSON NOT NULL, 
	bundle VARCHAR(64) NOT NULL, 
	checked JSON, 
	timings JSON NOT NULL, 
	token VARCHAR(64) DEFAULT '' NOT NULL, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	shares_searches BOOLEAN DEFAULT 0 NOT NULL, 
	UNIQUE (id)
);
CREATE TABLE models (
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	sha256 VARCHAR(64) NOT NULL, 
	display_name TEXT NOT NULL, 
	size_bytes BIGINT NOT NULL, 
	token VARCHAR(64) DEFAULT '' NOT NULL, 
	PRIMARY KEY (tenant, sha256)
);
CREATE TABLE pairs (
	seq INTEGER NOT NULL, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	pair_id VARCHAR(64) NOT NULL, 
	first_name TEXT NOT NULL, 
	second_name TEXT NOT NULL, 
	content JSON NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (tenant, pair_id)
);
CREATE TABLE pieces (
	work_id VARCHAR(128) NOT NULL, 
	job VARCHAR(64) NOT NULL, 
	task VARCHAR(16) NOT NULL, 
	share VARCHAR(64) NOT NULL, 
	worked_s FLOAT NOT NULL, 
	cpu_s FLOAT NOT NULL, 
	ended_at FLOAT NOT NULL, 
	PRIMARY KEY (work_id)
);
CREATE TABLE record_counts (
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	share VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	records BIGINT NOT NULL, 
	PRIMARY KEY (tenant, share, kind, status)
);
INSERT INTO "record_counts" VALUES('default','cpu:1','validation','ok',1);
INSERT INTO "record_counts" VALUES('default','cpu:2','validation','ok',1);
CREATE TABLE records (
	seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	record_id VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	candidate_id VARCHAR(64) NOT NULL, 
	workload_hash VARCHAR(64) NOT NULL, 
	operator TEXT NOT NULL, 
	target TEXT NOT NULL, 
	target_key TEXT NOT NULL, 
	trace TEXT NOT NULL, 
	device JSON NOT NULL, 
	device_key TEXT NOT NULL, 
	share VARCHAR(64) NOT NULL, 
	granted JSON NOT NULL, 
	share_key VARCHAR(64) NOT NULL, 
	status VARCHAR(32) NOT NULL, 
	cause TEXT NOT NULL, 
	run_secs JSON NOT NULL, 
	ranking_median_s FLOAT NOT NULL, 
	policy JSON NOT NULL, 
	anchor_ratio FLOAT NOT NULL, 
	neighbours INTEGER NOT NULL, 
	job VARCHAR(64) NOT NULL, 
	worker TEXT NOT NULL, 
	measured_at FLOAT NOT NULL, 
	build_secs FLOAT NOT NULL, 
	max_error FLOAT, 
	clock_mhz INTEGER NOT NULL, 
	versions JSON NOT NULL, 
	throttled_ns JSON DEFAULT '{}' NOT NULL, 
	disturbance JSON, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	namespace VARCHAR(128) DEFAULT '' NOT NULL, 
	cpu_secs FLOAT, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	UNIQUE (record_id, tenant)
);
INSERT INTO "records" VALUES(1,'aa','validation','0b2abd0f1bf07e8581af02a46bcf0851','4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','conv2d','{"kind":"llvm","mcpu":"rocketlake"}','{"kind":"llvm","mcpu":"rocketlake"}','a','{"kind": "cpu", "isa": "rocketlake", "units": 16, "memory_gib": 64, "l2_kib": 512, "label": "a processor"}','cpu-rocketlake-16u-64gib-l2.512kib','cpu:1','{"share": "cpu:1", "units": 1, "units_total": 16, "unit": "core", "memory_bytes": 17179869184, "reserved": false, "ids": [0], "limit": null, "physical_cores": 0}','cpu/1of16core','ok','','[0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001]',0.001,'{"name": "validation", "warmups": 1, "repeats": 14, "min_repeat_ms": 10.0, "cache": "warm", "choosing": 5}',1.0,0,'j1','w1',1000.0,0.0,0.0,0,'{"tvm": "0.27.0"}','{}',NULL,0,'',NULL,'default');
INSERT INTO "records" VALUES(2,'bb','validation','d4fce48e3120412f4cb81fdd4915c38e','4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945','conv2d','{"kind":"llvm","mcpu":"rocketlake"}','{"kind":"llvm","mcpu":"rocketlake"}','b','{"kind": "cpu", "isa": "rocketlake", "units": 16, "memory_gib": 64, "l2_kib": 512, "label": "a processor"}','cpu-rocketlake-16u-64gib-l2.512kib','cpu:2','{"share": "cpu:2", "units": 2, "units_total": 16, "unit": "core", "memory_bytes": 17179869184, "reserved": false, "ids": [0, 1], "limit": null, "physical_cores": 0}','cpu/2of16core','ok','','[0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005, 0.0005]',0.0005,'{"name": "validation", "warmups": 1, "repeats": 14, "min_repeat_ms": 10.0, "cache": "warm", "choosing": 5}',1.0,0,'j1','w1',1000.0,0.0,0.0,0,'{"tvm": "0.27.0"}','{}',NULL,0,'',NULL,'default');
CREATE TABLE roofs (
	device_key TEXT NOT NULL, 
	share_key VARCHAR(64) NOT NULL, 
	gflops FLOAT NOT NULL, 
	gb_per_s FLOAT NOT NULL, 
	cache_bytes BIGINT NOT NULL, 
	launch_s FLOAT DEFAULT '0' NOT NULL, 
	read_gb_per_s FLOAT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (device_key, share_key)
);
CREATE TABLE rounds (
	round_id VARCHAR(64) NOT NULL, 
	job VARCHAR(64) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	workload_hash VARCHAR(64) NOT NULL, 
	instance TEXT NOT NULL, 
	asked INTEGER NOT NULL, 
	candidates JSON, 
	granted JSON NOT NULL, 
	PRIMARY KEY (round_id)
);
CREATE TABLE runtime_times (
	seq INTEGER NOT NULL, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	time_id VARCHAR(64) NOT NULL, 
	model VARCHAR(64) NOT NULL, 
	content JSON NOT NULL, 
	PRIMARY KEY (seq), 
	UNIQUE (tenant, time_id)
);
CREATE TABLE spaces (
	workload_hash VARCHAR(64) NOT NULL, 
	target_key TEXT NOT NULL, 
	exact BOOLEAN NOT NULL, 
	pool VARCHAR(128) NOT NULL, 
	version VARCHAR(64) NOT NULL, 
	candidates INTEGER NOT NULL, 
	PRIMARY KEY (workload_hash, target_key, exact, pool)
);
CREATE TABLE tenants (
	name VARCHAR(32) NOT NULL, 
	created_at FLOAT NOT NULL, 
	open_jobs BIGINT, 
	trials_a_day BIGINT, 
	stored_bytes BIGINT, 
	share_seconds_a_day BIGINT, 
	weight INTEGER NOT NULL, 
	shares_searches BOOLEAN NOT NULL, 
	PRIMARY KEY (name)
);
CREATE TABLE tokens (
	id VARCHAR(64) NOT NULL, 
	tenant VARCHAR(32) DEFAULT 'default' NOT NULL, 
	secret_sha256 VARCHAR(64) NOT NULL, 
	name TEXT NOT NULL, 
	scope VARCHAR(16) NOT NULL, 
	created_at FLOAT NOT NULL, 
	expires_at FLOAT, 
	revoked_at FLOAT, 
	open_jobs BIGINT, 
	trials_a_day BIGINT, 
	stored_bytes BIGINT, 
	share_seconds_a_day BIGINT, 
	max_priority VARCHAR(8) DEFAULT 'high' NOT NULL, 
	all_tenants BOOLEAN DEFAULT 0 NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE validation_versions (
	workload_hash VARCHAR(64) NOT NULL, 
	version BIGINT NOT NULL, 
	PRIMARY KEY (workload_hash)
);
INSERT INTO "validation_versions" VALUES('4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945',1);
CREATE TABLE workloads (
	workload_hash VARCHAR(64) NOT NULL, 
	json_zlib BLOB NOT NULL, 
	flops FLOAT DEFAULT '0' NOT NULL, 
	io_bytes BIGINT DEFAULT '0' NOT NULL, 
	written_bytes BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (workload_hash)
);
INSERT INTO "workloads" VALUES('4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945',X'789C8B8E0500011500B9',0.0,0,0);
CREATE INDEX ix_records_lookup ON records (workload_hash, kind, namespace, share_key, ranking_median_s);
CREATE INDEX ix_records_job ON records (job, kind);
CREATE INDEX ix_records_newest ON records (namespace, seq);
CREATE INDEX ix_records_fastest ON records (namespace, ranking_median_s, seq);
CREATE INDEX ix_records_share ON records (share, seq);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX ix_jobs_token ON jobs (token, created_at);
CREATE INDEX ix_jobs_tenant ON jobs (tenant, seq);
CREATE INDEX ix_jobs_model ON jobs (model);
CREATE INDEX ix_bundles_token ON bundles (token);
CREATE INDEX ix_bundles_tenant ON bundles (tenant);
CREATE INDEX ix_pieces_job ON pieces (job, task, share);
CREATE INDEX ix_runtime_times_model ON runtime_times (model);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('records',2);
COMMIT;
