"""The state folder, model and bundle files, and parts of uploads."""

import base64
import hashlib
import math
import os
import subprocess
import sys
import time
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
from fractune_server.authenticator import ANYBODY, set_caller
from fractune_server.services.paging import PageTokens, page_size
from fractune_server.store.blob_files import BlobStore, StateFolder, UploadParts
from fractune_server.store.records.rows import check_record
from tests.support.client_samples import bundle_bytes
from tests.support.paths import REPOSITORY
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


class TestStateFolder:
    def test_a_second_server_is_refused_until_the_first_has_gone(self, tmp_path: Path) -> None:
        with (
            StateFolder(tmp_path / "state"),
            pytest.raises(StateUnusable, match=rf"in use by another server \(pid {os.getpid()}\)"),
        ):
            StateFolder(tmp_path / "state")
        StateFolder(tmp_path / "state").close()

    def test_a_killed_server_leaves_no_lock(self, tmp_path: Path) -> None:
        holder = "import sys, pathlib, time\nfrom fractune_server.store.blob_files import StateFolder\n"
        holder += "f = StateFolder(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(600)\n"
        env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        command = [sys.executable, "-c", holder, str(tmp_path / "state")]
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"held\n"
            with pytest.raises(StateUnusable, match=f"pid {process.pid}"):
                StateFolder(tmp_path / "state")
            process.kill()
        StateFolder(tmp_path / "state").close()


FILE = bytes(range(256)) * 40
SHA256 = hashlib.sha256(FILE).hexdigest()
SIZE = len(FILE)


def leave(parts: UploadParts, owner: str, name: str, size: int, age_s: float = 0.0) -> None:
    """A part of `size` bytes that was left alone for `age_s`."""
    with parts.open(owner, name, offset=0, size=size) as part:
        part.write(b"x" * size)
    os.utime(parts._folder / f"{owner}.{name}", (time.time() - age_s,) * 2)


def test_a_part_is_its_senders_alone_and_outlives_the_server(tmp_path: Path) -> None:
    leave(UploadParts(tmp_path), "a", SHA256, 100)
    parts = UploadParts(tmp_path)
    assert (parts.received("a", SHA256), parts.received("b", SHA256), parts.received("", SHA256)) == (100, 0, 0)
    assert (parts.kept("a"), parts.kept("b")) == ({SHA256: 100}, {})


def test_a_part_that_goes_on_becomes_the_file(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    for start in range(0, SIZE, 5000):
        with parts.open("a", SHA256, offset=start, size=SIZE) as part:
            assert part.write(FILE[start : start + 5000])
            if start + 5000 >= SIZE:
                part.finish(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == FILE
    assert parts.kept("a") == {}


def test_old_parts_go_and_new_ones_stay(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path, kept_s=100)
    leave(parts, "a", "1", 10, age_s=101)
    leave(parts, "a", "2", 10, age_s=90)
    parts.drop_old()
    assert parts.kept("a") == {"2": 10}


def test_in_a_full_folder_the_parts_left_alone_for_longest_go_first(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path, kept_bytes=100)
    for number, age_s in (("1", 30), ("2", 20), ("3", 10)):
        leave(parts, "a", number, 30, age_s=age_s)
    with parts.open("b", "4", offset=0, size=40):
        assert parts.kept("a") == {"2": 30, "3": 30}
    with parts.open("a", "2", offset=30, size=100):  # its own part is never in its way
        assert parts.kept("a") == {"2": 30}


def test_two_uploads_of_one_file_both_end_well(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    with (
        parts.open("a", SHA256, offset=0, size=SIZE) as dead,
        parts.open("a", SHA256, offset=0, size=SIZE) as first,
    ):
        dead.write(FILE[:300])
        with parts.open("a", SHA256, offset=300, size=SIZE) as second:
            dead.write(FILE[300:400])
            assert second.write(FILE[300:])
            second.finish(tmp_path / "file")
        assert not first.write(FILE[:100])
        assert not dead.write(b"?" * 100)
        first.finish(tmp_path / "file")
        with parts.open("a", SHA256, offset=0, size=SIZE) as later:
            assert later.write(b"new")
    assert (tmp_path / "file").read_bytes() == FILE


def test_a_wrong_file_is_thrown_away_for_all_who_send_it(tmp_path: Path) -> None:
    parts = UploadParts(tmp_path / "parts")
    with (
        parts.open("a", SHA256, offset=0, size=SIZE) as first,
        parts.open("a", SHA256, offset=0, size=SIZE) as second,
    ):
        second.write(FILE[:-1] + b"?")
        with pytest.raises(BadRequest, match=f"not {SHA256}; all of them were thrown away"):
            second.finish(tmp_path / "file")
        with pytest.raises(BadRequest, match="thrown away"):
            first.write(FILE)
    assert parts.kept("a") == {}
    assert not (tmp_path / "file").exists()


def test_a_part_that_is_no_longer_there_is_not_gone_on_with(tmp_path: Path) -> None:
    with (
        pytest.raises(BadRequest, match="resumes at byte 5, and 0 have arrived"),
        UploadParts(tmp_path).open("a", SHA256, offset=5, size=SIZE),
    ):
        pass


def test_what_a_full_disk_holds_of_an_upload_is_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = UploadParts(tmp_path)
    with parts.open("a", SHA256, offset=0, size=SIZE) as part:
        part.write(FILE[:100])

        def full(*_: object) -> int:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(StateUnusable, match="No space left on device; free some space"):
            part.write(FILE[100:])
    assert parts.kept("a") == {}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StateUnusable, match="parts: Not a directory"):
        UploadParts(tmp_path / "file" / "parts")
