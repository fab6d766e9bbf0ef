"""Worker processes against a real Redis: search, build, measure; and what happens when they are killed."""

import itertools
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.analysis.roofline import Roof
from fractune_core.fleet.blobs import put_blob, put_signed_blob
from fractune_core.fleet.messages import CandidateItem, TargetOperator
from fractune_core.fleet.redis_names import (
    BUILD_QUEUE,
    SERVER_STREAM,
    artifact_blob,
    measure_queue,
    tune_queue,
    tuner_stream,
    workload_blob,
)
from fractune_core.fleet.redis_state import CANCELLED, SUM, WORK_DURATION, mark
from fractune_core.records import UNTUNED, VALIDATION_POLICY, ArtifactItem, Kind, Status, TuningRecord, candidate_id
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import build_work, measure_work, operator_of, search_work
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.processes.worker_processes import WorkerProcess, alive, matmul_workload, worker
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(240)


class Fleet:
    """Three workers, a Redis, and one small operator."""

    def __init__(self, url: str, gate: Path, workload: dict[str, Any], workers: dict[str, WorkerProcess]) -> None:
        self.url, self.gate, self.workload, self.workers = url, gate, workload, workers
        self.redis = redis.Redis.from_url(url)
        self.device = ""

    def enqueue(self, queue: str, work: Any) -> None:
        WorkQueues(self.redis, SECRET).enqueue(queue, work)

    def events(self, stream: str) -> list[dict[str, Any]]:
        return events_of(self.redis, stream)

    def records(self, stream: str, round_id: str) -> list[TuningRecord]:
        events = [e for e in self.events(stream) if e["event"] == "measured" and e["round_id"] == round_id]
        return [TuningRecord.from_json(event["record"]) for event in events]

    @property
    def operator(self) -> TargetOperator:
        return operator_of(self.workload)

    def search(self, round_id: str, count: int) -> None:
        work = search_work(self.operator, round_id, work_id=uuid.uuid4().hex, count=count, device_key=self.device)
        self.enqueue(tune_queue("tuner"), work)

    def build(self, round_id: str, traces: list[str], kind: str = "trial") -> list[str]:
        names = [candidate_id(self.workload["hash"], self.workload["key"], trace) for trace in traces]
        items = list(map(CandidateItem, names, traces))
        more = {"work_id": uuid.uuid4().hex, "purpose": Kind(kind), "device_key": self.device}
        self.enqueue(BUILD_QUEUE, build_work(self.operator, items, round_id, **more))
        return names


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    gate = tmp_path_factory.mktemp("gate")
    workload = matmul_workload(96)
    with (
        running_redis() as url,
        worker("tuner", "tune", url, gate) as tuner,
        worker("builder", "build", url, gate) as builder,
        worker("measurer", "measure", url, gate, "cpu:1") as measurer,
    ):
        fleet = Fleet(url, gate, workload, {"tuner": tuner, "builder": builder, "measurer": measurer})
        for process in fleet.workers.values():
            info = process.info(fleet.redis)
            assert info.pid == process.process.pid
        device = measurer.info(fleet.redis).device
        assert device is not None
        fleet.device = device.key
        put_signed_blob(fleet.redis, SECRET, workload_blob(workload["hash"]), workload["json"].encode())
        yield fleet


def test_the_measurer_proves_its_share(fleet: Fleet) -> None:
    granted = fleet.workers["measurer"].info(fleet.redis).granted
    assert granted is not None
    assert (granted.share, granted.units, len(granted.ids)) == ("cpu:1", 1, 1)
    for child in fleet.workers["measurer"].children():
        for task in Path(f"/proc/{child}/task").iterdir():
            status = (task / "status").read_text()
            assert f"Cpus_allowed_list:\t{granted.ids[0]}\n" in status


def test_search_and_builds_load_their_children_before_work_comes(fleet: Fleet) -> None:
    for name, kind in (("tuner", "search"), ("builder", "build")):
        assert worked(fleet, name, kind) == (0, 0)
        wait_until(fleet.workers[name].children, 60)


def test_a_round_is_searched_built_and_measured(fleet: Fleet) -> None:
    round_id = uuid.uuid4().hex
    fleet.search(round_id, 4)
    stream = tuner_stream("tuner")
    wait_until(lambda: len(fleet.records(stream, round_id)) == 4, 60)
    proposed = [e for e in fleet.events(stream) if e["event"] == "proposed" and e["round_id"] == round_id]
    records = fleet.records(stream, round_id)
    assert {r.candidate_id for r in records} == set(proposed[0]["candidates"])
    assert all(r.status == "ok" and len(r.run_secs) == 3 and 0 < r.median_s < 1 for r in records)
    assert all(0.1 < r.anchor_ratio < 10 for r in records)

    # The second round knows what the first proposed: nothing comes twice.
    second = uuid.uuid4().hex
    fleet.search(second, 4)
    wait_until(lambda: len(fleet.records(stream, second)) == 4, 60)
    assert not {r.candidate_id for r in fleet.records(stream, second)} & set(proposed[0]["candidates"])

    # The roof comes with the first batch, and again whenever a later batch finds a higher one. What else runs on the
    # same physical core may halve it meanwhile.
    found = [event for event in fleet.events(SERVER_STREAM) if event["event"] == "roof_measured"]
    assert {(each["device_key"], each["share_key"]) for each in found} == {(fleet.device, records[0].granted.key)}
    roofs = [Roof.from_json(each["roof"]) for each in found]
    assert all(after == before.raised_to(after) != before for before, after in itertools.pairwise(roofs))
    fastest_s = min(r.median_s for r in records)
    assert 2 * roofs[-1].gflops > 2 * 96**3 / fastest_s / 1e9
    assert roofs[-1].gb_per_s > 0.2

    # Each worker's entry tells what it has done, in seconds that can be.
    for name, kind in (("tuner", "search"), ("builder", "build"), ("measurer", "measure")):
        wait_until(lambda name=name, kind=kind: worked(fleet, name, kind)[0] >= 2)
        _, secs = worked(fleet, name, kind)
        assert 0 < secs < 240


def worked(fleet: Fleet, name: str, kind: str) -> tuple[float, float]:
    """How many pieces of work of a kind the worker has ended, and their seconds, as its entry says."""
    counts = fleet.workers[name].info(fleet.redis).counts
    of = {field: count for what, label, field, count in counts if (what, label) == (WORK_DURATION, kind)}
    return sum(count for field, count in of.items() if field != SUM), of.get(SUM, 0.0)


def test_a_final_checks_output_and_times_the_untuned_default_too(fleet: Fleet) -> None:
    best = min(_trials(fleet), key=lambda r: r.median_s)
    round_id = uuid.uuid4().hex
    fleet.build(round_id, [UNTUNED, best.trace], kind="validation")
    wait_until(lambda: len(fleet.records(SERVER_STREAM, round_id)) == 2, 60)
    by_trace = {r.trace: r for r in fleet.records(SERVER_STREAM, round_id)}
    assert by_trace[UNTUNED].max_error == 0.0
    winner = by_trace[best.trace]
    assert winner.status == "ok"
    assert winner.max_error is not None
    assert winner.max_error < 1e-3
    assert len(winner.run_secs) == winner.policy.repeats == VALIDATION_POLICY.repeats
    assert winner.median_s < by_trace[UNTUNED].median_s


def test_without_the_untuned_default_nothing_is_published(fleet: Fleet) -> None:
    """The others could only be compared with each other."""
    round_id = uuid.uuid4().hex
    best = min(_trials(fleet), key=lambda r: r.median_s)
    fleet.build(round_id, [best.trace], kind="validation")
    wait_until(lambda: len(fleet.records(SERVER_STREAM, round_id)) == 1, 60)
    (record,) = fleet.records(SERVER_STREAM, round_id)
    assert record.status == "run_failed"
    assert "nothing to compare with" in record.cause


def test_a_candidate_that_cannot_be_built_is_data(fleet: Fleet) -> None:
    round_id = uuid.uuid4().hex
    fleet.build(round_id, ['[[["NoSuchInstruction",[],[],[]]],[]]'])
    wait_until(lambda: len(fleet.records(SERVER_STREAM, round_id)) == 1, 60)
    (record,) = fleet.records(SERVER_STREAM, round_id)
    assert record.status == "build_failed"
    assert "NoSuchInstruction" in record.cause
    assert "\n" not in record.cause


def test_an_unsigned_artifact_is_not_run(fleet: Fleet) -> None:
    round_id, name = uuid.uuid4().hex, "0" * 32
    put_blob(fleet.redis, artifact_blob(round_id, name), b"x" * 200)
    work = measure_work(fleet.operator, [ArtifactItem(name, "", Status.OK)], round_id, work_id=uuid.uuid4().hex)
    fleet.enqueue(measure_queue(fleet.device, "cpu:1"), work)
    wait_until(lambda: any(e.get("round_id") == round_id for e in fleet.events(SERVER_STREAM)))
    (event,) = [e for e in fleet.events(SERVER_STREAM) if e.get("round_id") == round_id]
    assert (event["event"], event["error"]) == ("work_failed", "Unsigned")


def test_work_of_a_round_that_nobody_waits_for_is_skipped(fleet: Fleet) -> None:
    round_id = uuid.uuid4().hex
    mark(fleet.redis, CANCELLED, round_id)
    fleet.build(round_id, [])
    after = uuid.uuid4().hex
    fleet.build(after, [UNTUNED])
    wait_until(lambda: len(fleet.records(SERVER_STREAM, after)) == 1, 60)
    assert not fleet.records(SERVER_STREAM, round_id)


def test_a_child_that_is_killed_is_replaced_and_the_candidate_measured_again(fleet: Fleet) -> None:
    measurer = fleet.workers["measurer"]
    (child,) = measurer.children()
    small, round_id = fleet.workload, uuid.uuid4().hex
    fleet.workload = matmul_workload(512)  # seconds of untuned work on any machine, also on a busy one within its limit
    try:
        put_signed_blob(fleet.redis, SECRET, workload_blob(fleet.workload["hash"]), fleet.workload["json"].encode())
        before = _ticks(child)
        fleet.build(round_id, [UNTUNED])
        wait_until(lambda: _ticks(child) > before + 50, 60)  # past the anchor kernel, which blames nobody
        os.kill(child, signal.SIGKILL)
        wait_until(lambda: len(fleet.records(SERVER_STREAM, round_id)) == 1, 120)
    finally:
        fleet.workload = small
    (record,) = fleet.records(SERVER_STREAM, round_id)
    assert (record.status, record.cause) == ("ok", "")
    after = uuid.uuid4().hex
    fleet.build(after, [UNTUNED])
    wait_until(lambda: len(fleet.records(SERVER_STREAM, after)) == 1, 60)
    assert fleet.records(SERVER_STREAM, after)[0].status == "ok"
    assert measurer.children() != [child]
    assert not alive(child)


def test_no_child_outlives_a_worker_that_is_killed(fleet: Fleet) -> None:
    with worker("doomed", "measure", fleet.url, fleet.gate, "cpu:1") as doomed:
        doomed.info(fleet.redis)
        children = doomed.children()
        assert children
        doomed.kill()
        wait_until(lambda: not any(alive(child) for child in children))


def test_a_builder_stays_on_its_cores(fleet: Fleet) -> None:
    with worker("kept", "build", fleet.url, fleet.gate, cores="0") as kept:
        assert kept.info(fleet.redis).cores == [0]
        assert os.sched_getaffinity(kept.process.pid) == {0}


def test_cores_that_are_not_there_are_refused(fleet: Fleet) -> None:
    with worker("lost", "build", fleet.url, fleet.gate, cores="9999") as lost:
        assert lost.process.wait(60) == 2
    assert "cores [9999]" in lost.log.splitlines()[-1]


@pytest.mark.parametrize(
    ("share", "cores", "says"),
    [("cpu:4000", "", "larger than this machine"), ("cpu:1", "0,1", "are not 1 of"), ("mps:25", "", "NVIDIA")],
)
def test_a_share_that_cannot_be_had_is_refused(fleet: Fleet, share: str, cores: str, says: str) -> None:
    with worker("refused", "measure", fleet.url, fleet.gate, share, cores) as refused:
        assert refused.process.wait(60) == 4
    assert says in refused.log.splitlines()[-1]
    assert "Traceback" not in refused.log


def _trials(fleet: Fleet) -> list[TuningRecord]:
    events = [e for e in fleet.events(tuner_stream("tuner")) if e["event"] == "measured"]
    return [TuningRecord.from_json(event["record"]) for event in events]


def _ticks(pid: int) -> int:
    """CPU time of the process so far, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])
