"""A session whose child is killed, the roof that a session gives, and a session for a cold cache."""

import math
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fractune_core.analysis.roofline import Roof
from fractune_core.files.bundles import Bundle
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
from fractune_workers.child.errors import TRIES, CallFailed, ChildDied, ChildKilled, ChildTimeout
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, TimeOver
from fractune_workers.measuring.validation import validate, validation
from tests.support.hardware.made_up_cgroups import left_by_a_killed_process, made_up_cgroups
from tests.support.real_bundle import Small


class MortalChild:
    """Killed from outside the first times that it is started."""

    kills = 0

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.pid: int | None = None
        self.generation = 0

    def ensure(self) -> int:
        self.generation += 1
        if self.generation <= self.kills:
            raise ChildKilled("the child was killed by SIGKILL")
        self.pid = 1
        return self.generation

    def call(self, *_args: Any, **_payload: Any) -> dict[str, Any]:
        return {"device": "a device"}

    def stop(self) -> None: ...


@pytest.mark.parametrize("kills", [0, TRIES - 1, TRIES])
def test_the_handshake_of_a_child_that_is_killed_is_done_again(monkeypatch: pytest.MonkeyPatch, kills: int) -> None:
    monkeypatch.setattr(session_module, "Child", MortalChild)
    monkeypatch.setattr(MortalChild, "kills", kills)
    session = MeasurementSession(Share.parse("cpu:1"), [0])
    if kills < TRIES:
        session.handshake()
        assert session.device_info == {"device": "a device"}
    else:
        with pytest.raises(ChildKilled, match=f"{TRIES} times in a row"):
            session.handshake()
    session.stop()


def test_a_session_removes_cgroups_of_killed_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cgroups = made_up_cgroups(tmp_path)
    left = left_by_a_killed_process(cgroups)
    monkeypatch.setattr(session_module, "LimitCgroups", lambda: cgroups)
    monkeypatch.setattr(session_module, "Child", MortalChild)
    MeasurementSession(Share.parse("cpu:1"), [0]).stop()
    assert not left.exists()


ROOF = Roof(100.0, 10.0, 1 << 25)


class RoofChild:
    """Answers as a measurer's child does; `answer` is its roof, or the error that comes instead."""

    answer: Any = None

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.pid, self.generation = 1, 1

    def ensure(self) -> int:
        return self.generation

    def stop(self) -> None: ...

    def call(self, method: str, _timeout_s: float) -> Any:
        if method == "roof" and isinstance(self.answer, Exception):
            raise self.answer
        return self.answer if method == "roof" else {}


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasurementSession:
    monkeypatch.setattr(session_module, "Child", RoofChild)
    return MeasurementSession(Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path)


def test_the_roof_is_what_the_child_measured(session: MeasurementSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RoofChild, "answer", ROOF.to_json())
    assert session.roof() == ROOF


@pytest.mark.parametrize("answer", [CallFailed("no memory"), ChildDied("killed"), ChildTimeout("too slow")])
def test_what_cannot_be_measured_is_not_known(
    session: MeasurementSession, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    monkeypatch.setattr(RoofChild, "answer", answer)
    assert session.roof() is None


def test_of_a_gpu_the_launch_floor_is_asked_for(session: MeasurementSession, monkeypatch: pytest.MonkeyPatch) -> None:
    floor = Roof(0.0, 0.0, 0, launch_s=3.2e-6)
    monkeypatch.setattr(RoofChild, "answer", floor.to_json())
    monkeypatch.setattr(MeasurementSession, "gpu_uuid", property(lambda _: "GPU-1"))
    assert session.roof() == floor


def test_a_call_that_the_end_of_the_time_cuts_off_blames_no_candidate(
    session: MeasurementSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RoofChild, "answer", ChildTimeout("too slow"))
    session.end_s = time.monotonic() + 5.0
    with pytest.raises(TimeOver):
        session.roof()
    session.end_s = time.monotonic() + 60.0
    assert session.roof() is None  # its own time was shorter
    session.end_s = time.monotonic() - 1.0
    monkeypatch.setattr(RoofChild, "answer", ROOF.to_json())
    with pytest.raises(TimeOver):
        session.roof()


@pytest.mark.parametrize(
    ("untuned_s", "share", "most_s"),
    [(0.01, "cpu:1", 400), (0.01, "cpu:500m", 1000), (1.0, "cpu:1", 700), (100.0, "cpu:1", 2700), (0.0, "cpu:1", 2700)],
)
def test_a_bundle_that_never_ends_holds_a_worker_by_the_times_of_its_operators(
    small: Small, monkeypatch: pytest.MonkeyPatch, untuned_s: float, share: str, most_s: float
) -> None:
    """Not by those of the slowest model, which are for a bundle without known times."""
    given = list[float]()
    monkeypatch.setattr(Bundle, "untuned_sum_s", lambda *_: untuned_s)
    monkeypatch.setattr(MeasurementSession, "run", lambda _, codes, batch, run, **__: run())  # noqa: ARG005
    monkeypatch.setattr(MeasurementSession, "call", lambda _, method, timeout_s, **__: given.append(timeout_s))  # noqa: ARG005
    session = MeasurementSession(Share.parse(share), [0])
    session.time_model(small.bundle)
    session.stop()
    assert 0.5 * most_s < given[0] <= most_s


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
    cold_session = MeasurementSession(
        Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path, cache=cache
    )
    batch = ArtifactBatch([["TENSOR", "float32", [1]]], 0, {"a": b"a"})
    trial = cold_session.trials(batch, 1.0)["a"]
    final = validate(cold_session, batch, "a")["a"]
    asked = [TimingPolicy.from_json(each) for each in NotedChild.asked]
    assert asked == [with_cache(policy, cache) for policy in (FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY)]
    assert (trial.policy, final.policy) == (asked[1], asked[2])


@pytest.fixture
def cold_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MeasurementSession:
    monkeypatch.setattr(session_module, "Child", NotedChild)
    return MeasurementSession(Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path)


def test_a_candidate_without_a_competitor_gets_the_first_timing_only(cold_session: MeasurementSession) -> None:
    one, two = (ArtifactBatch(_ARGS, 0, dict.fromkeys(names, b"")) for names in ("a", "ab"))
    for batch, best_s, rungs in ((one, math.inf, 1), (one, 1.0, 2), (two, math.inf, 4)):
        NotedChild.asked.clear()
        cold_session.trials(batch, best_s)
        assert len(NotedChild.asked) == rungs


def test_a_batch_may_set_the_length_of_repeats_over_a_warm_cache(cold_session: MeasurementSession) -> None:
    validate(cold_session, ArtifactBatch(_ARGS, 0, {"a": b""}, repeat_ms=2.0), "a")
    assert TimingPolicy.from_json(NotedChild.asked[-1]) == replace(VALIDATION_POLICY, min_repeat_ms=2.0)
    cold = with_cache(VALIDATION_POLICY, COLD)
    assert ArtifactBatch(_ARGS, 0, {}, repeat_ms=2.0).repeated(cold) == cold


def test_a_check_may_take_longer_for_the_untuned_default(
    cold_session: MeasurementSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large convolution takes 10 s of CPU time in it, and more on a core that others use too."""
    limits_s, call = list[tuple[str, float]](), NotedChild.call

    def noted(self: NotedChild, method: str, timeout_s: float, **payload: Any) -> Any:
        if method == "check":
            limits_s.append((payload["name"], timeout_s))
        return call(self, method, timeout_s, **payload)

    monkeypatch.setattr(NotedChild, "call", noted)
    validate(cold_session, ArtifactBatch(_ARGS, 0, {"a": b"", "untuned": b""}), "untuned")
    assert limits_s == [("untuned", 600.0), ("a", 60.0)]


def test_a_wrong_finalist_is_wrong_in_each_timing_of_a_validation(cold_session: MeasurementSession) -> None:
    measure = validation(cold_session, ArtifactBatch(_ARGS, 0, {"a": b"", "wrong": b""}), "a")
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
    cold_session: MeasurementSession, untuned: str, right: set[str], wrong: set[str]
) -> None:
    """Where the default is, there is nothing to compare with."""
    outcomes = validate(cold_session, ArtifactBatch(_ARGS, 0, dict.fromkeys(right | wrong, b"")), untuned)
    assert {name for name, outcome in outcomes.items() if outcome.status is Status.OK} == right
    if not right:
        assert outcomes[untuned].status is Status.WRONG_OUTPUT
        assert "nothing to compare with" in outcomes["near"].cause


def test_the_anchor_between_two_batches_is_timed_once(
    cold_session: MeasurementSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, made = [50.0], list[float]()
    monkeypatch.setattr("fractune_workers.measuring.session.time.monotonic", lambda: now_s[0])

    def ratio(method: str, *_: Any) -> float:
        if method == "anchor":
            made.append(now_s[0])
        return 1.0

    monkeypatch.setattr(cold_session, "call", ratio)
    assert cold_session.anchor_before() == 1.0
    cold_session.anchor()
    now_s[0] += 1.5
    cold_session.anchor_before()
    now_s[0] += 1.5
    cold_session.anchor_before()
    cold_session._child.generation += 1
    cold_session.anchor_before()
    assert made == [50.0, 50.0, 53.0, 53.0]
