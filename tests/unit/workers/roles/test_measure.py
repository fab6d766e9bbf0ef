"""When a measurer may measure: trials side by side on one GPU, validations alone. Children are real, the GPU is not."""

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.chaos.audit import Audit
from benchmarks.support.role_threads import Cores, Rates, RoleThread
from benchmarks.support.timed_gpu import TimedGpu
from fractune_core.analysis.roofline import Roof
from fractune_core.fleet.blobs import put_signed_blob
from fractune_core.fleet.messages import TargetOperator
from fractune_core.fleet.redis_names import artifact_blob
from fractune_core.records import ArtifactItem, Status, candidate_id
from fractune_core.shares import Share
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.context import WorkerContext
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.gpu_slots import Claim, GpuSlots, HeldClaim
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.audit import AUDIT_VARIABLE, Statement
from fractune_workers.roles import measure
from fractune_workers.roles.measure import Measurer
from tests.support.children.poison import FOLDER, PoisonConfinement
from tests.support.children.poison_child import LAUNCH_S
from tests.support.fleet_messages import measure_work
from tests.support.hardware.simulated_session import TARGET
from tests.support.processes.made_up import workload_hash
from tests.support.processes.redis_process import wait_until
from tests.support.samples import validation
from tests.support.secret import SECRET


@pytest.fixture
def measurers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Measurer]]:
    """Four with a quarter of the device each, and one more."""
    (tmp_path / "device").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "device"))
    monkeypatch.setattr(session_module, "confinement_for", PoisonConfinement)
    monkeypatch.setattr(session_module, "_CHILD", "tests.support.children.poison_child")
    with contextlib.ExitStack() as held:
        ready = []
        for number in range(5):
            context = WorkerContext(
                f"m{number}", redis.Redis(), b"secret", CoreLocks(tmp_path / "gate", 8), [0], tmp_path
            )
            ready.append(Measurer(context, Share.parse("mps:25")))
            held.callback(ready[-1].stop)
            ready[-1].start()
        yield ready


def enters(measurer: Measurer, *, alone: bool) -> tuple[threading.Thread, threading.Event]:
    """A thread in which it waits for its slot, takes it and ends it, and whether it has had it."""
    had = threading.Event()

    def take() -> None:
        with measurer._slot(alone=alone) as slot:
            assert slot.co_runners == 0 or not alone
            had.set()

    thread = threading.Thread(target=take)
    thread.start()
    return thread, had


def test_trials_run_beside_each_other_as_long_as_their_shares_fit(measurers: list[Measurer]) -> None:
    locks = measurers[0]._context.core_locks
    with contextlib.ExitStack() as held:
        slots = [held.enter_context(each._slot(alone=False)) for each in measurers[:4]]
        assert [slot.co_runners for slot in slots] == [0, 1, 2, 3]
        (folder,) = locks.directory.glob("gpu-*")
        thread, had = enters(measurers[4], alone=False)
        wait_until(CoreLocks(folder).is_measurement_waiting)
        assert not had.is_set()
    assert all(each.keeps() for each in measurers[:4])
    measurers[2].rest()
    thread.join(30)
    assert had.is_set()
    assert all(slot.co_runners == 3 for slot in slots)
    assert measurers[4]._context.core_locks.waited_s > 0


def test_a_validation_runs_alone(measurers: list[Measurer]) -> None:
    with measurers[0]._slot(alone=False):
        (folder,) = measurers[0]._context.core_locks.directory.glob("gpu-*")
        thread, had = enters(measurers[1], alone=True)
        wait_until(CoreLocks(folder).is_measurement_waiting)
        assert not had.is_set()
    assert not had.is_set(), "the turn goes on while it may have work"
    measurers[0].rest()
    thread.join(30)
    assert had.is_set()


class OneTransaction:
    """Notes what the audit says when the results are sent; Redis is there or not."""

    def __init__(self, folder: Path, *, redis_is_there: bool) -> None:
        self.folder, self.redis_is_there = folder, redis_is_there
        self.said = Audit()

    def send(self) -> None:
        self.said = audit_of(self.folder)
        if not self.redis_is_there:
            raise redis.ConnectionError


def audit_of(folder: Path) -> Audit:
    audit = Audit()
    for file in folder.glob("*.jsonl"):
        audit.read(file.read_text().splitlines())
    return audit


@pytest.mark.parametrize("redis_is_there", [True, False])
def test_what_is_measured_is_told_before_it_is_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    redis_is_there: bool,  # noqa: FBT001
) -> None:
    monkeypatch.setenv(AUDIT_VARIABLE, str(tmp_path / "audit"))
    context = WorkerContext("m", redis.Redis(), b"secret", CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    measurer = Measurer(context, Share.parse("cpu:1"))
    transaction: Any = OneTransaction(tmp_path / "audit", redis_is_there=redis_is_there)
    record = validation("t", 1, 0.5)
    with contextlib.suppress(redis.ConnectionError):
        measurer._send(transaction, [record])
    measurer.stop()
    assert transaction.said.statements == {record.record_id: [Statement.of(record)]}
    assert transaction.said.delivered == set()
    assert audit_of(tmp_path / "audit").delivered == ({record.record_id} if redis_is_there else set())


def test_a_roof_is_told_whenever_it_is_higher_than_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = WorkerContext("m", redis.Redis(), b"secret", CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    measurer = Measurer(context, Share.parse("cpu:1"))
    busy, quiet, of_a_new_child = Roof(50.0, 8.0, 1 << 25), Roof(99.0, 8.0, 1 << 25), Roof(80.0, 9.0, 1 << 25)
    found = iter([busy, busy, quiet, busy, of_a_new_child, None])
    monkeypatch.setattr(measurer._session, "roof", lambda: next(found))
    monkeypatch.setattr("fractune_workers.roles.measure._ROOF_EVERY_S", 0.0)
    told = [measurer._higher_roof() for _ in range(7)]  # what could not be measured is not tried a seventh time
    measurer.stop()
    assert told == [busy, None, quiet, None, Roof(99.0, 9.0, 1 << 25), None, None]


def test_a_launch_floor_is_told_whenever_it_is_lower_than_before(
    measurers: list[Measurer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poisonous device has one; with others beside it a launch may take longer."""
    measurer = measurers[0]
    assert measurer._higher_roof() == Roof(0.0, 0.0, 0, LAUNCH_S)
    found = iter([Roof(0.0, 0.0, 0, 2 * LAUNCH_S), Roof(0.0, 0.0, 0, LAUNCH_S / 2)])
    monkeypatch.setattr(measurer._session, "roof", lambda: next(found))
    assert [measurer._higher_roof() for _ in range(2)] == [None, Roof(0.0, 0.0, 0, LAUNCH_S / 2)]


def test_after_the_first_roofs_one_a_second_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = WorkerContext("m", redis.Redis(), b"secret", CoreLocks(tmp_path / "gate", 8), [0], tmp_path)
    measurer = Measurer(context, Share.parse("cpu:1"))
    now_s, made = [100.0], list[float]()

    def roof() -> Roof:
        made.append(now_s[0])
        return Roof(50.0, 8.0, 1 << 25)

    monkeypatch.setattr(measurer._session, "roof", roof)
    monkeypatch.setattr("fractune_workers.roles.measure.time.monotonic", lambda: now_s[0])
    for now_s[0] in (100.0, 100.1, 100.2, 100.3, 101.1, 101.3, 102.0, 102.4):
        measurer._higher_roof()
    measurer.stop()
    assert made == [100.0, 100.1, 100.2, 101.3, 102.4]


SHARES = ("mps:25", "full")
PIECES = 12
NAME = workload_hash("conv2d")
OPERATOR = TargetOperator(NAME, "conv2d", TARGET, TARGET)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> TimedGpu:
    gpu = TimedGpu(rates=Rates(Cores(1), speed=20.0))
    monkeypatch.setattr(measure, "MeasurementSession", gpu.session)
    return gpu


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often claims of the whole GPU, and of a part, were taken."""
    entries, real = Counter[str](), GpuSlots.hold

    def hold(slots: GpuSlots, claim: Claim) -> HeldClaim:
        entries["part" if claim.exclusion_group else "whole"] += 1
        return real(slots, claim)

    monkeypatch.setattr(GpuSlots, "hold", hold)
    return entries


def enqueue(connection: redis.Redis, queue: str, share: str, number: int) -> None:
    trace = f'["{number}"]'
    candidate, round_id = candidate_id(NAME, TARGET, trace), f"round{number}"
    put_signed_blob(connection, SECRET, artifact_blob(round_id, candidate), f"code {number}".encode())
    built, work_id = ArtifactItem(candidate, trace, Status.OK, "", 0.1), f"{SHARES.index(share)}-{number}"
    work = measure_work(OPERATOR, [built], round_id, work_id=work_id, share=share, reply="reply")
    WorkQueues(connection, SECRET).enqueue(queue, work)


def test_each_takes_what_waits_in_its_queue_in_a_turn(
    redis_url: str, tmp_path: Path, gpu: TimedGpu, entered: Counter[str]
) -> None:
    """Piece by piece each would enter as often as it has pieces, and wait for the other one each time."""

    def measurer(share: str, context: WorkerContext) -> Measurer:
        role = Measurer(context, Share.parse(share))
        role.start()
        for number in range(PIECES):
            enqueue(connection, role.queue(), share, number)
        return role

    with redis.Redis.from_url(redis_url) as connection, ExitStack() as held:
        for share in SHARES:
            held.callback(RoleThread(redis_url, f"measure-{share}", "measure", tmp_path, partial(measurer, share)).stop)
        wait_until(lambda: gpu.measured == dict.fromkeys(SHARES, PIECES))
        wait_until(lambda: not list(tmp_path.glob("gpu-*/claim-*")))
    assert max(entered["part"], entered["whole"]) <= PIECES // 3, "a busy machine may find a queue empty for a moment"
