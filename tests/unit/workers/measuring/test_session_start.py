"""A measurer whose child is killed while it starts goes on; one whose child never lives does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fractune_core.files.bundles import Bundle
from fractune_core.shares import Share
from fractune_workers.child.errors import TRIES, ChildKilled
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import MeasurementSession
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
