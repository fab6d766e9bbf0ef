"""Machine code of a stranger in the process that measures it: it reaches nothing, and the next one is measured."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune_core.records import Status, TimingPolicy
from fractune_core.shares import Share
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.target import default_target
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession
from fractune_workers.sandboxes import MeasurerLimits
from tests.support.hostile_kernels import ESCAPED, attacks, operator, operators
from tests.support.unoptimized import without_optimization

ARGUMENTS = [["TENSOR", "float32", [1]]] * 2
ONCE = TimingPolicy("once", warmups=0, repeats=1, min_repeat_ms=0)
"""An attack may leave an open file each time."""
WRITING = ("file", "link", "folder")
SECRET = "the secret of the fleet"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text(SECRET)
    (tmp_path / "own").mkdir()
    return tmp_path


@pytest.fixture
def session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MeasurementSession]:
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 3.0)
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    core = sorted(os.sched_getaffinity(0))[:1]
    limits = MeasurerLimits(hidden=[folder / "secret"])
    made = MeasurementSession(Share.parse("cpu:1"), core, lock_dir=folder, limits=limits)
    yield made
    made.stop()


def codes(folder: Path) -> dict[str, bytes]:
    target = default_target(1)
    made = operators(folder / "secret", folder / "own", os.getpid())
    with without_optimization():
        return {name: build_object(module, target) for name, module in made.items()}


def honest() -> bytes:
    return build_object(operator(None), default_target(1))


def test_no_candidate_gets_out_and_each_loses_only_itself(
    session: MeasurementSession, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tried = codes(folder)
    outcomes = session.timed(ArtifactBatch(ARGUMENTS, 0, tried), ONCE)
    assert {name for name, outcome in outcomes.items() if outcome.status is not Status.OK} == {
        *("sleeping", "aborting", "outside")
    }
    assert outcomes["sleeping"].status is Status.RUN_TIMEOUT
    said = capfd.readouterr().err
    assert ESCAPED not in said
    assert SECRET not in said
    assert (folder / "secret").read_text() == SECRET
    assert not list((folder / "own").iterdir())
    assert session.timed(ArtifactBatch(ARGUMENTS, 0, {"honest": honest()}), ONCE)["honest"].status is Status.OK


def test_no_candidate_writes_into_its_own_folder(session: MeasurementSession, folder: Path) -> None:
    session.handshake()
    own = Path(next(iter(session._child._sandbox.writable)))  # type: ignore[union-attr]
    expressions = {name: each for name, each in attacks(folder, own, 1).items() if name in WRITING}
    tried = {name: build_object(operator(each), default_target(1)) for name, each in expressions.items()}
    before = sorted(own.iterdir())
    outcomes = session.timed(ArtifactBatch(ARGUMENTS, 0, tried), ONCE)
    assert [outcome.status for outcome in outcomes.values()] == [Status.OK] * len(WRITING)
    assert sorted(own.iterdir()) == before


def test_no_process_serves_two_tenants(session: MeasurementSession) -> None:
    session.handshake()
    first, pids = session.generation, []
    session.timed(ArtifactBatch(ARGUMENTS, 0, {"honest": honest()}), ONCE)
    assert not session.is_fresh
    for tenant in ("team-a", "team-a", "team-b"):
        session.serve(tenant)
        assert session.is_prepared(None), "the share of the next one is verified before it is wanted"
        pids.append(session.generation)
    assert pids == [first, first, first + 1]
    assert session.is_fresh


def test_the_attacks_are_ones(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a sandbox they succeed."""
    monkeypatch.setattr(session_module, "measurer_sandbox", lambda *_: None)
    made = MeasurementSession(Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=folder)
    names = set(attacks(folder / "secret", folder / "own", os.getpid())) - {"fork", "program", "trace"}
    found = {name: code for name, code in codes(folder).items() if name in names - {"environment", "secret"}}
    try:
        made.timed(ArtifactBatch(ARGUMENTS, 0, found), ONCE)
    finally:
        made.stop()
    said = capfd.readouterr().err
    assert {name for name in found if f"{ESCAPED} {name}" in said} == set(found) - {"group"}
