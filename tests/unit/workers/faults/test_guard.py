"""Benches that share a poisonous device: real children that crash, hang and poison; only the device is simulated."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import ShareUnavailable, StateUnusable
from fractune_core.records import Status
from fractune_core.shares import Share
from fractune_workers.calibration.child_thread import running
from fractune_workers.calibration.measurer_pool import PooledMeasurer
from fractune_workers.child import Child
from fractune_workers.confinement.cpu import CpuConfinement
from fractune_workers.faults import guard as fate_module
from fractune_workers.faults.fault_state import FaultState, Verdict
from fractune_workers.faults.fault_state_file import FaultStateFile
from fractune_workers.faults.guard import IsolatedGuard, guard_for
from fractune_workers.measuring import session as bench_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome
from tests.support.poison import FOLDER, PoisonConfinement, PoisonDevice
from tests.support.redis_process import wait_until
from tests.support.worker_processes import alive


class Benches:
    """Some measurers_at on one device, each in a thread of its own."""

    def __init__(self, measurers: list[PooledMeasurer], device: PoisonDevice, shared: FaultStateFile) -> None:
        self.measurers, self.device, self.shared = measurers, device, shared

    def child(self, number: int) -> Child:
        return self.measurers[number]._bench._child

    def trials(self, number: int, **kernels: str) -> Callable[[], dict[str, Outcome]]:
        return self.measurers[number].time(batch(**kernels), None).result

    def final(self, number: int, **kernels: str) -> dict[str, Outcome]:
        measurer = self.measurers[number]
        return measurer.owner.submit(lambda: measurer._bench.final(batch(**kernels), "untuned")).result()

    def suspect(self, **kernels: str) -> None:
        """As if they had failed beside others."""
        artifacts = tuple(bench_module._named(code) for code in batch(**kernels).codes.values())

        def fail(state: FaultState) -> tuple[FaultState, None]:
            flying, _ = state.begin("somebody", artifacts)
            failed, _ = flying.fail("somebody", Verdict("crashed", "beside others"), spreads=False)
            return failed.leave("somebody"), None

        self.shared.change(fail)

    def runs(self, identity: str) -> int:
        return self.device.notes("runs").count(identity)


def batch(**kernels: str) -> ArtifactBatch:
    """`name="what it does"`, or `name="good 0.5"` with the seconds that it takes."""
    codes = {}
    for name, text in kernels.items():
        do, _, secs = text.partition(" ")
        codes[name] = json.dumps({"id": name, "do": do, "secs": float(secs or 0)}).encode()
    return ArtifactBatch([["TENSOR", "float32", [1]]], 0, codes)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PoisonDevice:
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv(FOLDER, str(folder))
    monkeypatch.setattr(bench_module, "confinement_for", PoisonConfinement)
    monkeypatch.setattr(bench_module, "_CHILD", "tests.support.poison_child")
    monkeypatch.setattr(bench_module, "_TRIAL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(bench_module, "default_lock_dir", lambda: tmp_path / "gate")
    return PoisonDevice(folder)


@pytest.fixture
def measurers_at(device: PoisonDevice, tmp_path: Path) -> Iterator[Benches]:
    """Two of them, ready."""
    with contextlib.ExitStack() as held:
        measurers = [
            held.enter_context(running(PooledMeasurer(Share.parse("mps:25"), [number]))) for number in range(2)
        ]
        handshakes = [measurer.handshake() for measurer in measurers]
        for handshake in handshakes:
            handshake.result()
        shared = FaultStateFile(tmp_path / "gate", f"poison:{device.folder}")
        yield Benches(measurers, device, shared)


@pytest.mark.parametrize(("does", "says"), [("crash", "SIGSEGV"), ("poison", "illegal memory access")])
def test_a_fault_voids_what_ran_beside_it_and_only_the_guilty_is_blamed(measurers_at: Benches, does: str, says: str) -> None:
    beside = measurers_at.trials(0, innocent="good 0.6", later="good")
    wait_until(lambda: measurers_at.runs("innocent") == 1)
    guilty = measurers_at.trials(1, guilty=does, after="good")()
    assert guilty["guilty"].status is Status.CRASHED
    assert says in guilty["guilty"].cause
    assert guilty["guilty"].cause.endswith("it was alone on the device")
    assert guilty["after"].status is Status.OK
    assert {name: outcome.status for name, outcome in beside().items()} == {"innocent": "ok", "later": "ok"}
    assert measurers_at.runs("guilty") == 2
    assert measurers_at.runs("innocent") >= 2
    assert measurers_at.runs("later") >= 1


def test_the_guilty_is_not_run_again_anywhere_on_the_device(measurers_at: Benches) -> None:
    assert measurers_at.trials(0, guilty="crash")()["guilty"].status is Status.CRASHED
    ran = measurers_at.runs("guilty")
    refused = measurers_at.trials(1, guilty="crash")()["guilty"]
    assert (refused.status, measurers_at.runs("guilty")) == (Status.CRASHED, ran)
    assert "SIGSEGV" in refused.cause


def test_who_sits_idle_leaves_too_and_comes_back(measurers_at: Benches) -> None:
    idle = measurers_at.child(0).pid or 0
    guilty = measurers_at.trials(1, guilty="poison")
    wait_until(lambda: not alive(idle))
    assert guilty()["guilty"].status is Status.CRASHED
    assert measurers_at.trials(0, innocent="good")()["innocent"].status is Status.OK
    assert measurers_at.child(0).generation >= 2


def test_a_hang_that_is_released_before_the_kill_disturbs_nobody(measurers_at: Benches) -> None:
    hanging = measurers_at.child(1).pid
    outcome = measurers_at.trials(1, stuck="hang")()["stuck"]
    assert outcome.status is Status.RUN_TIMEOUT
    assert (measurers_at.device.folder / f"released-{hanging}").exists()
    assert measurers_at.child(0).generation == 1
    assert measurers_at.shared.look() == FaultState(clients=measurers_at.shared.look().clients)


def test_a_hang_that_cannot_be_released_ends_the_epoch(measurers_at: Benches) -> None:
    measurers_at.device.rough.touch()
    beside = measurers_at.trials(0, innocent="good 0.3")
    outcome = measurers_at.trials(1, stuck="hang")()["stuck"]
    assert outcome.status is Status.RUN_TIMEOUT
    assert beside()["innocent"].status is Status.OK
    assert measurers_at.shared.look().number >= 1
    assert [verdict.status for verdict in measurers_at.shared.look().verdicts.values()] == ["run_timeout"]


def test_a_failure_that_harms_nobody_is_looked_at_alone_and_ends_no_epoch(measurers_at: Benches) -> None:
    outcomes = measurers_at.trials(1, bad="fail", good="good")()
    assert (outcomes["bad"].status, outcomes["good"].status) == (Status.RUN_FAILED, Status.OK)
    assert "invalid launch" in outcomes["bad"].cause
    assert measurers_at.runs("bad") == 2
    assert measurers_at.child(0).generation == 1
    assert measurers_at.shared.look().failure == ""


def test_what_ends_well_and_leaves_the_device_down_is_found_out_when_it_is_alone(measurers_at: Benches) -> None:
    # In company it gets away with it, and its neighbour is not blamed.
    assert measurers_at.trials(0, sneak="sneak")()["sneak"].status is Status.OK
    assert measurers_at.trials(1, victim="good")()["victim"].status is Status.OK
    # As a suspect it does not.
    measurers_at.suspect(sneak="sneak")
    outcome = measurers_at.trials(0, sneak="sneak")()["sneak"]
    assert outcome.status is Status.CRASHED
    assert "left the device unusable" in outcome.cause


def test_waiting_for_a_turn_does_not_count_as_the_calls_time(measurers_at: Benches) -> None:
    measurers_at.suspect(slow="good 0.8")
    slow = measurers_at.trials(1, slow="good 0.8")
    wait_until(lambda: measurers_at.runs("slow") == 1)
    assert measurers_at.trials(0, late="good 0.5")()["late"].status is Status.OK
    assert slow()["slow"].status is Status.OK
    assert (measurers_at.runs("late"), measurers_at.shared.look().suspects) == (1, ())


def test_of_a_contest_that_fails_only_the_guilty_is_blamed(measurers_at: Benches) -> None:
    outcomes = measurers_at.final(0, good="good", bad="crash_in_a_contest", untuned="good")
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "untuned": Status.OK,
        "good": Status.OK,
        "bad": Status.CRASHED,
    }
    assert [len(outcomes[name].run_secs) for name in ("untuned", "good")] == [7, 7]
    assert measurers_at.device.notes("contests")[0] == "bad good untuned"


def test_a_contestant_that_crashes_in_its_check_leaves_the_others_a_contest(measurers_at: Benches) -> None:
    outcomes = measurers_at.final(0, first="good", bad="crash", last="good", untuned="good")
    assert {name for name, outcome in outcomes.items() if outcome.status is Status.OK} == {"untuned", "first", "last"}
    assert (outcomes["untuned"].max_error, outcomes["first"].max_error) == (0.0, 1e-6)
    assert measurers_at.device.notes("contests") == ["first last untuned"]


def test_a_final_that_was_void_is_measured_again_as_a_whole(measurers_at: Benches) -> None:
    """When the anchor has drifted, the same batch comes to the same child once more."""
    measurer, same = measurers_at.measurers[0], batch(untuned="good", other="good")
    first, second = (measurer.owner.submit(lambda: measurer._bench.final(same, "untuned")).result() for _ in range(2))
    assert {name: len(outcome.run_secs) for name, outcome in first.items()} == {"untuned": 7, "other": 7}
    assert {name: (outcome.max_error, len(outcome.run_secs)) for name, outcome in second.items()} == {
        "untuned": (0.0, 7),
        "other": (1e-6, 7),
    }
    assert measurers_at.child(0).generation == 1


def test_without_the_untuned_default_there_is_no_final(measurers_at: Benches) -> None:
    outcomes = measurers_at.final(0, untuned="crash", other="good")
    assert (outcomes["untuned"].status, outcomes["other"].status) == (Status.CRASHED, Status.RUN_FAILED)
    assert "nothing to compare with" in outcomes["other"].cause
    assert "SIGSEGV" in outcomes["untuned"].cause
    assert measurers_at.final(0, other="good")["other"].status is Status.RUN_FAILED
    assert measurers_at.final(0) == {}


def test_a_neighbours_fault_in_the_middle_of_a_final_changes_nothing_but_time(measurers_at: Benches) -> None:
    measurer = measurers_at.measurers[0]
    final = measurer.owner.submit(
        lambda: measurer._bench.final(batch(untuned="good 0.1", one="good 0.2", two="good 0.1"), "untuned")
    )
    wait_until(lambda: measurers_at.runs("one") >= 1)
    assert measurers_at.trials(1, guilty="poison")()["guilty"].status is Status.CRASHED
    outcomes = final.result()
    assert {outcome.status for outcome in outcomes.values()} == {Status.OK}
    assert {name: outcome.max_error for name, outcome in outcomes.items()} == {"untuned": 0.0, "one": 1e-6, "two": 1e-6}


def test_a_device_that_does_not_come_back_is_told_of(measurers_at: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fate_module, "_REOPEN_TIMEOUT_S", 0.5)
    measurers_at.device.broken.touch()
    with pytest.raises(ShareUnavailable, match=r"down for 0\.5 s after a fault .*SIGSEGV.*: it is not active again"):
        measurers_at.trials(0, guilty="crash")()


def test_what_serves_the_device_is_brought_back_once_everybody_has_left(measurers_at: Benches) -> None:
    idle = measurers_at.child(0).pid or 0
    measurers_at.device.dead.touch()
    outcomes = measurers_at.trials(1, bad="fail", good="good")()
    assert (outcomes["bad"].status, outcomes["good"].status) == (Status.RUN_FAILED, Status.OK)
    assert len(measurers_at.device.notes("revivals")) == 1
    assert not alive(idle)
    assert measurers_at.trials(0, innocent="good")()["innocent"].status is Status.OK


def test_a_bench_that_cannot_begin_gives_its_share_back(
    device: PoisonDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoisonConfinement, "leave", lambda each: each.device.note("left", str(each.share)))
    meeting_place = tmp_path / "gate"
    meeting_place.write_text("a file where a folder should be")
    with pytest.raises(StateUnusable):
        MeasurementSession(Share.parse("mps:25"), [0])
    assert device.notes("left") == ["mps:25"]


def test_a_member_that_dies_in_flight_holds_nobody_up(measurers_at: Benches, tmp_path: Path) -> None:
    held = measurers_at.shared.join()
    measurers_at.suspect(innocent="good")
    measurers_at.shared.change(lambda state: state.begin(held.name, ("of the dead",)))
    waiting = measurers_at.trials(0, innocent="good")
    wait_until(lambda: measurers_at.shared.look().waiting)
    assert not measurers_at.runs("innocent")
    held.end()
    assert waiting()["innocent"].status is Status.OK
    state = measurers_at.shared.look()
    assert (state.number, state.suspects) == (1, ("of the dead",))
    assert not list((tmp_path / "gate").glob(f"device-*/member-{held.name}"))


def test_a_child_that_dies_between_measurements_is_replaced(measurers_at: Benches) -> None:
    pid = measurers_at.child(0).pid or 0
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    assert measurers_at.trials(0, innocent="good")()["innocent"].status is Status.OK
    assert measurers_at.shared.look().number == 0


def test_nobody_is_left_behind(device: PoisonDevice, tmp_path: Path) -> None:
    with running(PooledMeasurer(Share.parse("mps:25"), [0])) as measurer:
        measurer.handshake().result()
    assert FaultStateFile(tmp_path / "gate", f"poison:{device.folder}").look().members == frozenset()
    assert list((tmp_path / "gate").glob("device-*/member-*")) == []


def test_a_cpu_share_has_its_own_fate(tmp_path: Path) -> None:
    confinement = CpuConfinement(Share.parse("cpu:1"))
    fate = guard_for(Child("tests.support.child_module"), confinement, tmp_path)
    assert isinstance(fate, IsolatedGuard)
    assert list(tmp_path.iterdir()) == []
    assert confinement.is_active()
    assert confinement.before_kill(1)


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    shared = FaultStateFile(tmp_path, "GPU-1/2")
    (tmp_path / "device-GPU-1_2" / "state.json").write_text('{"version": 0}')
    with pytest.raises(StateUnusable, match=r"is no state of this version .*; end the measurers of device GPU-1/2"):
        shared.look()


def test_a_folder_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("a file")
    with pytest.raises(StateUnusable, match="name another one by --gate"):
        FaultStateFile(tmp_path / "gate", "GPU-1")


def test_the_time_of_a_whole_model_is_taken_alone(measurers_at: Benches, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(b"a bundle")
    measurer = measurers_at.measurers[0]
    timed: Any = measurer.owner.submit(lambda: measurer._bench.time_model(path)).result()
    assert timed["max_error"] == {"untuned": 0.0}
