"""A storm of faults: real measuring workers on a real Redis share a simulated device
(tests/support/children/poison.py).

One candidate in twenty crashes, hangs or poisons the device, and a worker is killed in the middle of it. Every
candidate is accounted for once, and only the guilty are blamed.
"""

import json
import os
import random
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from fractune_core.fleet.blobs import put_signed_blob
from fractune_core.fleet.messages import TargetOperator, Work
from fractune_core.fleet.redis_names import SERVER_STREAM, artifact_blob, measure_queue
from fractune_core.fleet.redis_state import drop_entry, worker_key
from fractune_core.records import ArtifactItem, Status, TuningRecord, candidate_id
from fractune_core.shares import Device
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.requeue import ATTEMPTS, Requeuer
from fractune_server.transport.work_queues import WorkQueues
from tests.support.children.poison import FOLDER, PoisonDevice
from tests.support.children.poison_measurer import DIES, SHARE
from tests.support.fleet_messages import measure_work
from tests.support.processes.ready_made import ReadyMade
from tests.support.processes.redis_process import events_of, running_redis, wait_until
from tests.support.samples import WORKLOAD
from tests.support.secret import SECRET

pytestmark = pytest.mark.timeout(150)

CANDIDATES = 160
BATCH = 4
GUILTY = {"crash": Status.CRASHED, "poison": Status.CRASHED, "hang": Status.RUN_TIMEOUT}
TARGET = '{"kind":"cuda"}'


class Measurers:
    """Measuring worker processes on one device, and what gives lost work again."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.redis = redis.Redis.from_url(url)
        self.device = PoisonDevice(folder / "device")
        self.device.folder.mkdir()
        self.queues = WorkQueues(self.redis, SECRET)
        self.given_up: list[Work] = []
        self._requeuer = Requeuer(self.redis, self.queues, self.given_up.append)
        self.processes: dict[str, ReadyMade] = {}

    def arrive(self, *more: str, patience_s: float = 60.0) -> str:
        name = f"measurer-{len(self.processes)}"
        where = (self.url, str(self.folder / "gate"), str(patience_s))
        self.processes[name] = ReadyMade(
            "tests.support.children.poison_measurer",
            *(name, *where, *more),
            env={**os.environ, FOLDER: str(self.device.folder)},
        )
        return name

    def wait_for(self, name: str) -> None:
        wait_until(lambda: self.redis.exists(worker_key(name)), 60)

    def kill(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()

    def ask(self, kernels: dict[str, dict[str, Any]]) -> None:
        """Put a batch of candidates on the queue of the share."""
        round_id = uuid.uuid4().hex
        for name, kernel in kernels.items():
            put_signed_blob(self.redis, SECRET, artifact_blob(round_id, name), json.dumps(kernel).encode())
        work = measure_work(
            TargetOperator(WORKLOAD, "matmul", TARGET, TARGET),
            [ArtifactItem(name, name, Status.OK) for name in kernels],
            round_id,
            work_id=uuid.uuid4().hex,
            share=SHARE,
            args_info=[["TENSOR", "float32", [1]]],
        )
        self.queues.enqueue(measure_queue(Device("cuda", "poison", 100, 8, 1).key, SHARE), work)

    def records(self) -> list[TuningRecord]:
        events = events_of(self.redis, SERVER_STREAM)
        assert {event["event"] for event in events} <= {"measured", "roof_measured"}, events
        return [TuningRecord.from_json(event["record"]) for event in events if event["event"] == "measured"]

    def sweep(self) -> None:
        """What the server does again and again."""
        self._requeuer.sweep(live_workers(self.redis, SECRET))

    def sweep_until(self, holds: Callable[[], object], timeout_s: float = 30.0) -> None:
        """Only a sweep takes the last execution of a killed worker away, and only once its entry has expired."""

        def swept() -> object:
            self.sweep()
            return holds()

        wait_until(swept, timeout_s, every_s=0.1)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(30)


@pytest.fixture
def measurers(tmp_path: Path) -> Iterator[Measurers]:
    with running_redis() as url:
        measurers = Measurers(url, tmp_path)
        try:
            yield measurers
        finally:
            measurers.stop()


def storm(seed: int) -> dict[str, dict[str, Any]]:
    """Candidates by id: 5 % are guilty, a third of them of each kind or so."""
    rng = random.Random(seed)
    kinds = ["good"] * CANDIDATES
    for number, place in enumerate(rng.sample(range(CANDIDATES), CANDIDATES // 20)):
        kinds[place] = list(GUILTY)[number % len(GUILTY)]
    kernels = [{"id": f"{number}", "do": do, "secs": rng.uniform(0.0, 0.02)} for number, do in enumerate(kinds)]
    return {candidate_id(WORKLOAD, TARGET, str(kernel["id"])): kernel for kernel in kernels}


@pytest.mark.long
def test_a_storm_of_faults_leaves_every_candidate_accounted_for(measurers: Measurers) -> None:
    names = [measurers.arrive() for _ in range(4)]
    for name in names:
        measurers.wait_for(name)
    kernels = storm(seed=5)
    candidates = list(kernels)
    for start in range(0, CANDIDATES, BATCH):
        measurers.ask({name: kernels[name] for name in candidates[start : start + BATCH]})
    wait_until(lambda: len(measurers.records()) >= CANDIDATES // 4, 60)
    measurers.kill(names[0])
    measurers.arrive()
    measurers.sweep_until(lambda: len(measurers.records()) >= CANDIDATES, 100)
    measurers.sweep_until(measurers.queues.idle)
    found = measurers.records()
    assert Counter(record.candidate_id for record in found) == dict.fromkeys(kernels, 1)
    expected = {name: GUILTY.get(kernel["do"], Status.OK) for name, kernel in kernels.items()}
    assert {record.candidate_id: record.status for record in found} == expected
    assert all(record.cause for record in found if record.status is not Status.OK)
    assert measurers.given_up == []
    assert 1 <= max(record.neighbours for record in found) <= 3
    runs = Counter(measurers.device.notes("runs"))
    guilty = [str(kernel["id"]) for kernel in kernels.values() if kernel["do"] in {"crash", "poison"}]
    # In company, unless another fault had voided that attempt before it ran, and alone; once more where its worker was
    # killed in between.
    assert all(1 <= runs[each] <= 3 for each in guilty), {each: runs[each] for each in guilty}
    assert all(map(measurers.device.faulted_alone, guilty)), measurers.device.notes("faults")


def test_a_worker_killed_between_its_results_and_the_end_of_its_work_leaves_nothing_to_do(measurers: Measurers) -> None:
    killed = measurers.arrive(DIES)
    measurers.wait_for(killed)
    kernels = {f"{number:032x}": {"id": f"{number}", "do": "good"} for number in range(BATCH)}
    measurers.ask(kernels)
    assert measurers.processes[killed].wait(60) == -signal.SIGKILL
    measurers.redis.delete(worker_key(killed))  # as it expires
    assert not measurers.queues.idle()
    measurers.arrive()
    measurers.sweep_until(measurers.queues.idle, 60)
    assert Counter(record.candidate_id for record in measurers.records()) == dict.fromkeys(kernels, 1)
    assert Counter(measurers.device.notes("runs"))["0"] == 1
    assert measurers.given_up == []


def test_a_stopped_worker_leaves_no_attempt_behind(measurers: Measurers) -> None:
    """SIGTERM lets the work in hand end; what waits, or was just being taken, is done by whoever comes next."""
    first = measurers.arrive()
    measurers.wait_for(first)
    kernels = {f"{number:032x}": {"id": f"{number}", "do": "good", "secs": 0.2} for number in range(8)}
    for name, kernel in kernels.items():
        measurers.ask({name: kernel})
    wait_until(measurers.records)
    measurers.processes[first].send_signal(signal.SIGTERM)
    assert measurers.processes[first].wait(30) == 0
    (state,) = (measurers.folder / "gate").glob("device-*/state.json")
    found = json.loads(state.read_text())
    assert (found["clients"], found["attempts"], found["suspects"], found["failure"]) == ([], {}, [], "")
    measurers.arrive()
    measurers.sweep_until(lambda: len(measurers.records()) == 8, 60)
    assert {record.status for record in measurers.records()} == {Status.OK}


@pytest.mark.long
def test_work_of_a_device_that_stays_down_is_handed_back_and_blames_nobody(measurers: Measurers) -> None:
    for attempt in range(ATTEMPTS + 1):
        name = measurers.arrive(patience_s=0.3)
        measurers.wait_for(name)
        measurers.device.broken.touch()
        measurers.device.poisoned.touch()
        if attempt == 0:
            measurers.ask({"0" * 32: {"id": "0", "do": "good"}})
        measurers.sweep()  # gives the work of the one before to this one
        assert measurers.processes[name].wait(30) == 4
        drop_entry(measurers.redis, name)  # as it expires
        measurers.device.broken.unlink()
    measurers.arrive()
    measurers.sweep()
    assert measurers.given_up == []
    wait_until(measurers.records, 60)
    (record,) = measurers.records()
    assert record.status is Status.OK
