"""An open job in memory: the stored job, its work in progress, and the state of its operators.

Only this class changes the plans of its operators.
"""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

from fractune_core.analysis.inside import Inside
from fractune_core.analysis.roofline import attainable_s
from fractune_core.fleet.messages import TargetOperator, WorkRound
from fractune_core.fleet.redis_names import bundle_blob, model_blob, workload_blob
from fractune_core.jobs import JobState, Priority
from fractune_core.names import Collection
from fractune_core.records import Kind, Status, TuningRecord, candidate_id, joint_time_s
from fractune_core.shares import with_kernel_shares
from fractune_server.scheduler.allocation import Budget, OperatorPlan
from fractune_server.scheduler.fair_queue import Claimant
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.store.records.log import LogKey
from fractune_server.store.store import Store

# CPU limits in a job: kernels are measured at the whole cores that a limit spans, whole models under the limit.
#
# A limit has no search of its own. So a job at nothing but limits searches only what no job has tuned at these cores.


def kernel_share_notes(job: StoredJob) -> Iterator[str]:
    """The shares that the job tunes at beside the requested ones, for its limits and its ranges."""
    wanted = [share for share in job.spec.shares if share not in job.tuned_at]
    for shares, then in (
        ([each for each in wanted if each not in job.spec.ranges], "the whole model is timed under the limit"),
        (job.spec.ranges, "one variant serves the whole range"),
    ):
        added = [share for share in with_kernel_shares(shares) if share in job.tuned_at.keys() - {*job.spec.shares}]
        if added:
            yield f"{', '.join(shares)}: kernels are tuned at {', '.join(added)}, and {then}"


def tuned_before(job: StoredJob, done: Iterable[StoredJob]) -> list[str]:
    """Ids of the `done` jobs that tuned the same operators at all whole cores of a job at nothing but limits, newest
    first; empty if the job has to search.
    """
    spec, missing = job.spec, set(job.tuned_at)
    if spec.fresh or spec.extra_trials or any(share in job.tuned_at for share in spec.shares) or spec.ranges:
        return []
    found = []
    for earlier in done:
        new = missing & earlier.tuned_at.keys()
        searched = not earlier.spec.rerank and earlier.spec.trials > 0
        if new and searched and _scope(earlier) == _scope(job) and earlier.spec.only in ("", spec.only):
            found.append(earlier.id)
            missing -= new
    return [] if missing else found


def inside_ratios(job: StoredJob, done: Iterable[StoredJob], plans: Mapping[str, OperatorPlan]) -> dict[str, float]:
    """How much longer operators take inside the model than the trials of the same candidates took alone, by workload
    hash. At each share the newest of the `done` jobs counts that has timed the model there.
    """
    ratios = defaultdict[str, list[float]](list)
    same = [each for each in done if _scope(each) == _scope(job)]
    for share, granted in job.tuned_at.items():
        known = (each.timings[share] for each in same if share in each.timings and share in each.tuned_at)
        inside = next((timing["inside"] for timing in known if timing.get("inside")), None)
        for call in Inside.from_json(inside).calls if inside else ():
            plan = plans.get(call.workload_hash)
            alone_s = plan.measured.get(call.candidate, {}).get(granted.key, math.inf) if plan else math.inf
            if call.calls and 0 < alone_s < math.inf and call.secs > 0:
                ratios[call.workload_hash].append(call.secs / call.calls / alone_s)
    return {name: joint_time_s(each) for name, each in ratios.items()}


def _scope(job: StoredJob) -> tuple[object, ...]:
    """What decides which records a job may read (`ActiveJob.log_key`), and which operators its model has."""
    return job.spec.inputs, job.target_key, job.device.key, job.spec.exact, job.tenant, job.pool


_WAITING = "waiting for "
_FAILURES_ALLOWED = 3
"""failed searches of an operator after which the job gives it up"""


class TrialCounts:
    """Counts of a job's own trials, by candidate and share. They spare decisions a walk through all trials."""

    def __init__(self) -> None:
        self._known: set[tuple[str, str]] = set()
        self.candidates: set[str] = set()
        self.by_share: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        """by cause; trials that ran well are not counted"""

    def add(self, candidate: str, share: str, status: Status) -> None:
        """Count a trial; a repeated one changes nothing."""
        if (candidate, share) in self._known:
            return
        self._known.add((candidate, share))
        self.candidates.add(candidate)
        self.by_share[share] += 1
        if status is not Status.OK:
            self.failures[status.value] += 1


class SingleWork(NamedTuple):
    """Work with at most one piece of a job in progress."""

    task: Literal["ingest", "compile", "time_model"]
    share: str = ""
    """where a model is timed"""


@dataclass
class ActiveJob:
    """An open job. Not thread-safe: only the engine's thread calls it."""

    stored: StoredJob
    operators: list[StoredOperator]
    plans: dict[str, OperatorPlan] = field(default_factory=dict)
    """of the selected operators, by workload hash; filled when tuning begins"""
    own: TrialCounts = field(default_factory=TrialCounts)
    own_done: int = 0
    """candidates measured at all of the job's shares, at least once by a trial of this job"""
    requested: set[SingleWork] = field(default_factory=set)
    """work in progress"""
    attempts: Counter[SingleWork] = field(default_factory=Counter)
    """number of requests"""
    failed_searches: Counter[str] = field(default_factory=Counter)
    """by workload hash"""
    validations: Counter[str] = field(default_factory=Counter)
    """started rounds of validation, by workload hash"""
    validated: set[str] = field(default_factory=set)
    """workload hashes of the operators that need no further validation"""
    validation_began: bool = False
    tuned_before: list[str] = field(default_factory=list)
    """ids of the jobs that have searched all that this one needs, so that it searches nothing"""
    repeats_ms: dict[str, float] = field(default_factory=dict)
    """by workload hash, of operators that are a small part of the model's time: see `short_repeats_ms`"""
    bundle_sent: bool = False
    """whether the signature of the bundle in Redis was checked for this job"""
    bundle_writing: Future[None] | None = None
    """writes the model's times into the bundle, after the last timing"""
    dirty: bool = False
    saved_at: float = 0.0
    """monotonic seconds"""
    saved_state: JobState | None = None
    _search_ends_s: float | None = None
    """monotonic seconds, so that setting the clock neither shortens nor prolongs a search"""
    _saved_operators: dict[int, StoredOperator] = field(default_factory=dict)
    """as they are in the store, by position"""
    _log_keys: dict[str, LogKey] = field(default_factory=dict)
    """a cache, because decisions look at all operators"""

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def shares(self) -> list[str]:
        """where kernels are measured"""
        return list(self.stored.tuned_at)

    @property
    def timed_shares(self) -> list[str]:
        """where the whole model is timed"""
        return list(self.stored.granted)

    @property
    def share_keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(granted.key for granted in self.stored.tuned_at.values()))

    @property
    def selected(self) -> list[StoredOperator]:
        return [operator for operator in self.operators if operator.selected]

    @property
    def budget(self) -> Budget:
        spec = self.stored.spec
        closed = bool(spec.rerank or self.tuned_before)
        return Budget(spec.trials, spec.extra_trials, spec.round_size, closed=closed)

    @property
    def is_searching(self) -> bool:
        return self.stored.state is JobState.TUNING and not self.time_is_up

    @property
    def remaining(self) -> int:
        """Candidates that the job may still request."""
        return 0 if self.time_is_up else self.budget.remaining(list(self.plans.values()), self.gained)

    @property
    def gained(self) -> int:
        """Candidates measured at all of the job's shares since it began, by trials of any job."""
        return max(0, self._complete - (self.stored.progress.known or 0))

    @property
    def _complete(self) -> int:
        return sum(plan.complete for plan in self.plans.values())

    @cached_property
    def claimant(self) -> Claimant:
        weight = Priority.of(self.stored.spec.priority).weight
        return Claimant(self.id, self.stored.token, weight, self.stored.created_at, self.stored.tenant)

    @property
    def blobs(self) -> set[str]:
        """Names of the blobs that work for the job may need."""
        named = {workload_blob(operator.workload_hash) for operator in self.operators}
        bundle = {bundle_blob(self.stored.bundle)} if self.stored.bundle else set()
        given = self.stored.spec.check_inputs
        tenant = self.stored.tenant
        arrays = {model_blob(tenant, Collection.MODELS.parse(given))} if given else set()
        return {model_blob(tenant, self.stored.spec.model)} | arrays | named | bundle

    @property
    def time_is_up(self) -> bool:
        minutes, began = self.stored.spec.minutes, self.stored.tuning_began
        if minutes <= 0 or began is None:
            return False
        if self._search_ends_s is None:  # of an earlier server's search only the time of day is known
            left_s = minutes * 60 - max(0.0, time.time() - began)
            self._search_ends_s = time.monotonic() + left_s
        return time.monotonic() >= self._search_ends_s

    def log_key(self, workload_hash: str) -> LogKey:
        key = self._log_keys.get(workload_hash)
        if key is None or key.target_key != self.stored.target_key:
            spec = self.stored.spec
            key = self._log_keys[workload_hash] = LogKey(
                workload_hash,
                self.stored.target_key,
                self.stored.device.key,
                spec.exact,
                self.stored.pool,
                self.id if spec.fresh else "",
            )
        return key

    def untuned(self, workload_hash: str) -> str:
        """Candidate id of the untuned default."""
        return candidate_id(workload_hash, self.stored.target_key, "")

    def operator(self, workload_hash: str) -> StoredOperator:
        return next(op for op in self.operators if op.workload_hash == workload_hash)

    def now(self) -> float:
        """Seconds since 1970, never before the job's latest time: no phase is negative when the clock is set back."""
        return max(time.time(), self.stored.latest)

    def enter(self, state: JobState) -> None:
        self.stored.state = state
        self.stored.progress.entered_at[state.value] = self.now()
        self.requested.clear()
        self.note_waiting(())
        self.dirty = True

    def work_id(self, work: SingleWork) -> str:
        """The same id after a restart, so that work in progress is not handed out again."""
        place = str(self.timed_shares.index(work.share)) if work.share else ""
        return f"{self.id}-{work.task}{place}-{self.attempts[work]}"

    def note_requested(self, work: SingleWork) -> None:
        self.attempts[work] += 1
        self.requested.add(work)

    def end(self, state: JobState, error: str = "", message: str = "") -> None:
        self.stored.error, self.stored.message = error, message
        self.enter(state)
        self.stored.ended_at = self.stored.progress.entered_at[state.value]  # so that the phases add up

    def restart(self, reason: str) -> None:
        """Begin with the ingest again. Trials of the job so far count if its operators stay the same."""
        self.operators = []
        self.stored.progress.known = None
        self.note(reason)
        self.enter(JobState.INGESTING)

    def note(self, text: str) -> None:
        if text not in self.stored.notes:
            self.stored.notes.append(text)
            self.dirty = True

    def note_waiting(self, awaited: Iterable[str]) -> None:
        """Replace the notes on what the job waits for."""
        notes = [note for note in self.stored.notes if not note.startswith(_WAITING)]
        notes += [_WAITING + each for each in awaited]
        if notes != self.stored.notes:
            self.stored.notes = notes
            self.dirty = True

    def load_plans(self, store: Store) -> None:
        """Read the state of the operators from the log."""
        self.own_done = 0
        for operator in self.selected:
            plan = OperatorPlan(operator.workload_hash, operator.search_weight, self.share_keys)
            for row in store.log.trials(self.log_key(operator.workload_hash)):
                plan.add_trial(row.candidate_id, row.share_key, row.ranking_median_s, built=row.status.built)
                if row.job == self.id and row.share in self.stored.tuned_at:
                    self.own.add(row.candidate_id, row.share, row.status)
            self.own_done += sum(plan.has(name) for name in plan.measured if name in self.own.candidates)
            self.plans[operator.workload_hash] = plan
            self._copy_plan(operator, plan)
        self._load_spaces(store)
        earlier = store.jobs.done_of_model(self.stored.spec.model)
        self.tuned_before = tuned_before(self.stored, earlier)
        for name, ratio in inside_ratios(self.stored, earlier, self.plans).items():
            self.plans[name].inside = ratio
        if self.stored.progress.known is None:
            self.stored.progress.known = self._complete - self.own_done
        self.load_roofs(store)
        self.count_progress()

    def _load_spaces(self, store: Store) -> None:
        """Skip operators whose whole space is measured. A job that asks for extra trials may search them again."""
        if self.stored.spec.extra_trials:
            return
        held = store.spaces.of(self.stored.target_key, self.plans, self.stored.pool, exact=self.stored.spec.exact)
        for name, candidates in held.items():
            # At other shares, or after pruning, some of these candidates still need a measurement.
            self.plans[name].exhausted = self.plans[name].complete >= candidates

    def load_roofs(self, store: Store) -> None:
        """Give each plan the attainable times at the device's shares, in seconds."""
        roofs, arithmetic = store.roofs.of(self.stored.device.key), store.log.arithmetic(self.plans)
        for name, plan in self.plans.items():
            known = arithmetic.get(name)
            least_s = {share: attainable_s(known, roof) for share, roof in roofs.items()} if known else {}
            plan.set_attainable({share: secs for share, secs in least_s.items() if secs is not None})

    def is_above_roof(self, record: TuningRecord) -> bool:
        """Whether a kernel of one of the job's operators is faster than the roof of its share allows."""
        plan = self.plans.get(record.workload_hash)
        if plan is None or record.device.key != self.stored.device.key:
            return False
        return record.median_s < plan.attainable_s.get(record.granted.key, 0.0)

    def search_began(self, workload_hash: str) -> None:
        self.plans[workload_hash].begin_round()

    def search_ended(self, workload_hash: str, *, whole: bool) -> None:
        """`whole`: everything that the search proposed was measured."""
        self.plans[workload_hash].end_round(whole=whole)

    def search_failed(self, workload_hash: str, message: str) -> None:
        """Count a failure; after _FAILURES_ALLOWED the job gives the operator up."""
        self.failed_searches[workload_hash] += 1
        if self.failed_searches[workload_hash] >= _FAILURES_ALLOWED:
            self.plans[workload_hash].given_up = True
            self.note(f"gave up the search of {self.operator(workload_hash).name}: {message}")

    def space_exhausted(self, workload_hash: str) -> None:
        """The search has proposed every candidate that there is."""
        self.plans[workload_hash].exhausted = True

    def count_in_progress(self, workload_hash: str, *, busy: bool, in_flight: int) -> None:
        """Update what the rounds in progress mean for the operator; see `OperatorPlan`."""
        plan = self.plans[workload_hash]
        plan.busy, plan.in_flight = busy, in_flight

    def work_round(
        self,
        round_id: str,
        workload_hash: str,
        *,
        at_front: bool,
        target: str | None = None,
        repeat_ms: float | None = None,
        validates: bool = False,
    ) -> WorkRound:
        """A round of the job in its work; `target` is the job's if it is None."""
        name, target = self.operator(workload_hash).name, self.stored.target if target is None else target
        operator = TargetOperator(workload_hash, name, target, self.stored.target_key)
        return WorkRound(round_id, self.stored.pool, operator, at_front, repeat_ms, validates)

    def take_trial(self, record: TuningRecord) -> None:
        """Count a committed trial of any job; a repeated one changes nothing."""
        plan = self.plans.get(record.workload_hash)
        if plan is None or record.kind is not Kind.TRIAL or not self.log_key(record.workload_hash).has(record):
            return
        if record.job == self.id and record.share in self.stored.tuned_at:
            self.own.add(record.candidate_id, record.share, record.status)
        if plan.add_trial(record.candidate_id, record.granted.key, record.median_s, built=record.status.built):
            self.own_done += record.candidate_id in self.own.candidates
            plan.in_flight = max(0, plan.in_flight - 1)  # else progress counts it twice until the job advances
        self._copy_plan(self.operator(record.workload_hash), plan)
        self.dirty = True

    def count_progress(self) -> None:
        """Update the counts that users see."""
        progress = self.stored.progress
        progress.done = self.own_done
        progress.shared = max(0, self.gained - self.own_done)
        progress.by_share = dict.fromkeys(self.shares, 0) | self.own.by_share
        progress.failures = dict(self.own.failures)
        progress.planned = progress.done + progress.shared
        if self.stored.state is JobState.TUNING:
            progress.planned += sum(plan.in_flight for plan in self.plans.values())
            progress.planned += self.remaining if self.plans else 0

    def changed_operators(self) -> dict[int, StoredOperator]:
        """Operators that differ from the store, by position."""
        return {n: operator for n, operator in enumerate(self.operators) if operator != self._saved_operators.get(n)}

    def note_saved(self, operators: Mapping[int, StoredOperator]) -> None:
        """The store has these operators now."""
        self._saved_operators |= {
            n: replace(each, best_s=dict(each.best_s), untuned_s=dict(each.untuned_s)) for n, each in operators.items()
        }

    def _copy_plan(self, operator: StoredOperator, plan: OperatorPlan) -> None:
        operator.trials = plan.complete
        operator.best_s = {
            share: plan.best[granted.key]
            for share, granted in self.stored.tuned_at.items()
            if plan.best.get(granted.key, float("inf")) < float("inf")
        }
