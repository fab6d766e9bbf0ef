"""Plans: the placement of models on parts of devices, from bundles, stated times, a log, or the times of jobs."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, TypeAlias

from fractune.features.plan.plan_file import LogModel, PlanFile, read_plan
from fractune.features.plan.slowdowns import MOST_PAIRS, MeasuredSlowdown, counted, slowdowns_table, with_slowdowns
from fractune.features.plan.table import draw_plan, models_table, parts_table, plan_json, summary
from fractune.models.source import check_model_file, model_file
from fractune.server.job_status import JobStatus
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PlaceOptions, finished_job, session
from fractune.text.rendering import Drawable, Table
from fractune.text.text import parse_rate_per_s, parse_time_s
from fractune_core.analysis.model_times import MeasuredPair
from fractune_core.codec.messages import from_proto
from fractune_core.errors import BadRequest, one_line
from fractune_core.jobs import JobSpec
from fractune_core.names import Collection
from fractune_core.planning.devices import DeviceType, Partitioning, device_type
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import ModelDemand, Plan, PlanRequest
from fractune_core.planning.speeds import Basis, Row, limited_rows, measured_rows
from fractune_core.planning.wire import LoggedModel, request_to_proto

PlanSource: TypeAlias = str | os.PathLike[str] | Mapping[str, Any]
_ROUNDS = 4
"""rounds of planning and measuring: each measurement can change the plan, and so the next shares to measure"""


@dataclass(frozen=True)
class PlanResult(Drawable):
    """A plan, for a person to confirm: nothing was changed anywhere."""

    plan: Plan
    measured: tuple[MeasuredSlowdown, ...] = ()
    """slow-downs of pairs in the log, which the plan counts on"""

    def __repr__(self) -> str:
        models = ", ".join(one_line(model.name) for model in self.plan.models)
        return f"PlanResult({models}: {summary(self.plan)[0]})"

    @property
    def table(self) -> Table:
        """A row for each part of each device."""
        return parts_table(self.plan)

    @property
    def models(self) -> Table:
        """A row for each model: its demand and its supply."""
        return models_table(self.plan)

    @property
    def slowdowns(self) -> Table:
        """A row for each model beside another one, by the log's pairs."""
        return slowdowns_table(self.measured)

    def to_json(self) -> dict[str, Any]:
        """As `fractune plan --json` prints it."""
        return {**plan_json(self.plan), "slowdowns": [each.to_json() for each in self.measured]}

    def _draw(self, path: Path) -> None:
        """Draw the devices and their parts."""
        draw_plan(self.plan, path)


def plan(
    source: PlanSource,
    *,
    gpus: int | None = None,
    partitioning: str = "",
    simulate: bool = False,
    seed: int = 0,
    measure: bool = False,
    server: str | None = None,
    state: str | os.PathLike[str] | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
) -> PlanResult:
    """Plan the models of a plan file (or of a mapping with its content) onto devices; docs/sharing.md describes it.

    Models with rates get the fewest devices, then the fewest units of them, and at most `gpus` devices. Without rates
    one device is divided for the most throughput. `partitioning` is `mig`, `mps`, `green`, `cpu` or `limit`, and
    overrides the file. With `simulate` requests arrive at random in a simulation with the seed `seed`, and the plan
    has the headroom that p99 needs. Times come from bundles and profiles. Times of the file's `model` entries come from
    the log of `server`, or of the one-machine stack in `state`. Pairs of these models that `fractune pair` recorded in
    a named log say how much they slow each other down. With `measure` the shares that the plan depends on are timed
    there first, without a search. An unreachable server is awaited for `reconnect_s`.

    Raises BadRequest, BadBundle, FractuneError without the solver, and the errors of `tune` if a log is used.
    PlanInfeasible names the limiting model and a remedy.
    """
    read = read_plan(source, gpus=gpus, partitioning=partitioning)

    def planned() -> PlanResult:
        with session(RpcClient, state, server, compile=bool(read.logged)) as client:
            return plan_by_server(client, read, simulate=simulate, seed=seed)

    def time(model: LogModel, shares: list[str]) -> None:
        """Run a job that searches nothing and measures the log's best at these shares."""
        spec = JobSpec.requested(model.path.name, shares, inputs=model.inputs, rerank=1)
        with finished_job(model.path, spec, PlaceOptions(server, state, reconnect_s), choose_view(progress)):
            pass

    if measure:
        _check_can_measure(read)
        return _measured_plan(read, planned, time)
    if not read.logged and server is None and state is None:
        return PlanResult(make_plan(read.request, simulated=simulate, seed=seed))
    return planned()


def plan_by_server(client: RpcClient, read: PlanFile, *, simulate: bool, seed: int) -> PlanResult:
    """A plan by the server, with its log's data on the file's `model` entries, and on pairs of all models."""
    logged = {}
    for name, each in read.logged.items():
        with model_file(each.path) as path:
            model = client.upload_model(path).name
        logged[name] = LoggedModel(model, each.inputs, each.requests_per_run)
    pairs = [from_proto(MeasuredPair, each) for each in client.pairs("", MOST_PAIRS)]
    asked, measured = with_slowdowns(read.request, read.paired_as, pairs)
    if asked.device.partitioning is Partitioning.LIMIT:  # by predictions, which are the client's
        return paired_plan(make_plan(asked, simulated=simulate, seed=seed), measured)
    request = request_to_proto(asked, logged, simulate=simulate, seed=seed)
    return paired_plan(from_proto(Plan, client.make_plan(request)), measured)


def paired_plan(plan: Plan, measured: tuple[MeasuredSlowdown, ...]) -> PlanResult:
    """The plan, with the pairs that it counts on, and a note on them."""
    measured = counted(plan, measured)
    if not measured:
        return PlanResult(plan)
    count = f"{len(measured)} slow-down{'s' * (len(measured) > 1)}"
    note = f"{count} by co-runners from measured pairs in the log; a pair at other shares than the plan's may differ"
    return PlanResult(replace(plan, notes=(*plan.notes, note)), measured)


def _measured_plan(read: PlanFile, planned: Callable[[], PlanResult], time: Callable[..., None]) -> PlanResult:
    """Time the ends and the middle of each model's curve. Then time the parts that the plan takes without a measured
    time of the whole model, until no such part can be timed.
    """
    done: set[tuple[str, str]] = set()
    needed = {(name, share) for name in read.logged for share in _ends_and_middle(read)}
    for _ in range(_ROUNDS):
        for name, model in read.logged.items():
            shares = [share for of, share in sorted(needed - done) if of == name]
            if shares:
                time(model, shares)
        done |= needed
        result = planned()
        parts = [part for parts in result.plan.devices for part in parts]
        needed = {
            (part.model, part.share)
            for part in parts
            if part.model in read.logged and part.basis in (Basis.PREDICTED, Basis.OPERATORS, Basis.DISTURBED)
        }
        if not needed - done:
            break
    return result


def _ends_and_middle(read: PlanFile) -> list[str]:
    """Shares for a curve: the smallest, one between, and the whole device."""
    parts = read.request.device.parts
    return list(dict.fromkeys(part.share for part in (parts[0], parts[(len(parts) - 1) // 2], parts[-1])))


def _check_can_measure(read: PlanFile) -> None:
    if not read.logged:
        raise BadRequest("--measure: no model of the plan can be timed; give one as model = 'FILE.onnx'")
    for model in read.logged.values():
        check_model_file(model.path)


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
