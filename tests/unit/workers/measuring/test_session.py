"""A session whose child is killed, and the roof that a session gives."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fractune_core.analysis.roofline import Roof
from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share
from fractune_workers.child.errors import TRIES, CallFailed, ChildDied, ChildKilled, ChildTimeout
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import MeasurementSession, TimeOver
from tests.support.hardware.made_up_cgroups import left_by_a_killed_process, made_up_cgroups
from tests.unit.conftest import Small


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
