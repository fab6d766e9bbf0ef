"""What a simulated fleet makes up, always alike: its processor, how fast programs run there, and records of it."""

import hashlib
import json
import time
from dataclasses import replace
from typing import Any

from fractune_core import operators
from fractune_core.cpu_limits import GrantedLimit, LimitSize
from fractune_core.fleet import messages
from fractune_core.operators import trace_of
from fractune_core.records import TRIAL_POLICY, VALIDATION_POLICY, Kind, Status, TuningRecord
from fractune_core.shares import Device, GrantedShare, Share

DEVICE = Device("cpu", "simulated", 2, 8, 512, "a simulated processor")
TARGET = '{"kind":"llvm","mcpu":"simulated","num-cores":2}'
TARGET_KEY = '{"kind":"llvm","mcpu":"simulated"}'
VERSIONS = {"tvm": "none"}
WORKED_S, CPU_S = 0.5, 0.25
"""what any piece of work takes: made up, and exact in binary"""


def granted(share: str) -> GrantedShare:
    parsed = Share.parse(share)
    ids = tuple(range(parsed.cores))
    if parsed.kind.measures_kernels:
        return GrantedShare(share, parsed.cores, DEVICE.units, "core", 1 << 33, reserved=False, ids=ids)
    size = LimitSize.parse(parsed.size)
    limit = GrantedLimit(size.limit_m, size.request_m, size.cores, size.period_us, 0, size.limit_m)
    total = 1000 * DEVICE.units
    return GrantedShare(share, size.limit_m, total, "millicore", 1 << 33, reserved=False, ids=ids, limit=limit)


def workload_text(name: str, **facts: Any) -> str:
    """In the place of an operator's text: its name, and how the simulated fleet searches it."""
    return json.dumps({"name": name, **facts})


def workload_hash(name: str, **facts: Any) -> str:
    return operators.workload_hash(workload_text(name, **facts))


def target_operator(name: str) -> messages.TargetOperator:
    """The operator of that name, for the simulated target."""
    return messages.TargetOperator(workload_hash(name), name, TARGET, TARGET_KEY)


def run_time_s(trace: str, share: str) -> float:
    """Made up, but always the same; the untuned default is slow, and more cores are faster."""
    units = granted(share).units
    if not trace:
        return 1e-3 / units
    draw = int(hashlib.sha256(trace.encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
    return (2e-4 + 6e-4 * draw) / units


def outcome(trace: str) -> Status:
    """One proposed candidate in ten fails to build: the tenth of each search, whatever its operator is called."""
    number = json.loads(trace_of(trace))[1] if trace else 0
    return Status.BUILD_FAILED if number % 10 == 9 else Status.OK


def piece_done(work: Any) -> messages.PieceDone:
    """What any piece of work takes of this fleet."""
    share = getattr(work, "share", "")
    return messages.PieceDone(work.work_id, work.job, work.task, share, WORKED_S, CPU_S, time.time())


def made_up_record(
    work: messages.MeasureWork, candidate: str, trace: str, status: Status = Status.OK, worker: str = "someone"
) -> TuningRecord:
    validating = work.purpose is Kind.VALIDATION
    secs = run_time_s(trace, work.share)
    record = messages.work_record(
        work,
        messages.CandidateItem(candidate, trace),
        DEVICE,
        granted(work.share),
        status,
        "" if status is Status.OK else "made up",
        VALIDATION_POLICY if validating else TRIAL_POLICY,
    )
    return replace(
        record,
        run_secs=(secs,) * record.policy.repeats if status is Status.OK else (),
        anchor_ratio=1.0,
        worker=worker,
        build_secs=0.1,
        max_error=0.0 if validating else None,
        versions=VERSIONS,
    )
