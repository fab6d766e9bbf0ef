"""Measurers that share a poisonous device: real children that crash, hang and poison; only the device is simulated."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fractune_core.errors import ShareUnavailable, StateUnusable
from fractune_core.records import VALIDATION_POLICY, Status
from fractune_core.shares import Share
from fractune_workers.calibration.candidates import running
from fractune_workers.calibration.experiment import PooledMeasurer
from fractune_workers.child import Child
from fractune_workers.confinement.cpu import CpuConfinement
from fractune_workers.faults import guard as guard_module
from fractune_workers.faults.fault_state import ArtifactFailure, FaultState, FaultStateFile
from fractune_workers.faults.guard import NoGuard, guard_for
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession, Outcome, artifact_name
from fractune_workers.measuring.validation import validate, validation
from tests.support.children.poison import FOLDER, PoisonConfinement, PoisonDevice
from tests.support.client_samples import bundle_bytes
from tests.support.processes.redis_process import wait_until
from tests.support.processes.worker_processes import alive


class Measurers:
    """Some measurers on one device, each in a thread of its own."""

    def __init__(self, measurers: list[PooledMeasurer], device: PoisonDevice, shared: FaultStateFile) -> None:
        self.pooled, self.device, self.shared = measurers, device, shared

    def child(self, number: int) -> Child:
        return self.pooled[number]._session._child

    def trials(self, number: int, **kernels: str) -> Callable[[], dict[str, Outcome]]:
        measurer = self.pooled[number]
        return measurer.thread.submit(lambda: measurer._session.trials(batch(**kernels))).result

    def validate(self, number: int, **kernels: str) -> dict[str, Outcome]:
        measurer = self.pooled[number]
        return measurer.thread.submit(lambda: validate(measurer._session, batch(**kernels), "untuned")).result()

    def suspect(self, **kernels: str) -> None:
        """As if they had failed beside others."""
        artifacts = tuple(artifact_name(code) for code in batch(**kernels).codes.values())

        def fail(state: FaultState) -> tuple[FaultState, None]:
            running, _ = state.begin("another", artifacts)
            failed, _ = running.fail("another", ArtifactFailure("crashed", "beside others"), spreads=False)
            return failed.leave("another"), None

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
    monkeypatch.setattr(session_module, "confinement_for", PoisonConfinement)
    monkeypatch.setattr(session_module, "_CHILD", "tests.support.children.poison_child")
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 1.0)
    monkeypatch.setattr(session_module, "default_lock_dir", lambda: tmp_path / "gate")
    return PoisonDevice(folder)


@pytest.fixture
def measurers(device: PoisonDevice, tmp_path: Path) -> Iterator[Measurers]:
    """Two of them, ready."""
    with contextlib.ExitStack() as held:
        measurers = [
            held.enter_context(running(PooledMeasurer(Share.parse("mps:25"), [number]))) for number in range(2)
        ]
        handshakes = [measurer.handshake() for measurer in measurers]
        for handshake in handshakes:
            handshake.result()
        shared = FaultStateFile(tmp_path / "gate", f"poison:{device.folder}")
        yield Measurers(measurers, device, shared)


@pytest.mark.parametrize(("does", "says"), [("crash", "SIGSEGV"), ("poison", "illegal memory access")])
def test_a_fault_voids_what_ran_beside_it_and_only_the_guilty_is_blamed(
    measurers: Measurers, does: str, says: str
) -> None:
    beside = measurers.trials(0, innocent="good 0.6", later="good")
    wait_until(lambda: measurers.runs("innocent") == 1)
    guilty = measurers.trials(1, guilty=does, after="good")()
    assert guilty["guilty"].status is Status.CRASHED
    assert says in guilty["guilty"].cause
    assert guilty["guilty"].cause.endswith("it was alone on the device")
    assert guilty["after"].status is Status.OK
    assert {name: outcome.status for name, outcome in beside().items()} == {"innocent": "ok", "later": "ok"}
    assert measurers.runs("guilty") == 2
    assert measurers.device.faulted_alone("guilty")
    assert measurers.runs("innocent") >= 2
    assert measurers.runs("later") >= 1


def test_a_candidate_whose_attempt_was_void_before_it_ran_is_blamed_for_its_only_run_which_is_alone(
    measurers: Measurers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 60.0)
    child, stopped = measurers.child(1), threading.Event()
    call = child.call

    def stopping(method: str, timeout_s: float, **payload: Any) -> Any:
        if method == "race" and not stopped.is_set():
            os.kill(child.pid or 0, signal.SIGSTOP)  # the attempt has begun, and nothing runs
            stopped.set()
        return call(method, timeout_s, **payload)

    monkeypatch.setattr(child, "call", stopping)
    guilty = measurers.trials(1, guilty="crash")
    assert stopped.wait(60)
    assert measurers.trials(0, other="poison")()["other"].status is Status.CRASHED
    assert guilty()["guilty"].cause.endswith("it was alone on the device")
    assert measurers.runs("guilty") == 1
    assert measurers.device.faulted_alone("guilty")


def test_the_guilty_is_not_run_again_anywhere_on_the_device(measurers: Measurers) -> None:
    assert measurers.trials(0, guilty="crash")()["guilty"].status is Status.CRASHED
    ran = measurers.runs("guilty")
    refused = measurers.trials(1, guilty="crash")()["guilty"]
    assert (refused.status, measurers.runs("guilty")) == (Status.CRASHED, ran)
    assert "SIGSEGV" in refused.cause


def test_an_idle_measurer_leaves_too_and_comes_back(measurers: Measurers) -> None:
    idle = measurers.child(0).pid or 0
    guilty = measurers.trials(1, guilty="poison")
    wait_until(lambda: not alive(idle))
    assert guilty()["guilty"].status is Status.CRASHED
    assert measurers.trials(0, innocent="good")()["innocent"].status is Status.OK
    assert measurers.child(0).generation >= 2
    epochs = sum(measurer._session.fault_epochs for measurer in measurers.pooled)
    assert epochs == measurers.shared.look().number >= 1  # each is counted once, by who opens the device again


def test_a_share_that_cannot_be_proved_beside_busy_neighbours_is_proved_alone(
    measurers: Measurers, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_TRIAL_TIMEOUT_S", 60.0)
    measurers.device.crowded.touch()
    measurers.child(0).kill()
    beside = measurers.trials(1, long="until_let_go")
    wait_until(lambda: measurers.runs("long") == 1)
    innocent = measurers.trials(0, innocent="good")
    wait_until(lambda: "CUDA shows 25 SMs, and a kernel ran on 31" in caplog.text)
    measurers.device.let_go.touch()
    assert innocent()["innocent"].status is Status.OK
    assert beside()["long"].status is Status.OK
    assert measurers.runs("long") == 1


def test_a_hang_that_is_released_before_the_kill_disturbs_no_other(measurers: Measurers) -> None:
    hanging = measurers.child(1).pid
    outcome = measurers.trials(1, stuck="hang")()["stuck"]
    assert outcome.status is Status.RUN_TIMEOUT
    assert (measurers.device.folder / f"released-{hanging}").exists()
    assert measurers.child(0).generation == 1
    assert measurers.shared.look() == FaultState(clients=measurers.shared.look().clients)


def test_a_hang_that_cannot_be_released_fails_the_state(measurers: Measurers) -> None:
    measurers.device.rough.touch()
    beside = measurers.trials(0, innocent="good 0.3")
    outcome = measurers.trials(1, stuck="hang")()["stuck"]
    assert outcome.status is Status.RUN_TIMEOUT
    assert beside()["innocent"].status is Status.OK
    assert measurers.shared.look().number >= 1
    assert [verdict.status for verdict in measurers.shared.look().verdicts.values()] == ["run_timeout"]


def test_a_failure_that_harms_no_other_is_looked_at_alone_and_leaves_the_state_open(measurers: Measurers) -> None:
    outcomes = measurers.trials(1, bad="fail", good="good")()
    assert (outcomes["bad"].status, outcomes["good"].status) == (Status.RUN_FAILED, Status.OK)
    assert "invalid launch" in outcomes["bad"].cause
    assert measurers.runs("bad") == 2
    assert measurers.child(0).generation == 1
    assert measurers.shared.look().failure == ""


def test_what_ends_well_and_leaves_the_device_down_is_found_out_when_it_is_alone(measurers: Measurers) -> None:
    # In company it gets away with it, and its neighbour is not blamed.
    assert measurers.trials(0, sneak="sneak")()["sneak"].status is Status.OK
    assert measurers.trials(1, victim="good")()["victim"].status is Status.OK
    # As a suspect it does not.
    measurers.suspect(sneak="sneak")
    outcome = measurers.trials(0, sneak="sneak")()["sneak"]
    assert outcome.status is Status.CRASHED
    assert "left the device unusable" in outcome.cause


def test_waiting_for_a_turn_does_not_count_as_the_calls_time(measurers: Measurers) -> None:
    measurers.suspect(slow="good 0.6")
    slow = measurers.trials(1, slow="good 0.6")
    wait_until(lambda: measurers.runs("slow") == 1)
    assert measurers.trials(0, late="good 0.6")()["late"].status is Status.OK
    assert slow()["slow"].status is Status.OK
    assert (measurers.runs("late"), measurers.shared.look().suspects) == (1, ())


def test_when_interleaved_timing_fails_only_the_guilty_is_blamed(measurers: Measurers) -> None:
    outcomes = measurers.validate(0, good="good", bad="crash_while_interleaved", untuned="good")
    assert {name: outcome.status for name, outcome in outcomes.items()} == {
        "untuned": Status.OK,
        "good": Status.OK,
        "bad": Status.CRASHED,
    }
    assert [len(outcomes[name].run_secs) for name in ("untuned", "good")] == [VALIDATION_POLICY.repeats] * 2
    assert measurers.device.notes("interleaved")[0] == "bad good untuned"


def test_a_finalist_that_crashes_in_its_check_leaves_the_others_to_be_timed(measurers: Measurers) -> None:
    outcomes = measurers.validate(0, first="good", bad="crash", last="good", untuned="good")
    assert {name for name, outcome in outcomes.items() if outcome.status is Status.OK} == {"untuned", "first", "last"}
    assert (outcomes["untuned"].max_error, outcomes["first"].max_error) == (0.0, 1e-6)
    assert measurers.device.notes("interleaved") == ["first last untuned"]


def test_a_validation_that_was_void_is_measured_again_as_a_whole(measurers: Measurers) -> None:
    """When the anchor has drifted, the same batch comes to the same child once more."""
    measurer, same = measurers.pooled[0], batch(untuned="good", other="good")
    first, second = (
        measurer.thread.submit(lambda: validate(measurer._session, same, "untuned")).result() for _ in range(2)
    )
    assert {name: len(outcome.run_secs) for name, outcome in first.items()} == dict.fromkeys(
        ("untuned", "other"), VALIDATION_POLICY.repeats
    )
    assert {name: (outcome.max_error, len(outcome.run_secs)) for name, outcome in second.items()} == {
        "untuned": (0.0, VALIDATION_POLICY.repeats),
        "other": (1e-6, VALIDATION_POLICY.repeats),
    }
    assert measurers.child(0).generation == 1


def test_a_void_validation_checks_again_only_what_its_child_has_lost(measurers: Measurers) -> None:
    measurer, same = measurers.pooled[0], batch(untuned="good", other="good")
    measure = validation(measurer._session, same, "untuned")
    for turn in (1, 2):
        outcomes = measurer.thread.submit(measure).result()
        assert {name: outcome.max_error for name, outcome in outcomes.items()} == {"untuned": 0.0, "other": 1e-6}
        assert len(measurers.device.notes("interleaved")) == turn
        assert len(measurers.device.notes("checked")) == 2
    measurer.thread.submit(measurer._session.forget_batch).result()
    measurer.thread.submit(measure).result()
    assert len(measurers.device.notes("checked")) == 4


def test_without_the_untuned_default_there_is_no_validation(measurers: Measurers) -> None:
    outcomes = measurers.validate(0, untuned="crash", other="good")
    assert (outcomes["untuned"].status, outcomes["other"].status) == (Status.CRASHED, Status.RUN_FAILED)
    assert "nothing to compare with" in outcomes["other"].cause
    assert "SIGSEGV" in outcomes["untuned"].cause
    assert measurers.validate(0, other="good")["other"].status is Status.RUN_FAILED
    assert measurers.validate(0) == {}


def test_a_neighbours_fault_in_the_middle_of_a_validation_changes_nothing_but_time(measurers: Measurers) -> None:
    measurer = measurers.pooled[0]
    final = measurer.thread.submit(
        lambda: validate(measurer._session, batch(untuned="good 0.1", one="good 0.2", two="good 0.1"), "untuned")
    )
    wait_until(lambda: measurers.runs("one") >= 1)
    assert measurers.trials(1, guilty="poison")()["guilty"].status is Status.CRASHED
    outcomes = final.result()
    assert {outcome.status for outcome in outcomes.values()} == {Status.OK}
    assert {name: outcome.max_error for name, outcome in outcomes.items()} == {"untuned": 0.0, "one": 1e-6, "two": 1e-6}


def test_a_device_that_does_not_come_back_is_told_of(measurers: Measurers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "_REOPEN_TIMEOUT_S", 5.0)
    measurers.device.broken.touch()
    with pytest.raises(ShareUnavailable, match=r"down for 5 s after a fault .*SIGSEGV.*: it is not active again"):
        measurers.trials(0, guilty="crash")()


def test_what_serves_the_device_is_started_again_once_every_client_has_left(measurers: Measurers) -> None:
    idle = measurers.child(0).pid or 0
    measurers.device.dead.touch()
    outcomes = measurers.trials(1, bad="fail", good="good")()
    assert (outcomes["bad"].status, outcomes["good"].status) == (Status.RUN_FAILED, Status.OK)
    assert len(measurers.device.notes("restarts")) == 1
    assert not alive(idle)
    assert measurers.trials(0, innocent="good")()["innocent"].status is Status.OK


def test_a_session_that_cannot_begin_gives_its_share_back(
    device: PoisonDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PoisonConfinement, "leave", lambda each: each.device.note("left", str(each.share)))
    lock_dir = tmp_path / "gate"
    lock_dir.write_text("a file where a folder should be")
    with pytest.raises(StateUnusable):
        MeasurementSession(Share.parse("mps:25"), [0])
    assert device.notes("left") == ["mps:25"]


def test_a_member_that_dies_during_an_attempt_holds_no_other_up(measurers: Measurers, tmp_path: Path) -> None:
    held = measurers.shared.join()
    measurers.suspect(innocent="good")
    measurers.shared.change(lambda state: state.begin(held.name, ("of the dead",)))
    waiting = measurers.trials(0, innocent="good")
    wait_until(lambda: measurers.shared.look().waiting)
    assert not measurers.runs("innocent")
    held.end()
    assert waiting()["innocent"].status is Status.OK
    state = measurers.shared.look()
    assert (state.number, state.suspects) == (1, ("of the dead",))
    assert not list((tmp_path / "gate").glob(f"device-*/member-{held.name}"))


def test_a_child_that_dies_between_measurements_is_replaced(measurers: Measurers) -> None:
    pid = measurers.child(0).pid or 0
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not alive(pid))
    assert measurers.trials(0, innocent="good")()["innocent"].status is Status.OK
    assert measurers.shared.look().number == 0


def test_no_member_is_left_behind(device: PoisonDevice, tmp_path: Path) -> None:
    with running(PooledMeasurer(Share.parse("mps:25"), [0])) as measurer:
        measurer.handshake().result()
    assert FaultStateFile(tmp_path / "gate", f"poison:{device.folder}").look().members == frozenset()
    assert list((tmp_path / "gate").glob("device-*/member-*")) == []


def test_a_cpu_share_needs_no_guard(tmp_path: Path) -> None:
    confinement = CpuConfinement(Share.parse("cpu:1"))
    assert isinstance(guard_for(Child("tests.support.children.child_module"), confinement, tmp_path), NoGuard)
    assert list(tmp_path.iterdir()) == []
    assert confinement.is_active()
    assert confinement.before_kill(1)


def test_the_file_of_the_version_before_is_passed_over(tmp_path: Path) -> None:
    shared = FaultStateFile(tmp_path, "GPU-1/2")
    (tmp_path / "device-GPU-1_2" / "epoch.json").write_text('{"number": 3, "failure": "", "flights": {}}')
    assert shared.look() == FaultState()


def test_a_file_of_another_version_is_refused(tmp_path: Path) -> None:
    shared = FaultStateFile(tmp_path, "GPU-1/2")
    (tmp_path / "device-GPU-1_2" / "state.json").write_text('{"version": 0}')
    with pytest.raises(
        StateUnusable, match=r"this version of fractune cannot read .*; end the measurers of device GPU-1/2"
    ):
        shared.look()


def test_a_folder_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gate").write_text("a file")
    with pytest.raises(StateUnusable, match="name another one by --lock-dir"):
        FaultStateFile(tmp_path / "gate", "GPU-1")


def test_the_time_of_a_whole_model_is_taken_alone(measurers: Measurers, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(bundle_bytes())
    measurer = measurers.pooled[0]
    timed: Any = measurer.thread.submit(lambda: measurer._session.time_model(path)).result()
    assert timed["max_error"] == {"untuned": 0.0}
