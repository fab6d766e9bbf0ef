"""A session that was started for a cold cache asks its child for nothing else."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fractune_core.records import (
    COLD,
    FIRST_POLICY,
    TRIAL_POLICY,
    VALIDATION_POLICY,
    WARM,
    Status,
    TimingPolicy,
    with_cache,
)
from fractune_core.shares import Share
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession
from fractune_workers.measuring.validation import validate, validation

_ARGS = [["TENSOR", "float32", [1]]]
_ERRORS = {"near": 0.9e-3, "beyond": 1.1e-3, "far": 2.1e-3}
"""differences to a reference in float32, by name; 1e-3 is allowed"""


class NotedChild:
    """Answers as a measurer's child does, and keeps what policies it was given."""

    asked: list[dict[str, Any]]

    def __init__(self, *_args: Any, **_options: Any) -> None:
        NotedChild.asked = []
        self.pid, self.generation = 1, 1

    def ensure(self) -> int:
        return self.generation

    def stop(self) -> None: ...

    def call(self, method: str, _timeout_s: float, **payload: Any) -> Any:
        if method == "race":
            self.asked += payload["policies"]
            return {"policy": payload["policies"][-1], "run_secs": [1e-3] * 3}
        if method == "time_interleaved":
            self.asked.append(payload["policy"])
            names = payload["names"]
            values = {"policy": payload["policy"], "run_secs": [1e-3] * 3, "cpu_secs": 2e-3}
            return {name: dict.fromkeys(names, value) for name, value in values.items()}
        if method != "check":
            return {}
        name = payload["name"]
        wrong = name == "wrong"
        error = _ERRORS.get(name, float(wrong))
        return {"max_error": error, "beyond_ties": error, "steps": 3 * wrong, "moved": 0.25 * wrong, "allowed": 1e-3}


@pytest.mark.parametrize("cache", [WARM, COLD])
def test_every_policy_is_for_the_cache_of_the_session(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "Child", NotedChild)
    session = MeasurementSession(
        Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path, cache=cache
    )
    batch = ArtifactBatch([["TENSOR", "float32", [1]]], 0, {"a": b"a"})
    trial = session.trials(batch, 1.0)["a"]
    final = validate(session, batch, "a")["a"]
    asked = [TimingPolicy.from_json(each) for each in NotedChild.asked]
    assert asked == [with_cache(policy, cache) for policy in (FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY)]
    assert (trial.policy, final.policy) == (asked[1], asked[2])


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasurementSession:
    monkeypatch.setattr(session_module, "Child", NotedChild)
    return MeasurementSession(Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path)


def test_a_candidate_without_a_competitor_gets_the_first_timing_only(session: MeasurementSession) -> None:
    one, two = (ArtifactBatch(_ARGS, 0, dict.fromkeys(names, b"")) for names in ("a", "ab"))
    for batch, best_s, rungs in ((one, math.inf, 1), (one, 1.0, 2), (two, math.inf, 4)):
        NotedChild.asked.clear()
        session.trials(batch, best_s)
        assert len(NotedChild.asked) == rungs


def test_a_batch_may_set_the_length_of_repeats_over_a_warm_cache(session: MeasurementSession) -> None:
    validate(session, ArtifactBatch(_ARGS, 0, {"a": b""}, repeat_ms=2.0), "a")
    assert TimingPolicy.from_json(NotedChild.asked[-1]) == replace(VALIDATION_POLICY, min_repeat_ms=2.0)
    cold = with_cache(VALIDATION_POLICY, COLD)
    assert ArtifactBatch(_ARGS, 0, {}, repeat_ms=2.0).repeated(cold) == cold


def test_a_check_may_take_longer_for_the_untuned_default(
    session: MeasurementSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large convolution takes 10 s of CPU time in it, and more on a core that others use too."""
    limits_s, call = list[tuple[str, float]](), NotedChild.call

    def noted(self: NotedChild, method: str, timeout_s: float, **payload: Any) -> Any:
        if method == "check":
            limits_s.append((payload["name"], timeout_s))
        return call(self, method, timeout_s, **payload)

    monkeypatch.setattr(NotedChild, "call", noted)
    validate(session, ArtifactBatch(_ARGS, 0, {"a": b"", "untuned": b""}), "untuned")
    assert limits_s == [("untuned", 600.0), ("a", 60.0)]


def test_a_wrong_finalist_is_wrong_in_each_timing_of_a_validation(session: MeasurementSession) -> None:
    measure = validation(session, ArtifactBatch(_ARGS, 0, {"a": b"", "wrong": b""}), "a")
    for _ in range(2):
        statuses = {name: outcome.status for name, outcome in measure().items()}
        assert statuses == {"a": Status.OK, "wrong": Status.WRONG_OUTPUT}


@pytest.mark.parametrize(
    ("untuned", "right", "wrong"),
    [
        ("near", {"near"}, {"beyond", "far"}),
        ("beyond", set[str](), {"beyond", "near", "far"}),
    ],
)
def test_no_finalist_nor_the_untuned_default_is_further_from_the_reference_than_allowed(
    session: MeasurementSession, untuned: str, right: set[str], wrong: set[str]
) -> None:
    """Where the default is, there is nothing to compare with."""
    outcomes = validate(session, ArtifactBatch(_ARGS, 0, dict.fromkeys(right | wrong, b"")), untuned)
    assert {name for name, outcome in outcomes.items() if outcome.status is Status.OK} == right
    if not right:
        assert outcomes[untuned].status is Status.WRONG_OUTPUT
        assert "nothing to compare with" in outcomes["near"].cause


def test_the_anchor_between_two_batches_is_timed_once(
    session: MeasurementSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, made = [50.0], list[float]()
    monkeypatch.setattr("fractune_workers.measuring.session.time.monotonic", lambda: now_s[0])

    def ratio(method: str, *_: Any) -> float:
        if method == "anchor":
            made.append(now_s[0])
        return 1.0

    monkeypatch.setattr(session, "call", ratio)
    assert session.anchor_before() == 1.0
    session.anchor()
    now_s[0] += 1.5
    session.anchor_before()
    now_s[0] += 1.5
    session.anchor_before()
    session._child.generation += 1
    session.anchor_before()
    assert made == [50.0, 50.0, 53.0, 53.0]
