"""Match for a whole model: which record every operator would use at a share, and why."""

import math
import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fractune_core.analysis.at_load import AtLoad, choices
from fractune_core.analysis.inside import Inside
from fractune_core.analysis.match import How, Match, Policy, find_match
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.errors import BadRequest, NotFound, ServerUnreachable, ShareUnavailable
from fractune_core.jobs import OperatorTask
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.planning.devices import DeviceType
from fractune_core.records import TuningRecord
from fractune_core.served import ServiceGoal, is_disturbed
from fractune_core.share_kinds import CPU
from fractune_core.shares import Device, GrantedShare, Share
from fractune_core.targets import target_key
from fractune_server.authenticator import Places
from fractune_server.selection.variants import Deployment, ValidatedOperator, robust_variant
from fractune_server.store.jobs import StoredJob
from fractune_server.store.store import IngestedModel, IngestKey
from fractune_server.transport.context import CallContext, TenantView
from fractune_server.transport.live_workers import COMPILE, Fleet, HeldShare, live_workers
from fractune_server.transport.work_queues import WorkQueues, mark_cancelled, request_ingest

_LONGEST_S = 600.0
_LOOK_EVERY_S = 0.1
_READ_AT_ONCE = 4
"""models that are read for calls: the compile workers have one queue for these and for jobs"""
_AT_ONCE = 4
"""computations; threads of one interpreter only slow each other down"""


@dataclass(frozen=True)
class OperatorAnswer:
    share: str
    task: OperatorTask
    match: Match
    arithmetic: Arithmetic | None
    """None if unknown"""


@dataclass(frozen=True)
class ModelAnswer:
    operators: list[OperatorAnswer]
    roof: Roof | None
    """roof of the share; None if unknown"""
    at_load: Sequence[AtLoad] = ()
    """variants of the whole model that a job timed at the share, if possible undisturbed. Under a CPU limit, the
    operators are those of the best one for requests, or of the fastest in a loop if the best is not known
    (`operators_at`)"""
    others_cores: float = 0.0
    """cores that other programs had in this timing"""
    inside: Inside | None = None
    """the calls inside the variant for the share, by the same job; None if it did not time them"""


@dataclass(frozen=True)
class OperatorRow:
    """Validated times of the schedules for some shares, at each of these shares, as far as they were measured."""

    task: OperatorTask
    cells: dict[tuple[str, str], TuningRecord]
    """by variant (`untuned`, or a share) and the share where it ran"""


@dataclass(frozen=True)
class ModelTimes:
    """Measured seconds of one call of a model, by units of a device."""

    operators_s: dict[int, float]
    """sum over operators of weight x reported time of the fastest schedule"""
    whole_s: dict[int, float]
    """the whole model, by the newest job that no other program disturbed there"""
    disturbed_s: dict[int, float]
    """the whole model, by the newest job that other programs disturbed there"""


@dataclass(frozen=True)
class MatchQuery:
    """A model as a user names it, with everything that its operators depend on."""

    model: str
    """SHA-256"""
    inputs: Mapping[str, list[int]]
    target: str
    """empty = the device's own"""
    time_left_s: float | None
    """how long the caller will wait"""
    owner: str
    """id of the caller's token; empty = no token was needed"""
    view: TenantView = field(compare=False)
    """what the model's tenant sees"""
    namespace: str = ""
    """only records of this namespace count"""
    is_wanted: Callable[[], bool] = field(default=lambda: True, compare=False)
    """False once the caller has left"""

    @cached_property
    def pool(self) -> str:
        return self.view.log.pool(self.namespace)


class Matcher:
    """Any thread may call."""

    def __init__(self, context: CallContext) -> None:
        self._context = context
        self._turns = threading.Semaphore(_AT_ONCE)
        self._reads = Places(_READ_AT_ONCE, "models to read")

    @contextmanager
    def _turn(self, query: MatchQuery) -> Iterator[None]:
        """Compute, with few others. Raises ServerUnreachable when the caller has left before its turn."""
        with self._turns:
            if not query.is_wanted():
                raise _left()
            yield

    def match(self, query: MatchQuery, share: str, policy: Policy) -> ModelAnswer:
        """One answer for each operator.

        1. The granted share: from a live worker, else from the log, else from the size in its name.
        2. The model's operators: from an earlier ingest, else from a new one.
        3. For each operator the match in the log. For a range it is the schedule of the variant that a bundle has for
           the whole range.

        Raises NotFound if the model is unknown, or was not timed under a CPU limit; ShareUnavailable if the share is
        unknown, or no worker can read the model. Raises ServerUnreachable if reading it takes too long, and
        QuotaExceeded if too many other models are to be read.
        """
        fleet, asked = live_workers(self._context.redis, self._context.secret), Share.parse(share)
        if asked.ends:
            return self._match_range(fleet, query, asked)
        if not asked.kind.measures_kernels:
            timing = self._under_limit(fleet, query, asked)
            answer = self.match(query, operators_at(timing, asked), policy)
            return _with_timing(answer, timing)
        device_share = _device_share(fleet, asked, query.view)
        found = self._ingested(fleet, query, device_share)
        with self._turn(query):
            return self._answer(query, share, policy, device_share, found)

    def _answer(
        self, query: MatchQuery, share: str, policy: Policy, device_share: HeldShare, found: IngestedModel
    ) -> ModelAnswer:
        validated = _validated(found.operators, query)
        device, target_key = device_share.device.key, found.target_key
        arithmetic = query.view.log.arithmetic(task.workload_hash for task in found.operators)
        answers = [
            OperatorAnswer(
                share,
                task,
                find_match(validated[task.workload_hash], device_share.granted, device, target_key, policy),
                arithmetic.get(task.workload_hash),
            )
            for task in found.operators
        ]
        answer = ModelAnswer(answers, query.view.roofs.of(device).get(device_share.granted.key))
        return _with_timing(answer, self._timing(found, query, device_share.device, Share.parse(share)))

    def _match_range(self, fleet: Fleet, query: MatchQuery, wide: Share) -> ModelAnswer:
        held = {str(each): _device_share(fleet, each, query.view) for each in wide.kernel_shares}
        found = self._ingested(fleet, query, next(iter(held.values())))
        deployment = _deployment(held, found)
        with self._turn(query):
            validated = _validated(found.operators, query)
            arithmetic = query.view.log.arithmetic(task.workload_hash for task in found.operators)
        tasks = {task.workload_hash: task for task in found.operators}
        operators = [ValidatedOperator(name, task.weight, validated[name]) for name, task in tasks.items()]
        matches = robust_variant(str(wide), deployment, operators).matches
        untuned = Match(How.NONE, None, math.nan, f"no schedule is known to lose less than the untuned one in {wide}")
        answers = [
            OperatorAnswer(str(wide), task, matches.get(name, untuned), arithmetic.get(name))
            for name, task in tasks.items()
        ]
        return ModelAnswer(answers, None)

    def tabulate(self, query: MatchQuery, shares: Sequence[str]) -> list[OperatorRow]:
        """Each operator's validated times, by the share that its schedule was chosen for and the share where it ran.

        Raises what `match` raises, and BadRequest for shares of several devices.
        """
        fleet = live_workers(self._context.redis, self._context.secret)
        device_shares = {share: _device_share(fleet, Share.parse(share), query.view) for share in shares}
        found = self._ingested(fleet, query, next(iter(device_shares.values())))
        deployment = _deployment(device_shares, found)
        with self._turn(query):
            validated = _validated(found.operators, query)
            return [_row(task, validated[task.workload_hash], deployment) for task in found.operators]

    def times(self, query: MatchQuery, wanted: DeviceType) -> ModelTimes:
        """The model's measured times on `wanted`.

        Raises what `match` raises, and NotFound if the log has no such device or no such time.
        """
        fleet = live_workers(self._context.redis, self._context.secret)
        device_share = _on_device(fleet, wanted, query.view)
        found = self._ingested(fleet, query, device_share)
        with self._turn(query):
            times = ModelTimes(
                _operators_s(found, query, device_share.device, wanted),
                self._whole_s(found, query, device_share.device, wanted, disturbed=False),
                self._whole_s(found, query, device_share.device, wanted, disturbed=True),
            )
        if not times.operators_s and not times.whole_s and not times.disturbed_s:
            raise NotFound(
                f"models/{query.model[:12]}...: the log has no time at a {wanted.partitioning} share of {wanted.name}; "
                "tune it there"
            )
        return times

    def _whole_s(
        self, found: IngestedModel, query: MatchQuery, device: Device, wanted: DeviceType, *, disturbed: bool
    ) -> dict[int, float]:
        secs: dict[int, float] = {}
        for job in self._done(found, query, device):
            secs = {**timed_secs(job, wanted, disturbed=disturbed), **secs}
        return secs

    def _under_limit(self, fleet: Fleet, query: MatchQuery, share: Share) -> dict[str, Any]:
        """The timing of the newest job that timed the model under the limit."""
        device_share = _device_share(fleet, share.kernel_shares[0], query.view)
        found = self._ingested(fleet, query, device_share)
        timing = self._timing(found, query, device_share.device, share)
        if timing is None:
            raise NotFound(f"share '{share}': this model was not timed under the limit; tune it with --shares {share}")
        return timing

    def _timing(self, found: IngestedModel, query: MatchQuery, device: Device, share: Share) -> dict[str, Any] | None:
        """Of the whole model at that share, by the newest job that timed it there undisturbed, else by the newest."""
        newest = None
        for timing in filter(None, (job.timings.get(str(share)) for job in self._done(found, query, device))):
            if not is_disturbed(timing["others_cores"]):
                return timing
            newest = newest or timing
        return newest

    def _done(self, found: IngestedModel, query: MatchQuery, device: Device) -> Iterator[StoredJob]:
        """The finished jobs with this very query on a device, newest first."""
        for job in query.view.jobs.done_of_model(query.model):
            identity = (job.spec.inputs, job.spec.namespace, job.target_key, job.device.key)
            if identity == (dict(query.inputs), query.namespace, found.target_key, device.key):
                yield job

    def _ingested(self, fleet: Fleet, query: MatchQuery, device_share: HeldShare) -> IngestedModel:
        tenant = query.view.sight.own
        key = IngestKey(query.model, dict(query.inputs), query.target or device_share.target, tenant)
        found = query.view.models.find_ingested(key)
        if found is not None:
            return found
        with self._reads.place(query.owner):
            return self._ingest(fleet, key, device_share.device, query)

    def _ingest(self, fleet: Fleet, key: IngestKey, device: Device, query: MatchQuery) -> IngestedModel:
        if not fleet.of_role(COMPILE):
            raise ShareUnavailable(
                "this model was not yet read with these shapes and this target, and no worker of the role "
                f"{COMPILE} is running; start one"
            )
        if not query.is_wanted():
            raise _left()
        job = f"match-{uuid.uuid4().hex[:12]}"
        self._context.model_ingests.expect(job, key)
        queues = WorkQueues(self._context.redis, self._context.secret)
        request_ingest(query.view, queues, key, query.owner, device.isa, job, job)
        deadline = time.monotonic() + min(query.time_left_s or _LONGEST_S, _LONGEST_S)
        while time.monotonic() < deadline and query.is_wanted():
            changes = self._context.notifier.count
            found = query.view.models.find_ingested(key)
            if found is not None:
                return found
            error = self._context.model_ingests.forget(job)
            if error is not None:
                raise error
            self._context.notifier.wait(changes, _LOOK_EVERY_S)
        self._context.model_ingests.forget(job)
        mark_cancelled(self._context.redis, job)  # a worker need not read on
        if not query.is_wanted():
            raise _left()
        raise ServerUnreachable("the model was not read in time; try again with a longer deadline")


def _on_device(fleet: Fleet, wanted: DeviceType, view: TenantView) -> HeldShare:
    """A share of the device `wanted`, from a live worker or from the log."""
    known = list(fleet.offers)
    newest = view.log.newest_of_kind(wanted.kind)
    if newest is not None:
        known.append(HeldShare(newest.device, newest.granted, newest.target_key))
    same = [each for each in known if not wanted.difference(each.device)]
    if same:
        return same[0]
    others = sorted({wanted.difference(each.device) for each in known})
    seen = f"its records are of {others[0]}" if others else "it is empty"
    remedy = "give a profile or, for a CPU, a bundle with its core_speed; or tune there"
    raise NotFound(f"the log has no records of {wanted.name}: {seen}; {remedy}")


def _device_share(fleet: Fleet, share: Share, view: TenantView) -> HeldShare:
    share.check_measures_kernels()
    text = str(share)
    for offer in fleet.offers:
        if offer.granted.share == text:
            return offer
    record = view.log.newest(text)
    if record is not None:
        return HeldShare(record.device, record.granted, record.target_key)
    if share.device_kind == CPU:
        cpus = [offer for offer in fleet.offers if offer.device.kind == CPU]
        known = cpus[0] if cpus else view.log.newest_of_kind(CPU)
        if known is not None and share.cores <= known.granted.units_total:
            granted = replace(known.granted, share=text, units=share.cores, ids=(), physical_cores=0)
            return HeldShare(known.device, granted, target_key(known.target))
    raise ShareUnavailable(
        f"share {text}: no worker offers it, and the log holds no record of it; tune the model there, or name "
        "another share"
    )


def _operators_s(found: IngestedModel, query: MatchQuery, device: Device, wanted: DeviceType) -> dict[int, float]:
    validated = _validated(found.operators, query)
    secs: dict[int, float] = {}
    for mechanism in (wanted.partitioning.value, "full"):
        measured = {
            task: validated[task.workload_hash].measured(device.key, found.target_key, mechanism)
            for task in found.operators
        }
        known = {task: each for task, each in measured.items() if each.records}
        for granted in set.intersection(*(set(each.choosing) for each in known.values())) if known else ():
            units = wanted.units_of_granted(granted)
            if units is not None:
                secs[units] = sum(task.weight * each.fastest_s(granted) for task, each in known.items())
    return secs


def _validated(tasks: Sequence[OperatorTask], query: MatchQuery) -> dict[str, ValidatedRecords]:
    hashes = (task.workload_hash for task in tasks)
    return query.view.log.validated_of(hashes, query.pool, query.view.sight.own)


def _left() -> ServerUnreachable:
    return ServerUnreachable("the caller has left")


def _deployment(held: Mapping[str, HeldShare], found: IngestedModel) -> Deployment:
    """Raises BadRequest for shares of several devices."""
    devices = {each.device.key for each in held.values()}
    if len(devices) != 1:
        raise BadRequest(f"shares {', '.join(held)}: name shares of one device")
    return Deployment(devices.pop(), found.target_key, {share: each.granted for share, each in held.items()})


def _row(task: OperatorTask, validated: ValidatedRecords, deployment: Deployment) -> OperatorRow:
    operator = ValidatedOperator(task.workload_hash, task.weight, validated)
    matches = {share: deployment.match(operator, share) for share in deployment.granted}
    chosen = {share: match.record.candidate_id for share, match in matches.items() if match.record is not None}
    rows = {
        UNTUNED_VARIANT: deployment.default(operator),
        **dict.fromkeys(deployment.granted, deployment.default(operator)),
    }
    cells = {
        (variant, share): fastest
        for variant, candidate in (rows | chosen).items()
        for share, granted in deployment.granted.items()
        if (fastest := deployment.measured(operator, granted.mechanism).fastest(candidate, granted.units)) is not None
    }
    return OperatorRow(task, cells)


def served_secs(timing: Mapping[str, Any], share: str) -> float:
    """Seconds of one call in a loop at `share`, of the variant that serves there. `timing` as in `StoredJob`."""
    secs: list[float] = timing["run_secs"][served_variant(timing, share)]
    return statistics.median(secs)


def _with_timing(answer: ModelAnswer, timing: Mapping[str, Any] | None) -> ModelAnswer:
    """The answer as it is for a model that no job has timed at the share: the log may come from another server."""
    if timing is None:
        return answer
    inside = Inside.from_json(timing["inside"]) if timing["inside"] else None
    return replace(answer, at_load=timed_at_load(timing), others_cores=timing["others_cores"], inside=inside)


def served_variant(timing: Mapping[str, Any], share: str) -> str:
    """The variant for `share`. A CPU limit has none of its own: there it is the choice of those timed under the limit.
    Else it is the fastest.
    """
    run_secs: dict[str, list[float]] = timing["run_secs"]
    if share in run_secs:
        return share
    if found := best_by_goal(timing):
        return found["latency"].variant
    return min(run_secs, key=lambda variant: statistics.median(run_secs[variant]))


def operators_at(timing: Mapping[str, Any], limit: Share) -> str:
    """The share whose operators serve under a CPU limit: that of the best variant. The robust and the untuned one have
    no share, so it is the one of all cores.
    """
    variant, cores = served_variant(timing, str(limit)), [str(each) for each in limit.kernel_shares]
    return variant if variant in cores else cores[-1]


def best_by_goal(timing: Mapping[str, Any]) -> dict[ServiceGoal, AtLoad]:
    """Empty if the best is not known."""
    return choices(timed_at_load(timing), timing["others_cores"])


def timed_at_load(timing: Mapping[str, Any]) -> list[AtLoad]:
    """Empty for a model that was too slow for it."""
    return [AtLoad.from_json(each) for each in timing["at_load"]]


def timed_secs(job: StoredJob, wanted: DeviceType, *, disturbed: bool) -> dict[int, float]:
    """`served_secs` of each share that the job timed and that is one of `wanted`, by its units there: of those that
    other programs `disturbed`, or of the others.
    """
    found: dict[int, float] = {}
    for share, timing in job.timings.items():
        if is_disturbed(timing["others_cores"]) != disturbed:
            continue
        granted = GrantedShare.from_json(timing["granted"])
        units = (
            wanted.units_of_granted(granted.units) if granted.mechanism in (wanted.partitioning.value, "full") else None
        )
        if units is not None:
            found[units] = served_secs(timing, share)
    return found
