"""A session gives its share's roof, of a GPU too, and never an error for it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from fractune_core.analysis.roofline import Roof
from fractune_core.shares import Share
from fractune_workers.child.errors import CallFailed, ChildDied, ChildTimeout
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import MeasurementSession, TimeOver

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
