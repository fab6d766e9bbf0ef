"""The workers of the fleet benchmark send what real ones send, as Redis counts it, and the benchmarks of load run."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.support.simulated_workers import ARTIFACT, SHARE, FleetLife, SimulatedWorker
from fractune_core.codec.plain_json import to_dict
from fractune_core.fleet.blobs import put_signed_blob
from fractune_core.fleet.messages import CPU_BATCH, CandidateItem
from fractune_core.fleet.redis_names import BUILD_QUEUE, artifact_blob, measure_queue, tune_queue, workload_blob
from fractune_core.records import ArtifactItem, Status, candidate_id
from fractune_core.shares import Share
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.builder_process import BuiltCandidate
from fractune_workers.context import WorkerContext
from fractune_workers.entry import WorkHandler, WorkLoop
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.measuring.session import Conditions, Outcome
from fractune_workers.roles import measure
from fractune_workers.roles.build import Builder
from fractune_workers.roles.measure import Measurer
from fractune_workers.roles.tune import Tuner
from tests.support.fleet_messages import build_work, measure_work, search_work
from tests.support.paths import REPOSITORY
from tests.support.processes.made_up import DEVICE, TARGET_KEY, granted, target_operator, workload_text
from tests.support.processes.redis_process import commands_of, running_redis
from tests.support.secret import SECRET

OPERATOR = target_operator("conv2d")
NAME = OPERATOR.workload_hash
ITEMS = [CandidateItem(candidate_id(NAME, TARGET_KEY, f'["{number}"]'), f'["{number}"]') for number in range(CPU_BATCH)]


class Child:
    """In place of TVM's process: it answers at once."""

    @contextmanager
    def preemptible_by(self, _hold: Any) -> Iterator[None]:
        yield

    def __init__(self) -> None:
        self._open = False

    def call(self, method: str, _timeout_s: float, **_payload: Any) -> Any:
        knows, self._open = self._open, self._open or method == "open"
        return {"knows": knows, "propose": list(map(to_dict, ITEMS))}.get(method)


class Process:
    """In place of a builder's process."""

    def __init__(self) -> None:
        self.child = Child()
        self._known: set[str] = set()

    def learn(self, workload_hash: str, _target: str, load: Callable[[], str], _tenant: str) -> list[Any]:
        if workload_hash not in self._known:
            self._known.add(workload_hash)
            load()
        return []

    def build(self, *_args: Any) -> BuiltCandidate:
        return BuiltCandidate(Status.OK, "", ARTIFACT, "", 0.1, {})


class Session:
    """In place of a measuring process."""

    gpu_uuid, fault_epochs = None, 0

    def __init__(self) -> None:
        about = {"device": DEVICE.to_json(), "granted": granted(SHARE).to_json(), "target": "", "versions": {}}
        self.device_info: dict[str, Any] = about

    def roof(self) -> None:
        pass

    def serve(self, tenant: str) -> None:
        pass

    def trials(self, batch: Any, _best_s: float) -> dict[str, Outcome]:
        return {name: Outcome(Status.OK, run_secs=(1e-3,) * 3) for name in batch.codes}


def work_of(role: str, number: int) -> tuple[str, Any]:
    """The queue, and a piece of work for it."""
    built = [ArtifactItem(item.candidate, item.trace, Status.OK, "", 0.1) for item in ITEMS]
    name, of = f"work{number}", (OPERATOR, f"round{number}")
    return {
        "tune": (tune_queue("tune-1"), search_work(*of, work_id=name, count=CPU_BATCH, shares=[SHARE])),
        "build": (BUILD_QUEUE, build_work(OPERATOR, ITEMS, of[1], work_id=name, shares=[SHARE])),
        "measure": (measure_queue(DEVICE.key, SHARE), measure_work(OPERATOR, built, of[1], work_id=name, share=SHARE)),
    }[role]


def real(url: str, role: str, pieces: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real worker's loop and role do what waits."""
    conditions = Conditions(1.0)
    monkeypatch.setattr(measure, "measure_stable", lambda *given: (given[2](), conditions))
    monkeypatch.setattr(measure, "MeasurementSession", lambda *_: Session())
    with redis.Redis.from_url(url, socket_timeout=None) as connection:
        context = WorkerContext(f"{role}-1", connection, SECRET, CoreLocks(folder / "gate", 8), [0], folder)
        made: Any
        if role == "tune":
            made = Tuner(context)
            made._child = Child()
            made.start()
        elif role == "build":
            made = Builder(context)
            made._process = Process()
        else:
            made = Measurer(context, Share.parse(SHARE))
        handler = WorkHandler(context, made)
        WorkLoop(context.name, connection, handler.queue, handler.handle).run(pieces)


def simulated(url: str, role: str, pieces: int) -> None:
    async def serve() -> None:
        worker = SimulatedWorker(url, role, f"{role}-1", FleetLife(speed=1e6))
        await worker.serve(pieces)
        await worker.redis.aclose()

    asyncio.run(serve())


def commands(role: str, pieces: int, work: Callable[[str], None]) -> dict[str, int]:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        put_signed_blob(connection, SECRET, workload_blob(NAME), workload_text(OPERATOR.name).encode())
        for number in range(pieces):
            queue, message = work_of(role, number)
            WorkQueues(connection, SECRET).enqueue(queue, message)
            for item in ITEMS:
                put_signed_blob(connection, SECRET, artifact_blob(f"round{number}", item.candidate), ARTIFACT)
        with commands_of(connection) as counted:
            work(url)
        return counted


@pytest.mark.parametrize("role", ["tune", "build", "measure"])
def test_a_simulated_worker_sends_the_commands_of_a_real_one(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def a_piece(work: Callable[[str, int], None]) -> dict[str, float]:
        """Commands for each piece of work but the first, which comes with the start of the worker and its end."""
        few, many = (commands(role, pieces, lambda url, p=pieces: work(url, p)) for pieces in (1, 5))  # type: ignore[misc]
        return {name: (many[name] - few.get(name, 0)) / 4 for name in many if many[name] != few.get(name, 0)}

    found = a_piece(lambda url, pieces: simulated(url, role, pieces))
    assert found == a_piece(lambda url, pieces: real(url, role, pieces, tmp_path, monkeypatch))
    assert found["blmove"] == 1


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("fleet", ["--gpus", "2"], "fleet: simulated GPUs: "),
        ("service_load", [], "service_load, simulated workers: 10 clients: "),
        ("simulated_gpu", [], "simulated_gpu, simulated: turns: "),
    ],
)
def test_a_smoke_run_ends_with_one_line_that_says_what_is_simulated(
    name: str, options: list[str], says: str, tmp_path: Path
) -> None:
    out = tmp_path / "result.json"
    command = [sys.executable, "-m", f"benchmarks.{name}", "--quick", "--out", str(out), *options]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1].startswith(says)
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["simulated"]
    if name == "service_load":
        assert result["clients"]["jobs"] > 0
        assert result["clients"]["lost"] == []
        assert result["clients"]["failed"] == {}
        assert result["watchers"]["told"] == 20
        assert result["page"]["written_per_s"] > 0
    elif name == "fleet":
        assert result["runs"]["2"]["records_per_s"] > 0
    else:
        assert all(row["candidates_per_s"] > 0 for rows in result["runs"].values() for row in rows.values())
