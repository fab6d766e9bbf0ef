"""Jobs, results, matches and workers as plain values, made from messages of the public contract."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from fractune.server.pace import Pace, TimeLeft, time_left
from fractune_core.analysis.at_load import AtLoad, choices
from fractune_core.analysis.inside import Inside
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.codec.messages import from_proto
from fractune_core.codec.plain_json import In
from fractune_core.errors import JobCancelled, JobFailed, error_from_name, one_line
from fractune_core.files.compared import Checked
from fractune_core.jobs import JobSpec, JobState, Priority
from fractune_core.names import UNTUNED_VARIANT, Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from fractune_core.served import ServiceGoal, is_disturbed, kept_part
from fractune_core.shares import Device, GrantedShare, Share, with_kernel_shares

_VALIDATED_TRIALS = 4
"""after the search each operator takes the time of so many trials at least, for its best ones and the untuned one"""
_TIMING_S = 2.0
"""of the whole model at a share, at least"""


@dataclass(frozen=True)
class OperatorStatus:
    """An operator of a job's model and its progress."""

    name: Annotated[str, In("display_name")]
    workload_hash: str
    weight: int
    """how often it occurs in the model; 0 for an alternative to several others"""
    trials: int = 0
    """candidates in the log for it, measured at all of the job's shares"""
    best_s: Mapping[str, float] = field(default_factory=dict)
    """best median run time so far, in seconds, by share"""
    untuned_s: Mapping[str, float] = field(default_factory=dict)
    """run time of the untuned default, in seconds, by share; known when the job is validating"""
    selected: bool = True
    """False for an operator that `only` left out"""
    arithmetic: Arithmetic | None = None
    """arithmetic and memory traffic of one run; None = not known"""
    implementations: Mapping[str, str] = field(default_factory=dict)
    """of the schedule with the time in `best_s`, by share, once the job is done: empty for the direct one; a share
    without a known one is absent"""


@dataclass(frozen=True)
class ShareResult:
    """The whole model at one share, all variants interleaved."""

    share: str
    """the requested share, such as `cpu:1`"""
    granted: GrantedShare
    """the share that the measurer proved from inside"""
    untuned_s: float
    """median latency without tuning, in seconds; see `is_untuned_summed`"""
    tuned_s: float
    """median latency of the variant for this share, in seconds"""
    run_secs: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """all repeats in seconds, by variant: `untuned`, `robust`, or the share that it was tuned at"""
    max_error: Mapping[str, float] = field(default_factory=dict)
    """largest difference to the untuned outputs over their largest value, by variant"""
    earlier_job: str = ""
    """`jobs/...` that measured this, if the result of the same bundle was reused; empty = this job"""
    timed_at: Annotated[float, In("time")] = 0.0
    """when it was measured, in seconds since 1970, UTC; 0 = not known"""
    at_load: tuple[AtLoad, ...] = ()
    """the fastest variants in a loop and at 30 % load, the one for this share first. Empty if the model is too slow for
    this timing"""

    others_cores: float = 0.0
    """cores of the share that other programs had meanwhile, on average"""

    variant: str = ""
    """the one of `tuned_s`: that for this share; of a CPU limit the best of those timed under it. Empty = not known"""

    inside: Inside | None = None
    """the calls inside the variant for this share; None on a GPU, under a CPU limit, and for a very slow model"""

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs made these times too long. Then the model takes at most that, and `best` is empty."""
        return is_disturbed(self.others_cores)

    @property
    def is_untuned_summed(self) -> bool:
        """Whether `untuned_s` is the sum of its operators' times: untuned, the whole model was too slow to run."""
        return bool(self.run_secs) and UNTUNED_VARIANT not in self.run_secs

    @property
    def is_untuned_at_most(self) -> bool:
        """Whether other programs made `untuned_s` too long. A sum is of operators that were timed before."""
        return self.is_disturbed and not self.is_untuned_summed

    @property
    def cores(self) -> int:
        """CPUs that the model's threads could run on; units of the share on a GPU."""
        return self.granted.limit.span if self.granted.limit else self.granted.units

    @property
    def kept(self) -> float:
        """The part of the cores that other programs left; 1.0 if they did not disturb the times."""
        return kept_part(self.others_cores, self.cores)

    @property
    def difference(self) -> float | None:
        """Largest difference of its outputs, as in `max_error`; None = not known."""
        return self.max_error.get(self.variant or self.share)

    @property
    def best(self) -> Mapping[ServiceGoal, AtLoad]:
        """What `fractune.load` takes, by goal; empty if it is not known."""
        return choices(self.at_load, self.others_cores)

    @property
    def at_load_best(self) -> AtLoad | None:
        """The best for requests at 30 % load, as far as it is known; None = not measured."""
        return self.best.get("latency", self.at_load[0] if self.at_load else None)

    @property
    def speed_up(self) -> float:
        """Untuned over tuned: 2.0 = twice as fast. NaN if a time is not known."""
        return self.untuned_s / self.tuned_s if self.tuned_s > 0 else float("nan")


@dataclass(frozen=True)
class JobProgress:
    """What a job has done so far."""

    trials_planned: int = 0
    """planned number of new candidates, its own and shared ones"""
    trials_done: Mapping[str, int] = field(default_factory=dict)
    """new measurements by share, failed ones included"""
    candidates_done: int = 0
    """new candidates measured at every share for this job"""
    candidates_shared: int = 0
    """new candidates, measured at every share, that another job requested"""
    failures: Mapping[str, int] = field(default_factory=dict)
    """failed measurements by cause"""
    trials_per_s: float = 0.0
    """candidates per second since the search began"""
    elapsed_s: float = 0.0
    """since the job was created"""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """seconds in each phase so far: `starting` (of a new stack), then the job's states"""
    busy_s: Mapping[str, float] = field(default_factory=dict)
    """seconds of work by kind, without waits for cores; kinds overlap, so their sum has no meaning"""
    trials_saved: int = 0
    """candidates of the budget that were not needed, because the operators are near their roof"""
    trials_known: int = 0
    """candidates that the log held when the search began; `JobSpec.trials` counts them too"""

    @property
    def candidates_had(self) -> int:
        """New candidates measured at every share, of this job or shared."""
        return self.candidates_done + self.candidates_shared


@dataclass(frozen=True)
class JobStatus:
    """A job at one moment. Times are seconds; a value that is not known yet is empty or 0."""

    name: str
    """`jobs/...`"""
    state: JobState
    spec: JobSpec
    """as requested"""
    progress: JobProgress = JobProgress()
    created_at: Annotated[float, In("create_time")] = 0.0
    """seconds since 1970, UTC"""
    error: str = ""
    """class name of the error that ended the job"""
    message: str = ""
    """message of that error"""
    notes: tuple[str, ...] = ()
    """what the job waits for, and what ingest did to the model"""
    operators: tuple[OperatorStatus, ...] = ()
    results: Annotated[tuple[ShareResult, ...], In("result.shares")] = ()
    """one for each share, once the job is done"""
    wall_s: Annotated[float, In("result.wall_s")] = 0.0
    """from its creation to its end, once the job is done"""
    bundle: Annotated[str, In("result.bundle")] = ""
    """`bundles/...`, once the job is done"""
    checked: Checked | None = None
    """what the bundle holds of its check; None before there is one, and where it does not say"""
    revision: int = 0
    """grows with every change"""
    roofs: Mapping[str, Roof] = field(default_factory=dict)
    """roof of each share; a share without a known roof is absent"""
    pace: Pace = field(default_factory=Pace, repr=False)
    """what whoever follows the job has learned"""

    def __repr__(self) -> str:
        trials = f"{self.progress.candidates_had}/{self.progress.trials_planned} trials"
        shares = ", ".join(self.shares)
        return f"JobStatus({self.name}: {self.state.value}, {one_line(self.model_name)} at {shares}, {trials})"

    @property
    def model(self) -> str:
        """`models/SHA256`"""
        return Collection.MODELS.of(self.spec.model)

    @property
    def model_name(self) -> str:
        """Name of the model file, a label."""
        return self.spec.model_name

    @property
    def shares(self) -> tuple[str, ...]:
        """As requested, with the whole cores at which kernels of CPU limits are measured."""
        return with_kernel_shares(self.spec.shares)

    @property
    def priority(self) -> Priority:
        """Its share of the fleet relative to other jobs."""
        return Priority.of(self.spec.priority)

    @property
    def tuned_at(self) -> tuple[str, ...]:
        """The shares under which kernels are measured; under the others only the whole model is timed."""
        return tuple(share for share in self.shares if Share.parse(share).kind.measures_kernels)

    @property
    def tuned_results(self) -> tuple[ShareResult, ...]:
        """Results at these shares."""
        return tuple(each for each in self.results if each.granted.kind.measures_kernels)

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs disturbed the times at some share."""
        return any(each.is_disturbed for each in self.results)

    @property
    def launch_s(self) -> Mapping[str, float]:
        """Seconds of a kernel's launch by share, where they are known: on a GPU."""
        return {share: roof.launch_s for share, roof in self.roofs.items() if roof.launch_s}

    @property
    def launches_s(self) -> Mapping[str, float]:
        """The same for all kernels of one inference, taken as one for each run of an operator."""
        launches = sum(each.weight for each in self.operators)
        return {share: launches * secs for share, secs in self.launch_s.items()}

    @property
    def trials_text(self) -> str:
        """`40 of 100 new trials (260 requested, 160 in the log)`"""
        done, requested = self.progress, self.spec.extra_trials or self.spec.trials
        text = f"{done.candidates_had} of {done.trials_planned} new trials"
        if self.spec.rerank or not requested or done.trials_planned == requested:
            return text
        had = f", {done.trials_known} in the log" if done.trials_known and not self.spec.extra_trials else ""
        return f"{text} ({requested} requested{had})"

    @property
    def time_left(self) -> TimeLeft | None:
        """Until the end of the job and of what its follower does afterwards; None if not known."""
        done, operators = self.progress, len(self._searched)
        build_s = done.busy_s.get("build", 0.0) / max(done.candidates_done, 1)
        least_s = {
            JobState.VALIDATING.value: _VALIDATED_TRIALS * operators / done.trials_per_s if done.trials_per_s else 0.0,
            JobState.COMPILING.value: build_s * operators,
            JobState.TIMING.value: _TIMING_S * len(self.spec.shares),
        }
        return time_left(self.state, done.phases_s, self._search_left_s, least_s, self.pace)

    @property
    def _search_left_s(self) -> float | None:
        """Seconds until the search has its trials at the present rate; None if not known."""
        done, limit_s = self.progress, self.spec.minutes * 60
        if self.state is not JobState.TUNING:
            return None if self.state in (JobState.QUEUED, JobState.INGESTING) else 0.0
        if done.trials_per_s <= 0:
            return None
        left_s = max(done.trials_planned - done.candidates_had, 0) / done.trials_per_s
        return min(left_s, max(limit_s - done.elapsed_s, 0.0)) if limit_s else left_s

    @property
    def _searched(self) -> list[OperatorStatus]:
        return [each for each in self.operators if each.selected and each.weight]

    @property
    def operators_s(self) -> Mapping[str, float]:
        """The best of all tuned operators in one inference by share, in seconds; empty until each has a time at each
        share.
        """
        if not self._searched or not all(each.best_s.keys() >= set(self.tuned_at) for each in self._searched):
            return {}
        return {share: sum(each.weight * each.best_s[share] for each in self._searched) for share in self.tuned_at}

    def followed(self, pace: Pace) -> JobStatus:
        """With what its follower knows, until now."""
        if self.state is JobState.TUNING:  # after it, times are of other measurements
            pace = pace.after(self.progress.candidates_had, self.operators_s)
        return replace(self, pace=pace)


def check_ended_well(job: JobStatus) -> None:
    """Raise the error that ended the job, or JobCancelled."""
    if job.state is JobState.FAILED:
        raise error_from_name(job.error, job.message) if job.error else JobFailed(f"{job.name} failed: {job.message}")
    if job.state is JobState.CANCELLED:
        raise JobCancelled(f"{job.name} was cancelled{f': {job.message}' if job.message else ''}")
    if job.state is not JobState.DONE:
        raise JobFailed(f"{job.name} has not ended: it is {job.state.value}")


@dataclass(frozen=True)
class OperatorRecords:
    """Published records of one operator: the schedule of each share at each of the shares."""

    operator: OperatorStatus
    cells: tuple[tuple[str, str, TuningRecord], ...]
    """tuned at, run at, record; unmeasured pairs are absent"""


@dataclass(frozen=True)
class OperatorMatch:
    """The record that an operator would use at a share, and the reason."""

    operator: OperatorStatus
    how: str
    """`exact`, `near`, `robust`, or `none`: then the untuned default is used"""
    regret: float | None
    """worst relative loss at the compared shares, 0.02 = 2 %; None = not measured"""
    reason: str
    record: TuningRecord | None
    """None for `none`"""


@dataclass(frozen=True)
class Worker:
    """A live worker of a server."""

    name: str
    """`workers/...`"""
    role: str
    """`compile`, `tune`, `build` or `measure`"""
    host: str
    pid: int
    started_at: Annotated[float, In("start_time")]
    """seconds since 1970, UTC"""
    device: Device | None = None
    """of a measurer: the processor it measures on"""
    granted: GrantedShare | None = None
    """of a measurer: the share that it proved"""
    state: str = ""
    """`busy` or `idle`"""


@dataclass(frozen=True)
class WaitingWork:
    """Work that no worker has begun."""

    role: str
    """of the workers that it waits for"""
    share: str
    """of the measurers that it waits for; empty for other roles"""
    pieces: int
    oldest_at: Annotated[float | None, In("oldest_time")] = None
    """when the oldest piece was queued, in seconds since 1970, UTC; None if it is not known"""


@dataclass(frozen=True)
class Fleet:
    """The workers of a server, and what waits for them."""

    workers: tuple[Worker, ...] = ()
    """by role and name"""
    waiting: tuple[WaitingWork, ...] = ()
    """by role and share"""


@dataclass(frozen=True)
class OfferedShare:
    """A share that is available now."""

    device: Device
    granted: GrantedShare
    measurers: Annotated[int, In("workers")]
    """number of live workers that measure at it"""


def job_status(job: pb.Job) -> JobStatus:
    phases_s, busy_s = phases_in_order(job.progress.phases_s), dict(sorted(job.progress.busy_s.items()))
    return from_proto(
        JobStatus,
        job,
        spec=from_proto(JobSpec, job.spec, model_name=job.model_display_name),
        progress=from_proto(JobProgress, job.progress, phases_s=phases_s, busy_s=busy_s),
        pace=Pace(),
    )


def phases_in_order(phases_s: Mapping[str, float]) -> dict[str, float]:
    """In the order of a job's phases; a map of the contract has no order."""
    return {state.value: phases_s[state.value] for state in JobState if state.value in phases_s}


def operator_records(answer: pb.OperatorTable) -> OperatorRecords:
    cells = tuple((each.tuned_at, each.run_at, from_proto(TuningRecord, each.record)) for each in answer.cells)
    return from_proto(OperatorRecords, answer, cells=cells)


def operator_match(answer: pb.OperatorMatch) -> OperatorMatch:
    return from_proto(OperatorMatch, answer, regret=None if math.isnan(answer.regret) else answer.regret)
