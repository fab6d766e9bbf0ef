"""Which rounds there are, by who searches and what is searched."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.fleet.redis_names import BUILD_QUEUE
from fractune_core.records import Kind
from fractune_core.workloads import workload_hash
from fractune_server.engine.rounds import LiveRound, Rounds
from fractune_server.scheduler.fair_queue import Claimant, FairQueue
from fractune_server.store.records.log import LogKey
from fractune_server.store.stored_job import Round
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues
from tests.support.fleet_messages import BUILD
from tests.support.samples import DEVICE, TARGET_KEY
from tests.support.secret import SECRET

W1, W2 = map(workload_hash, "12")


@pytest.fixture
def rounds(context: ServerContext) -> Rounds:
    context.store.log.add_workloads([(W1, "1"), (W2, "2")])
    return Rounds(context, WorkQueues(context.redis, SECRET), FairQueue())


def live(name: str, instance: str, workload: str, kind: Kind = Kind.TRIAL) -> LiveRound:
    made: Any = Round(name, "j", kind, workload, instance, 4)
    job: Any = SimpleNamespace(id="j", claimant=Claimant("j", ""), shares=["cpu:1"], dirty=False)
    return LiveRound(made, LogKey(workload, TARGET_KEY, DEVICE.key), DEVICE, "default", {"j": job})


def test_trials_are_found_by_their_instance_and_by_their_search_as_long_as_they_last(rounds: Rounds) -> None:
    made = [
        live("r1", "t1", W1),
        live("r2", "t1", W2),
        live("r3", "t2", W2),
        live("v", "", W2, Kind.VALIDATION),
    ]
    for each in made:
        rounds.start(each, BUILD_QUEUE, [BUILD])
    key = made[1].key
    assert rounds.trials_of("t1") == made[:2]
    assert rounds.trials_for(key) == rounds.trials_for(replace(key, exact=True)) == made[1:3]
    rounds.end(made[1])
    assert rounds.trials_of("t1") == made[:1]
    assert rounds.trials_for(key) == made[2:3]
    rounds.end(made[2])
    assert rounds.trials_of("t2") == rounds.trials_for(key) == rounds.trials_of("never") == []
    assert rounds.all() == [made[0], made[3]]
