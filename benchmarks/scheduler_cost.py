"""The cost of the scheduler's decisions with many open operators and a large fleet.

One job is in the middle of tuning, with the same number of trials behind every operator. Each measurer has a tuner
instance, which is more than a fleet needs: look-ups for every instance are at their worst here. Redis and SQLite are
real.
"""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Status, TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.rounds import Rounds
from fractune_server.engine.tune import Instance, TunePhase
from fractune_server.scheduler.allocation import OperatorPlan, next_round
from fractune_server.scheduler.fair_queue import FairQueue
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.store import Store, sqlite_url
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import Fleet
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import measure_work, worker_info
from tests.support.processes.made_up import (
    DEVICE,
    TARGET,
    TARGET_KEY,
    granted,
    made_up_record,
    target_operator,
    workload_hash,
    workload_text,
)
from tests.support.processes.redis_process import running_redis
from tests.support.secret import SECRET

SHARE = "cpu:1"
_TRIALS_BEHIND = 8
"""of every operator"""
_BUDGET = 64
"""candidates an operator, so that every one of them is open"""
_REPEATS = 15


class OpenPhase(TunePhase):
    """The tuning phase, with its one decision made to be called alone."""

    def decide(self, job: ActiveJob) -> tuple[OperatorPlan, int] | None:
        """The next round of the first instance, chosen just as `start_round` does."""
        instance: Instance = next(iter(self._instances.values()))
        return next_round(list(job.plans.values()), job.budget, job.gained, partial(self._may_search, job, instance))


@dataclass(frozen=True)
class World:
    deps: ServerContext
    phase: OpenPhase
    rounds: Rounds
    job: ActiveJob
    record: TuningRecord
    """a trial of one of the operators"""


def costs_ms(operators: int, measurers: int) -> dict[str, float]:
    """Median milliseconds of each step."""
    with _world(operators, measurers) as world:
        job, phase = world.job, world.phase
        plans = list(job.plans.values())
        pure = _median_ms(lambda: next_round(plans, job.budget, 0))
        start = time.perf_counter()
        _tick(phase, job)
        begun = len(world.rounds.all())
        handed_out = (time.perf_counter() - start) * 1e3 / max(1, begun)
        if begun != measurers:
            raise SystemExit(f"overhead: {begun} rounds under way, not {measurers}")
        return {
            "next_round": pure,
            "decision": _median_ms(lambda: phase.decide(job)),
            "round handed out": handed_out,
            "tick, nothing to start": _median_ms(lambda: _tick(phase, job)),
            "count_progress": _median_ms(job.count_progress),
            "save of the job": _median_ms(lambda: _save(world)),
            "trial taken in": _median_ms(lambda: job.take_trial(world.record)),
        }


def _tick(phase: TunePhase, job: ActiveJob) -> None:
    """The engine's work on the job in one tick."""
    phase.advance(job, [job])
    free = phase.free_instances()
    while free and phase.start_round(job, [job], free):
        pass


def _save(world: World) -> None:
    """As the engine does after a trial: of the operators, the one that it was of has changed."""
    world.job.operators[-1].trials += 1
    changed = world.job.changed_operators()
    world.deps.store.jobs.save(world.job.stored, changed)
    world.job.note_saved(changed)


def _median_ms(step: Callable[[], object]) -> float:
    spent = []
    for _ in range(_REPEATS):
        start = time.perf_counter()
        step()
        spent.append((time.perf_counter() - start) * 1e3)
    return statistics.median(spent)


@contextmanager
def _world(operators: int, measurers: int) -> Iterator[World]:
    with running_redis() as url, tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        connection = redis.Redis.from_url(url, socket_timeout=None)
        deps = ServerContext(Store(sqlite_url(Path(folder))), connection, BlobStore(Path(folder)), SECRET)
        job = _run(operators)
        deps.store.log.add_workloads([(each.workload_hash, workload_text(each.name)) for each in job.operators])
        deps.store.jobs.create(job.stored)
        fair_queue = FairQueue()
        rounds = Rounds(deps, WorkQueues(connection, SECRET), fair_queue)
        phase = OpenPhase(deps, rounds, fair_queue)
        phase.update_instances(Fleet(worker_info(f"tune-{index}", 1.0, "tune") for index in range(measurers)))
        last = job.operators[-1]
        work = measure_work(target_operator(last.name), round_id="l", job=job.id, share=SHARE)
        try:
            yield World(deps, phase, rounds, job, made_up_record(work, "candidate", "trace"))
        finally:
            deps.store.close()
            connection.close()


def _run(operators: int) -> ActiveJob:
    names = [f"operator{index}" for index in range(operators)]
    spec = JobSpec(model="0" * 64, model_name="many.onnx", shares=(SHARE,), trials=_BUDGET * operators)
    stored = StoredJob("j", spec, time.time(), DEVICE, {SHARE: granted(SHARE)}, "", JobState.TUNING)
    stored.target, stored.target_key, stored.tuning_began = TARGET, TARGET_KEY, time.time()
    job = ActiveJob(stored, [StoredOperator(workload_hash(name), name, 1, selected=True) for name in names])
    for place, operator in enumerate(job.operators):
        plan = OperatorPlan(operator.workload_hash, operator.weight, job.share_keys)
        for number in range(_TRIALS_BEHIND):
            candidate = f"{operator.name} {number}"
            plan.add_trial(candidate, job.share_keys[0], 1e-3 * (1 + place % 7))
            job.own.add(candidate, SHARE, Status.OK)
        job.plans[operator.workload_hash] = plan
    return job
