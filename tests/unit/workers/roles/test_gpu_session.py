"""How often measurers of a quarter and of the whole GPU enter it, with work for both. The GPU is simulated."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
import redis

from benchmarks.support.role_threads import Cores, Rates, RoleThread
from benchmarks.support.timed_gpu import TimedGpu
from fractune_core.fleet.blobs import put_signed_blob
from fractune_core.fleet.messages import ArtifactItem, TargetOperator
from fractune_core.fleet.redis_names import artifact_blob
from fractune_core.records import Status, candidate_id
from fractune_core.shares import Share
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.context import WorkerContext
from fractune_workers.locks.gpu_slots import Claim, GpuSlots, HeldClaim
from fractune_workers.roles import measure
from fractune_workers.roles.measure import Measurer
from tests.support.fleet_messages import measure_work
from tests.support.hardware.simulated_session import TARGET
from tests.support.processes.made_up import workload_hash
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET

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
