"""Which measurements count, and what their records say of the conditions."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from fractune_core.records import Disturbance, Status
from fractune_core.shares import Share
from fractune_workers.gpu.nvml import UNKNOWN_CLOCKS, Clocks, GpuClock, NvidiaMl
from fractune_workers.measuring.session import (
    ATTEMPTS,
    DRIFT_ALLOWED,
    LOSS_ALLOWED,
    ONE_CORE_LOSS_ALLOWED,
    VOIDING,
    Conditions,
    MeasurementSession,
    Outcome,
    measure_stable,
)
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_nvml import LIBRARY_NOT_FOUND, SimulatedNvml

REASONS = ("sw_power_cap", "sw_thermal", "hw_thermal", "hw_power_brake")


@dataclass(frozen=True)
class Attempt:
    """What happens around one run."""

    before: float = 1.0
    after: float = 1.0
    died: bool = False
    """the child is another one afterwards"""
    mhz: tuple[int, int] = (1980, 1980)
    throttled: tuple[str, ...] = ()
    lost: float | None = None
    """the part of the time in which the threads were kept from their cores; None = not counted"""

    @property
    def counts(self) -> bool:
        drifted = bool(self.before and self.after) and abs(self.after / self.before - 1) > DRIFT_ALLOWED
        disturbed = (self.lost or 0.0) > LOSS_ALLOWED
        return not (drifted and not self.died) and not VOIDING & set(self.throttled) and not disturbed


class Session:
    """Goes through the attempts; its runs are numbered from 1."""

    def __init__(self, attempts: Sequence[Attempt]) -> None:
        self.loss_allowed = LOSS_ALLOWED
        self.attempts = attempts
        self.runs = 0
        self.generation = 1
        self._throttled_ns = dict.fromkeys(REASONS, 5)
        self._anchors = iter([ratio for each in attempts for ratio in (each.before, each.after)])
        self._mhz: Iterator[int] = iter([mhz for each in attempts for mhz in each.mhz])

    def anchor(self) -> float:
        return next(self._anchors)

    anchor_before = anchor

    def clocks(self) -> Clocks:
        return Clocks(next(self._mhz), dict(self._throttled_ns))

    def run(self) -> dict[str, Outcome]:
        """Two candidates, of which the second was disturbed, and that twice as much."""
        attempt = self.attempts[self.runs]
        self.runs += 1
        self.generation += attempt.died
        for reason in attempt.throttled:
            self._throttled_ns[reason] += 1000
        if attempt.lost is None:
            return {"c": Outcome(Status.OK, cause=str(self.runs))}
        parts = (0.0, 2 * attempt.lost)
        return {f"c{part}": Outcome(Status.OK, str(self.runs), disturbance=of_lost(part)) for part in parts}

    def measured(self) -> tuple[int, Conditions]:
        """The number of the run that was taken, and its conditions."""
        outcomes, conditions = measure_stable(self, self.clocks, self.run)
        (number,) = {outcome.cause for outcome in outcomes.values()}
        return int(number), conditions


def of_lost(part: float) -> Disturbance:
    return Disturbance(1.0, part, 0.0, 0.0, 0.0, preemptions=0, throttles=0, throttled_s=0.0)


attempts = st.builds(
    Attempt,
    before=st.sampled_from([0.0, 0.9, 1.0, 1.2]),
    after=st.sampled_from([0.0, 0.9, 1.0, 1.2]),
    died=st.booleans(),
    mhz=st.tuples(st.integers(200, 2000), st.integers(200, 2000)),
    throttled=st.lists(st.sampled_from(REASONS), unique=True).map(tuple),
    lost=st.sampled_from([None, 0.0, 0.05, 0.2]),
)


@given(st.lists(attempts, min_size=ATTEMPTS, max_size=ATTEMPTS))
def test_the_first_that_counts_is_taken_and_else_the_last_and_the_record_says_so(given_: list[Attempt]) -> None:
    outcome, conditions = Session(given_).measured()
    good = [number for number, each in enumerate(given_, start=1) if each.counts]
    assert outcome == (good[0] if good else ATTEMPTS)
    taken = given_[outcome - 1]
    assert conditions == Conditions(taken.after, min(taken.mhz), dict.fromkeys(taken.throttled, 1000), outcome)


@pytest.mark.parametrize("reason", sorted(VOIDING))
def test_heat_and_a_power_brake_void_a_batch(reason: str) -> None:
    session = Session([Attempt(throttled=(reason,)), Attempt()])
    assert session.measured() == (2, Conditions(1.0, 1980, attempts=2))


def test_threads_that_were_kept_from_their_cores_void_a_batch() -> None:
    attempts = [Attempt(lost=1.2 * LOSS_ALLOWED), Attempt(lost=0.8 * LOSS_ALLOWED)]
    assert Session(attempts).measured() == (2, Conditions(1.0, 1980, attempts=2))


def test_at_one_core_more_may_be_lost() -> None:
    """There it is no part of the time."""
    session = Session([Attempt(lost=2 * LOSS_ALLOWED)])
    session.loss_allowed = ONE_CORE_LOSS_ALLOWED
    assert session.measured() == (1, Conditions(1.0, 1980))


@pytest.mark.parametrize("cores", [1, 2])
def test_the_share_decides_how_much_may_be_lost(cores: int, tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < cores:
        pytest.skip(f"needs {cores} cores")
    session = MeasurementSession(Share.parse(f"cpu:{cores}"), allowed[:cores], lock_dir=tmp_path)
    assert session.loss_allowed == {1: ONE_CORE_LOSS_ALLOWED, 2: LOSS_ALLOWED}[cores]
    session.stop()


def test_a_machine_that_is_always_disturbed_is_measured_a_few_times_at_most() -> None:
    session = Session([Attempt(lost=0.4)] * (ATTEMPTS + 1))
    assert session.measured() == (ATTEMPTS, Conditions(1.0, 1980, attempts=ATTEMPTS))
    assert session.runs == ATTEMPTS


def test_the_cap_on_power_is_noted_and_voids_nothing() -> None:
    """A kernel that meets it meets it every time."""
    assert Session([Attempt(throttled=("sw_power_cap",))]).measured() == (
        1,
        Conditions(1.0, 1980, {"sw_power_cap": 1000}),
    )


def test_the_clock_is_that_of_the_whole_gpu_and_only_what_is_new_counts() -> None:
    gpu = SimulatedGpu(MODELS["H200"], sm_mhz=1755, throttled_ns={74: 7, 269: 9, 270: 0, 271: 0})
    clock = GpuClock(lambda: NvidiaMl(SimulatedNvml(gpu)))
    before = clock.read()
    gpu.throttled_ns[269] += 2_000
    after = clock.read()
    assert after.sm_mhz == 1755
    assert after.throttled_since(before) == {"sw_thermal": 2_000}


def test_without_nvml_the_clock_is_not_known_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = GpuClock(lambda: NvidiaMl(SimulatedNvml(broken={"nvmlInit": LIBRARY_NOT_FOUND})))
    assert [clock.read(), clock.read()] == [UNKNOWN_CLOCKS, UNKNOWN_CLOCKS]
    assert len(caplog.records) == 1
    assert "no NVIDIA driver" in caplog.text


def test_a_clock_that_is_not_known_voids_nothing() -> None:
    session = Session([Attempt()])
    told = iter([UNKNOWN_CLOCKS, Clocks(1980, dict.fromkeys(REASONS, 5))])
    outcomes, conditions = measure_stable(session, lambda: next(told), session.run)
    assert outcomes.keys() == {"c"}
    assert conditions == Conditions(1.0, 0)
