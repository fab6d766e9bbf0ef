"""Records for tests."""

from dataclasses import replace
from typing import Any

from fractune_core.cpu_limits import GrantedLimit
from fractune_core.operators import workload_hash
from fractune_core.records import VALIDATION_POLICY, Disturbance, Kind, Status, TuningRecord, candidate_id
from fractune_core.shares import Device, GrantedShare

DEVICE = Device("cpu", "rocketlake", 16, 64, 512, "a processor")
DISTURBANCE = Disturbance(0.5, 0.02, 0.01, 0.0, 0.015, preemptions=3, throttles=1, throttled_s=0.004, clock_mhz=2900)
WORKLOAD_TEXT = "[]"
WORKLOAD = workload_hash(WORKLOAD_TEXT)
TARGET_KEY = '{"kind":"llvm","mcpu":"rocketlake"}'


def granted(units: int, mechanism: str = "cpu") -> GrantedShare:
    return GrantedShare(f"{mechanism}:{units}", units, 16, "core", 1 << 34, reserved=False, ids=tuple(range(units)))


LIMITED = GrantedShare(
    "cpu:1500m",
    1500,
    16_000,
    "millicore",
    1 << 34,
    reserved=False,
    ids=(0, 1),
    limit=GrantedLimit(1500, request_m=0, span=2, period_us=100_000, burst_us=0, burned_m=1496),
)


def validation(trace: str, units: int, secs: float, **changes: Any) -> TuningRecord:
    """A published record of one operator: `trace` names the schedule."""
    record = TuningRecord(
        record_id=f"{trace}@{units}",
        kind=Kind.VALIDATION,
        candidate_id=candidate_id(WORKLOAD, TARGET_KEY, trace),
        workload_hash=WORKLOAD,
        operator="conv2d",
        target=TARGET_KEY,
        target_key=TARGET_KEY,
        trace=trace,
        device=DEVICE,
        share=f"cpu:{units}",
        granted=granted(units),
        status=Status.OK,
        cause="",
        run_secs=(secs,) * VALIDATION_POLICY.repeats,
        policy=VALIDATION_POLICY,
        anchor_ratio=1.0,
        neighbours=0,
        job="j1",
        worker="w1",
        measured_at=1_000.0,
        max_error=0.0,
        versions={"tvm": "0.27.0"},
    )
    return replace(record, **changes)


def divided(trace: str, units: int, choosing_s: float, reported_s: float, **changes: Any) -> TuningRecord:
    """A published record whose repeats chose by one time, and report another."""
    choosing = VALIDATION_POLICY.choosing
    run_secs = (choosing_s,) * choosing + (reported_s,) * (VALIDATION_POLICY.repeats - choosing)
    return validation(trace, units, reported_s, run_secs=run_secs, **changes)
