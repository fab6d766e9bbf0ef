"""The domain's dataclasses to and from the protobuf messages of the public contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime

from google.protobuf.timestamp_pb2 import Timestamp

from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.disturbances import Disturbance
from fractune_core.errors import BadRequest
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import WARM, Kind, Status, TimingPolicy, TuningRecord, policy_name
from fractune_core.shares import Device, GrantedShare
from fractune_core.spending import Spending

END_OF_TIME_S = 253_402_300_800
"""since 1970: no timestamp is of the year 10000"""
_MOST = 2**31 - 1
DEFAULT_TRIALS = 256
DEFAULT_ROUND_SIZE = 64


def timestamp(seconds: float) -> Timestamp:
    """Seconds since 1970 as protobuf's timestamp. Raises BadRequest for what is not of the years 1 to 9999."""
    stamp = Timestamp()
    try:
        stamp.FromNanoseconds(round(seconds * 1e9))
    except (ValueError, OverflowError):
        raise _no_time(f"{seconds:g} s") from None
    return stamp


def seconds(stamp: Timestamp) -> float:
    """Seconds since 1970. Raises BadRequest for what is not of the years 1 to 9999."""
    try:
        return stamp.ToNanoseconds() / 1e9
    except ValueError:
        raise _no_time(f"{stamp.seconds} s and {stamp.nanos} ns") from None


def _no_time(what: str) -> BadRequest:
    return BadRequest(f"{what} after 1970 began is no time of the years 1 to 9999")


def when(stamp: Timestamp) -> datetime:
    """For people: a time in UTC."""
    return datetime.fromtimestamp(seconds(stamp), UTC)


def are_small(*numbers: int) -> bool:
    """Whether they have the 32 bits that most whole numbers of the public contract have."""
    return all(-_MOST <= number <= _MOST for number in numbers)


def can_be_told(device: Device, granted: GrantedShare) -> bool:
    return are_small(device.units, device.memory_gib, device.l2_kib, granted.units, granted.units_total, *granted.ids)


def device_to_proto(device: Device) -> pb.Device:
    return pb.Device(**device.to_json())


def device_from_proto(message: pb.Device) -> Device:
    return Device(
        kind=message.kind,
        isa=message.isa,
        units=message.units,
        memory_gib=message.memory_gib,
        l2_kib=message.l2_kib,
        label=message.label,
    )


def granted_to_proto(granted: GrantedShare) -> pb.GrantedShare:
    return pb.GrantedShare(**granted.to_json())


def granted_from_proto(message: pb.GrantedShare) -> GrantedShare:
    return GrantedShare(
        share=message.share,
        units=message.units,
        units_total=message.units_total,
        unit=message.unit,
        memory_bytes=message.memory_bytes,
        reserved=message.reserved,
        ids=tuple(message.ids),
    )


def roof_to_proto(roof: Roof) -> pb.Roof:
    return pb.Roof(**roof.to_json())


def roof_from_proto(message: pb.Roof) -> Roof:
    return Roof(message.gflops, message.gb_per_s, message.cache_bytes)


def arithmetic_to_proto(arithmetic: Arithmetic) -> pb.Arithmetic:
    return pb.Arithmetic(flops=arithmetic.flops, io_bytes=arithmetic.io_bytes)


def arithmetic_from_proto(message: pb.Arithmetic) -> Arithmetic:
    return Arithmetic(message.flops, message.io_bytes)


def policy_from_proto(message: pb.TimingPolicy) -> TimingPolicy:
    name, cache = policy_name(message.name), message.cache or WARM
    return TimingPolicy(name, message.warmups, message.repeats, message.min_repeat_ms, cache, message.choosing)


def disturbance_from_proto(message: pb.Disturbance) -> Disturbance:
    return Disturbance(**{field.name: getattr(message, field.name) for field in fields(Disturbance)})


def record_to_proto(record: TuningRecord) -> pb.Record:
    return pb.Record(
        name=Collection.RECORDS.of(record.record_id),
        kind=record.kind.value,
        candidate_id=record.candidate_id,
        workload_hash=record.workload_hash,
        operator=record.operator,
        target=record.target,
        target_key=record.target_key,
        trace=record.trace,
        device=device_to_proto(record.device),
        granted=granted_to_proto(record.granted),
        status=record.status.value,
        cause=record.cause,
        run_secs=record.run_secs,
        policy=pb.TimingPolicy(**record.policy.to_json()),
        anchor_ratio=record.anchor_ratio,
        neighbours=record.neighbours,
        job=record.job,
        worker=record.worker,
        measure_time=timestamp(record.measured_at),
        build_secs=record.build_secs,
        max_error=record.max_error,
        clock_mhz=record.clock_mhz,
        throttled_ns=record.throttled_ns,
        versions=record.versions,
        disturbance=None if record.disturbance is None else pb.Disturbance(**record.disturbance.to_json()),
        attempts=record.attempts,
        scope=record.scope,
    )


def record_from_proto(message: pb.Record) -> TuningRecord:
    """The record that `record_to_proto` wrote. Raises BadRequest for a name, kind or status that is none."""
    identifier = Collection.RECORDS.parse(message.name)
    try:
        kind, status = Kind(message.kind), Status(message.status)
    except ValueError as error:
        raise BadRequest(f"{message.name}: {error}") from error
    return TuningRecord(
        record_id=identifier,
        kind=kind,
        candidate_id=message.candidate_id,
        workload_hash=message.workload_hash,
        operator=message.operator,
        target=message.target,
        target_key=message.target_key,
        trace=message.trace,
        device=device_from_proto(message.device),
        share=message.granted.share,
        granted=granted_from_proto(message.granted),
        status=status,
        cause=message.cause,
        run_secs=tuple(message.run_secs),
        policy=policy_from_proto(message.policy),
        anchor_ratio=message.anchor_ratio,
        neighbours=message.neighbours,
        job=message.job,
        worker=message.worker,
        measured_at=seconds(message.measure_time),
        build_secs=message.build_secs,
        max_error=message.max_error if message.HasField("max_error") else None,
        clock_mhz=message.clock_mhz,
        throttled_ns=dict(message.throttled_ns),
        versions=dict(message.versions),
        disturbance=disturbance_from_proto(message.disturbance) if message.HasField("disturbance") else None,
        attempts=message.attempts,
        scope=message.scope,
    )


def shapes_to_proto(inputs: Mapping[str, list[int]]) -> dict[str, pb.Shape]:
    return {name: pb.Shape(dims=dims) for name, dims in inputs.items()}


def shapes_from_proto(inputs: Mapping[str, pb.Shape]) -> dict[str, list[int]]:
    return {name: list(shape.dims) for name, shape in inputs.items()}


def spec_to_proto(spec: JobSpec) -> pb.JobSpec:
    return pb.JobSpec(
        model=Collection.MODELS.of(spec.model),
        shares=spec.shares,
        inputs=shapes_to_proto(spec.inputs),
        target=spec.target,
        trials=spec.trials,
        more=spec.more,
        minutes=spec.minutes,
        round_size=spec.round_size,
        only=spec.only,
        seed=spec.seed,
        priority=spec.priority,
        rerank=spec.rerank,
        variants=spec.variants,
        exact=spec.exact,
        scope=spec.scope,
        fresh=spec.fresh,
        webhook=spec.webhook,
    )


def spec_from_proto(message: pb.JobSpec, model_name: str) -> JobSpec:
    """A JobSpec, absent values replaced by the defaults; `model_name` is a label. Raises BadRequest."""
    if not math.isfinite(message.minutes):
        raise BadRequest(f"minutes is {message.minutes}; it must be above 0, or 0 for no limit")
    return JobSpec(
        model=Collection.MODELS.parse(message.model),
        model_name=model_name,
        shares=tuple(message.shares),
        inputs=shapes_from_proto(message.inputs),
        target=message.target,
        trials=message.trials if message.HasField("trials") else DEFAULT_TRIALS,
        more=message.more,
        minutes=message.minutes,
        round_size=message.round_size or DEFAULT_ROUND_SIZE,
        only=message.only,
        seed=message.seed,
        priority=message.priority,
        rerank=message.rerank,
        variants=message.variants,
        exact=message.exact,
        scope=message.scope,
        fresh=message.fresh,
        webhook=message.webhook,
    )


def spending_to_proto(spent: Spending) -> pb.Spending:
    return pb.Spending(**asdict(spent))


def spending_from_proto(message: pb.Spending) -> Spending:
    return Spending(message.do, message.share, message.pieces, message.worked_s, message.cpu_s)


def state_to_proto(state: JobState) -> pb.JobState.ValueType:
    return pb.JobState.Value(f"JOB_STATE_{state.name}")


def state_from_proto(state: pb.JobState.ValueType) -> JobState:
    return JobState[pb.JobState.Name(state).removeprefix("JOB_STATE_")]
