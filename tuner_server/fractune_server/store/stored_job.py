"""A job and a round as the store keeps them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fractune_core.codec.plain_json import In, JsonObject
from fractune_core.files.checked import Checked
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import DEFAULT_TENANT, Collection, place_owner
from fractune_core.records import Kind
from fractune_core.share_kinds import CPU
from fractune_core.shares import Device, GrantedShare
from fractune_server.store.database.sight import pool_of


@dataclass
class Progress:
    """Counts of one job; see the message of the same name in the public contract."""

    planned: Annotated[int, In("trials_planned")] = 0
    done: Annotated[int, In("candidates_done")] = 0
    """candidates measured at every share for this job"""
    shared: Annotated[int, In("candidates_shared")] = 0
    """candidates measured at every share for other jobs meanwhile"""
    known: Annotated[int | None, In("trials_known")] = None
    """candidates that the log held at every share when tuning began; None = not counted yet"""
    by_share: Annotated[dict[str, int], In("trials_done")] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    saved: Annotated[int, In("trials_saved")] = 0
    """candidates that were not searched, because the operators are near their roof"""
    entered_at: dict[str, float] = field(default_factory=dict)
    """time of day when the job entered each state"""
    busy_s: dict[str, float] = field(default_factory=dict)
    """seconds that workers worked for the job, by kind of work"""


@dataclass
class StoredOperator:
    """One operator of a job. Times in seconds by share, as text."""

    workload_hash: str
    name: Annotated[str, In("display_name")]
    weight: int
    selected: bool
    trials: int = 0
    best_s: dict[str, float] = field(default_factory=dict)
    untuned_s: dict[str, float] = field(default_factory=dict)

    @property
    def search_weight(self) -> int:
        """The weight with which it gets trials and validations: an alternative counts as if the model ran it once."""
        return self.weight or 1


@dataclass
class StoredJob(JsonObject):
    """Times of day in seconds since 1970."""

    id: Annotated[str, In("name", Collection.JOBS)]
    spec: JobSpec
    created_at: Annotated[float, In("create_time")]
    device: Device
    granted: dict[str, GrantedShare]
    """by share, as text; in the order of the request, with the whole cores of CPU limits"""
    asked_target: str
    """target text for ingest"""
    state: JobState = JobState.QUEUED
    ended_at: Annotated[float | None, In("end_time")] = None
    error: str = ""
    message: str = ""
    target: str = ""
    """TVM's target as JSON; known after ingest"""
    target_key: str = ""
    notes: list[str] = field(default_factory=list)
    revision: int = 1
    tuning_began: float | None = None
    tuning_ended: float | None = None
    progress: Progress = field(default_factory=Progress)
    bundle: str = ""
    checked: Checked | None = None
    """of the bundle; None before there is one, and where it does not say"""
    timings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """by share: `run_secs` and `max_error` by variant, `untuned_sum_s`, `granted` and `at_load` as JSON,
    `others_cores`; `job`, which timed it, and `timed_at`"""
    token: str = ""
    """id of the token that created the job; empty = no token was needed"""
    tenant: str = DEFAULT_TENANT
    shares_searches: bool = False
    """its tenant shares searches with other tenants"""

    @property
    def owner(self) -> str:
        """As `place_owner`."""
        return place_owner(self.tenant, self.token)

    @property
    def pool(self) -> str:
        """The records that its searches read and add to."""
        return pool_of(self.tenant, self.spec.namespace, shares_searches=self.shares_searches)

    @property
    def tuned_at(self) -> dict[str, GrantedShare]:
        """Those of `granted` under which kernels are measured; under the others only the whole model is timed."""
        return {share: granted for share, granted in self.granted.items() if granted.kind.measures_kernels}

    @property
    def cores(self) -> int:
        """Cores of the largest CPU share; 0 for other mechanisms. The target's num-cores."""
        return max(g.units if g.kind.device_kind == CPU else 0 for g in self.tuned_at.values())

    @property
    def latest(self) -> float:
        """The latest time that the job has noted."""
        return max(self.created_at, self.tuning_began or 0.0, *self.progress.entered_at.values())

    def phases_s(self, now: float) -> dict[str, float]:
        """Seconds in each state that the job has entered, by name and in order; their sum is the job's age.

        Empty for a job that has not begun.
        """
        if not self.progress.entered_at:
            return {}
        begun = {JobState.QUEUED.value: self.created_at, **self.progress.entered_at}
        order = sorted((at, state) for state, at in begun.items() if JobState(state).open)
        ends = [*(at for at, _ in order[1:]), max(self.ended_at or now, self.latest)]
        return {state: end - at for (at, state), end in zip(order, ends, strict=True)}


@dataclass
class Round:
    """Kept in the store while it lasts, so that a restarted server knows what is under way."""

    round_id: str
    job: str
    """job that requested the round"""
    kind: Kind
    workload_hash: str
    instance: str
    """the tuner instance that searches; empty for validations"""
    asked: int
    """number of requested candidates"""
    candidates: list[str] | None = None
    """None until the tuner instance has proposed them"""
    granted: dict[str, GrantedShare] = field(default_factory=dict)
    """by share as text: where the candidates are measured"""
