from __future__ import annotations

import math

from fractune.dashboard.reading.progress import JobTrials, Point, Trial, model_progress, operator_progress
from fractune.features.client import Client
from fractune.server.job_status import JobStatus, OperatorStatus
from fractune_core.codec.messages import to_proto
from fractune_core.jobs import JobState
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import record
from tests.support.processes.scripted_server import ScriptedServer

JOB = JobStatus(
    "jobs/j1",
    JobState.TUNING,
    created_at=100.0,
    operators=(
        OperatorStatus("a", "aa", weight=2),
        OperatorStatus("b", "bb"),
        OperatorStatus("c", "cc", selected=False),
    ),
)


def trial(number: int, workload: str, secs: float, share: str = "cpu:1") -> Trial:
    return Trial(f"r{number}", 100.0 + number, share, workload, secs)


def test_the_model_has_a_best_once_every_selected_operator_has_one() -> None:
    trials = [trial(1, "aa", 3.0), trial(2, "cc", 9.0), trial(3, "bb", 1.0), trial(4, "aa", 2.0), trial(5, "aa", 2.5)]
    assert model_progress(JOB, trials, "cpu:1") == [Point(3, 3.0, 7.0), Point(4, 4.0, 5.0)]


def test_failures_and_other_shares_count_for_nothing_but_the_number_of_trials() -> None:
    trials = [trial(1, "aa", math.inf), trial(2, "aa", 1.0, "cpu:2"), trial(3, "aa", 4.0)]
    assert operator_progress(JOB, trials, "cpu:1", "aa") == [Point(2, 3.0, 4.0)]
    assert model_progress(JOB, trials, "cpu:1") == []


def test_only_new_trials_are_asked_for(server: ScriptedServer) -> None:
    followed = JobTrials("jobs/j1")
    with Client(server.address) as client:
        server.records = [to_proto(record("r1", measured_at=1.0), pb.Record)]
        assert [each.record_id for each in followed.update(client)] == ["r1"]
        server.records = [to_proto(record(f"r{at}", measured_at=float(at)), pb.Record) for at in (3, 2, 1)]
        assert [each.record_id for each in followed.update(client)] == ["r1", "r2", "r3"]
        asked = len(server.filters)
        followed.update(client)
        assert len(server.filters) == asked + 1
    assert {each.job for each in server.filters} == {"jobs/j1"}
