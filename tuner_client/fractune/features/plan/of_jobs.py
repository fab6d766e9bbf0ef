"""A plan of models that jobs timed: nothing is asked of a server but the jobs and the pairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from fractune.features.plan.plan import PlanResult, paired_plan
from fractune.features.plan.slowdowns import with_slowdowns
from fractune.server.job_status import JobStatus
from fractune.text.text import parse_rate_per_s, parse_time_s
from fractune_core.analysis.model_times import MeasuredPair
from fractune_core.errors import BadRequest
from fractune_core.names import Collection
from fractune_core.planning.devices import DeviceType, Partitioning, device_type
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import ModelDemand, PlanRequest
from fractune_core.planning.speeds import Row, limited_rows, measured_rows

_WHOLE = "full"


@dataclass(frozen=True)
class JobDemand:
    """A job whose model is to be served."""

    job: JobStatus
    rate: str = ""
    """of requests, such as `18/s`; empty for none"""
    p99: str = ""
    """its target, such as `50ms`; empty for none"""


@dataclass(frozen=True)
class PlannedDevice:
    """The kind of device, as far as the jobs leave it open."""

    gpu: str = ""
    """name of a GPU; empty for the host that the jobs measured on"""
    partitioning: str = ""
    """empty for the usual one"""
    most: int | None = None
    """devices at most"""


def plan_of_jobs(
    demands: Sequence[JobDemand], pairs: Sequence[MeasuredPair], device: PlannedDevice, *, simulate: bool = False
) -> PlanResult:
    """A plan by the latencies that the jobs measured, and by the pairs, the newest first.

    Raises BadRequest for jobs without a time on such a device, PlanInfeasible, and FractuneError without the solver.
    """
    found = device_type(device.gpu, 0 if device.gpu else _cores(demands), device.partitioning, 0.0)
    names = _names([each.job for each in demands])
    models = tuple(_demand(name, each, found) for name, each in zip(names, demands, strict=True))
    paired_as = {name: _stem(each.job) for name, each in zip(names, demands, strict=True)}
    request, measured = with_slowdowns(PlanRequest(found, models, device.most), paired_as, pairs)
    return paired_plan(make_plan(request, simulated=simulate), measured)


def _cores(demands: Sequence[JobDemand]) -> int:
    """Of the host on which all of the jobs measured."""
    totals = {
        result.granted.units_total: each.job.name
        for each in demands
        for result in each.job.results
        if result.granted.mechanism == Partitioning.CPU
    }
    if not totals:
        raise BadRequest("these jobs have no time at whole cores of a CPU; choose the GPU that they measured on")
    if len(totals) > 1:
        hosts = ", ".join(f"{cores} ({job})" for cores, job in totals.items())
        raise BadRequest(f"these jobs measured on hosts with different numbers of cores: {hosts}; choose jobs of one")
    return next(iter(totals))


def _names(jobs: Sequence[JobStatus]) -> list[str]:
    """Each of its own: those of the models' files, with the job where two are alike."""
    stems = [_stem(job) for job in jobs]
    return [
        stem if stems.count(stem) == 1 else f"{stem} of {Collection.JOBS.parse(job.name)}"
        for stem, job in zip(stems, jobs, strict=True)
    ]


def _stem(job: JobStatus) -> str:
    return PurePath(job.model_name).stem


def _demand(name: str, asked: JobDemand, device: DeviceType) -> ModelDemand:
    return ModelDemand(
        name,
        _rows(asked.job, device),
        rate_per_s=parse_rate_per_s("rate", asked.rate) if asked.rate else None,
        latency_s=parse_time_s("p99", asked.p99) if asked.p99 else None,
    )


def _rows(job: JobStatus, device: DeviceType) -> tuple[Row, ...]:
    timed = device.timed_by
    whole_s: dict[bool, dict[int, float]] = {True: {}, False: {}}
    """by whether other programs disturbed them"""
    for each in job.results:
        is_such = each.granted.mechanism in (timed.partitioning, _WHOLE) and each.tuned_s > 0
        if is_such and (units := timed.units_of_granted(each.granted.units)) is not None:
            whole_s[each.is_disturbed][units] = each.tuned_s
    if not any(whole_s.values()):
        raise BadRequest(f"{job.name} has no time at a share of {device.name} by {timed.partitioning}; tune it there")
    rows = measured_rows({}, whole_s[False], whole_s[True], batch=1)
    return limited_rows(rows, device) if device.partitioning is Partitioning.LIMIT else rows
