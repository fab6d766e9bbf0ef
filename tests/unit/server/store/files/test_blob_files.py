"""Model and bundle files; what imported records must look like; messages there and back."""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fractune.server.job_status import JobStatus
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadBundle, BadRequest, NotFound, StateUnusable
from fractune_core.files.bundles import Bundle
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import COLD, VALIDATION_POLICY, Status, TimingPolicy, TuningRecord, with_cache
from fractune_core.served import Served, ServiceGoal
from fractune_server.access.authenticator import ANYBODY, set_caller
from fractune_server.services.paging import PageTokens, page_size
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.records.rows import check_record
from tests.support.client_samples import bundle_bytes
from tests.support.samples import DISTURBANCE, granted, validation

PAYLOAD = b"a model" * 1000
TIMES = {"variant": "cpu:1", "threads": 1, "loop_s": 2e-3, "p50_s": 3e-3, "p99_s": None}
BEST: dict[ServiceGoal, Any] = {"latency": TIMES, "throughput": TIMES}
DIGEST = hashlib.sha256(PAYLOAD).hexdigest()


def test_a_model_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    with files.parts.open("", "0" * 64, offset=0, size=len(PAYLOAD)) as part:
        part.write(PAYLOAD)
        with pytest.raises(BadRequest, match="the bytes have SHA-256"):
            files.add_model("0" * 64, part)
    with pytest.raises(NotFound):
        list(files.model(DIGEST))
    with files.parts.open("", DIGEST, offset=0, size=len(PAYLOAD)) as part:
        part.write(PAYLOAD)
        files.add_model(DIGEST, part)
    assert b"".join(files.model(DIGEST)) == PAYLOAD
    assert [path.name for path in (tmp_path / "blobs").iterdir()] == [DIGEST]


def test_a_torn_file_of_an_earlier_server_is_cleared_away(tmp_path: Path) -> None:
    BlobStore(tmp_path)
    (tmp_path / "blobs" / "tmpabc").write_bytes(b"half")
    BlobStore(tmp_path)
    assert list((tmp_path / "blobs").iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    (tmp_path / "bundles").rmdir()
    with pytest.raises(StateUnusable, match="bundles: No such file or directory"):
        files.add_bundle("b", [b"x"])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"workload_hash": "?"}, "is not a workload hash"),
        ({"candidate_id": "c"}, "candidate_id does not belong"),
        ({"target": "llvm"}, "it is not JSON"),
        ({"target": '{"kind":"llvm","cl-opt":["-print-after-all:bool=1"]}'}, "has no 'cl-opt'"),
        ({"device": replace(validation("a", 1, 1.0).device, units=0)}, "device lacks"),
        ({"granted": replace(validation("a", 1, 1.0).granted, units=17)}, "17 of 16 units"),
        ({"share": "cpu:many"}, "'many' is not a size"),
        ({"run_secs": ()}, "status is 'ok' with 0 run times"),
        ({"status": Status.CRASHED}, f"status is 'crashed' with {VALIDATION_POLICY.repeats} run times"),
        ({"run_secs": (1.0, -1.0)}, "run times must be from 1e-12 to 1e\\+09 s"),
        ({"run_secs": (math.nan,)}, "run times must be from"),
        ({"run_secs": (1e308,) * 9}, "run times must be from"),
        ({"run_secs": (5e-324,) * 9}, "run times must be from"),
        ({"anchor_ratio": math.inf}, "must be finite"),
        ({"measured_at": 0.0}, "measure_time is missing"),
        ({"policy": TimingPolicy("x", 1, 3, 1.0, "tepid")}, "a cache 'tepid', neither warm nor cold"),
        ({"clock_mhz": -1}, "must not be below 0"),
        ({"throttled_ns": {"hw_thermal": -1}}, "must not be below 0"),
        ({"run_secs": (1.0,) * 5}, "5 of its 5 run times choose; at least one must be left to report"),
        ({"policy": replace(VALIDATION_POLICY, choosing=-1)}, "-1 of its"),
        ({"cpu_secs": 0.0}, "run times must be from .*, and so must cpu_secs"),
        ({"attempts": -1}, "attempts is -1"),
        ({"share": "cpu:1..2"}, "share 'cpu:1..2': no process is under a range"),
        ({"granted": replace(granted(1), share="cpu:1..2")}, "share 'cpu:1..2': no process is under a range"),
        ({"worker": "a\x1b[2J"}, "one of its names has a character that is not printable"),
        ({"granted": replace(granted(1), unit="core\n")}, "one of its names has a character"),
        ({"disturbance": replace(DISTURBANCE, steal_s=math.nan)}, "disturbance must be 0 or more"),
        ({"disturbance": replace(DISTURBANCE, preemptions=-1)}, "disturbance must be 0 or more"),
    ],
)
def test_a_doubtful_record_is_refused_by_name(changes: dict[str, Any], complaint: str) -> None:
    record = replace(validation('["x"]', 1, 1.0), **{"record_id": "r1", **changes})
    with pytest.raises(BadRequest, match=rf"^records/r1: .*{complaint}"):
        check_record(record)


def test_a_good_record_passes() -> None:
    check_record(validation('["x"]', 1, 1.0))
    check_record(validation('["x"]', 1, 1.0, disturbance=DISTURBANCE, attempts=2))


def test_records_and_jobs_there_and_back() -> None:
    record = validation("a", 1, 0.5, record_id="r1", max_error=None, clock_mhz=3, versions={"tvm": "1"})
    assert from_proto(TuningRecord, to_proto(record, pb.Record)) == record
    on_gpu = replace(record, policy=with_cache(VALIDATION_POLICY, COLD), throttled_ns={"sw_power_cap": 2**40})
    assert from_proto(TuningRecord, to_proto(on_gpu, pb.Record)) == on_gpu
    disturbed = replace(record, disturbance=DISTURBANCE, attempts=2, cpu_secs=0.9)
    assert from_proto(TuningRecord, to_proto(disturbed, pb.Record)) == disturbed
    spec = JobSpec("a" * 64, "net.onnx", ("cpu:1",), {"x": [1, 3]}, "llvm", 7, 8, 1.5, 9, "conv", 10, -1)
    assert from_proto(JobSpec, to_proto(spec, pb.JobSpec), model_name="net.onnx") == spec
    empty = from_proto(JobSpec, pb.JobSpec(model="models/m", shares=["cpu:1"]), model_name="m")
    assert (empty.trials, empty.round_size) == (256, 64)
    assert from_proto(JobSpec, to_proto(replace(spec, trials=0), pb.JobSpec), model_name="net.onnx").trials == 0
    with pytest.raises(BadRequest, match="trials is -1"):
        from_proto(JobSpec, pb.JobSpec(model="models/m", shares=["cpu:1"], trials=-1), model_name="m").check()
    for state in JobState:
        message = pb.Job(spec=pb.JobSpec(model="models/m"), state=getattr(pb, f"JOB_STATE_{state.name}"))
        status = from_proto(JobStatus, message)
        assert status.state is state
        assert to_proto(status, pb.Job).state == message.state


def test_names_and_pages() -> None:
    assert Collection.JOBS.parse(Collection.JOBS.of("j1")) == "j1"
    for wrong in ("j1", "models/j1", "jobs/", "jobs/../x"):
        with pytest.raises(BadRequest, match="write jobs/ID"):
            Collection.JOBS.parse(wrong)
    assert page_size(0, default=50) == 50
    assert page_size(5000, default=50) == 1000
    with pytest.raises(BadRequest):
        page_size(-1, default=50)
    set_caller(ANYBODY)
    tokens = PageTokens(b"secret")
    assert tokens.read(tokens.write([1.5, 2]), length=2) == [1.5, 2]
    assert tokens.read("", length=1) is None
    assert tokens.read(tokens.write([math.inf, 2]), length=2) == [math.inf, 2]  # the time of a failure
    nested = base64.urlsafe_b64encode(b"[" * 100_000).decode()
    numbers = ([math.nan, 1], [1, 0.5], [1, math.inf], [1, 2**63], [1, -1], [10**400, 1])
    for wrong in ("garbage!", tokens.write([1]), "é", "\ud800", nested, *(tokens.write(each) for each in numbers)):
        with pytest.raises(BadRequest, match="page_token"):
            tokens.read(wrong, length=2)


def test_a_bundle_is_told_how_fast_the_whole_model_is(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    files.add_bundle("b1", [bundle_bytes()])
    files.add_times("b1", {"cpu:1": 2e-3}, {"cpu:1": 0.1}, {"cpu:1": BEST})
    files.add_times("b1", {"cpu:4": 1e-3}, {"cpu:4": 0.0}, {})
    told = Bundle(b"".join(files.bundle("b1")))
    assert told.timed("cpu") == {1: 2e-3, 4: 1e-3}
    assert told.served("cpu") == {1: {goal: Served.from_json(best) for goal, best in BEST.items()}}
    before = (tmp_path / "bundles" / "b1.fractune").stat().st_ino
    files.add_times("b1", {"cpu:1": 2e-3}, {"cpu:1": 0.1}, {"cpu:1": BEST})
    assert (tmp_path / "bundles" / "b1.fractune").stat().st_ino == before
    assert [path.name for path in (tmp_path / "bundles").iterdir()] == ["b1.fractune"]


def test_a_disturbed_time_is_marked_in_a_bundle_and_replaces_no_other(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    files.add_bundle("b1", [bundle_bytes()])
    files.add_times("b1", {"cpu:1": 9e-3, "cpu:4": 1e-3}, {"cpu:1": 0.8, "cpu:4": 0.0}, {})
    disturbed = Bundle(b"".join(files.bundle("b1")))
    assert (disturbed.timed("cpu"), disturbed.timed("cpu", disturbed=True)) == ({4: 1e-3}, {1: 9e-3})
    files.add_times("b1", {"cpu:1": 2e-3, "cpu:4": 7e-3}, {"cpu:1": 0.0, "cpu:4": 2.1}, {})
    assert Bundle(b"".join(files.bundle("b1"))).timed("cpu") == {1: 2e-3, 4: 1e-3}


def test_times_of_what_is_no_bundle_are_refused_and_the_file_stays(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    files.add_bundle("b1", [b"no bundle"])
    with pytest.raises(BadBundle):
        files.add_times("b1", {"cpu:1": 2e-3}, {"cpu:1": 0.1}, {"cpu:1": BEST})
    assert b"".join(files.bundle("b1")) == b"no bundle"


def test_a_bundle_that_is_torn_counts_as_none(tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    assert not files.has_bundle("b1")
    files.add_bundle("b1", [bundle_bytes()[:-1]])
    assert not files.has_bundle("b1")
    files.add_bundle("b1", [bundle_bytes()])
    assert files.has_bundle("b1")
