"""The report of a run: its figures as JSON, and as a page of text."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.chaos.audit import AuditFindings
from fractune.server.job_status import JobStatus
from fractune_core.jobs import JobState
from fractune_core.records import Status, TuningRecord


@dataclass(frozen=True)
class Spending:
    """The use of a job's budget, in candidates."""

    asked: int
    made: int
    """measured for this job"""
    had: int
    """these, with those that other jobs measured on the same operators, and those that it did not need"""

    @property
    def once(self) -> bool:
        """All requested candidates were measured, and nothing beyond them was charged."""
        return self.made <= self.asked <= self.had


@dataclass(frozen=True)
class ChaosReport:
    """The whole report of a run."""

    seed: int
    minutes: float
    """that processes were killed"""
    wall_s: float
    """until the last job had ended"""
    kills: Mapping[str, int]
    """by kind of victim"""
    jobs: Mapping[str, int]
    """by state"""
    messages: Sequence[str]
    """of the failed jobs, and of `fractune up` where it ended without a kill"""
    budgets: Mapping[str, Spending]
    """by job"""
    failures: Mapping[str, int]
    """records of the log that did not end well, by status and cause"""
    tracebacks: Mapping[str, int]
    """in the logs of the stack, by part"""
    audit: AuditFindings

    @property
    def asked(self) -> int:
        return sum(each.asked for each in self.budgets.values())

    @property
    def made(self) -> int:
        return sum(each.made for each in self.budgets.values())

    @property
    def holds(self) -> bool:
        """Return True if every job is done with its budget spent once, and the log equals the audit."""
        budgets_spent = all(each.once for each in self.budgets.values())
        all_done = set(self.jobs) == {JobState.DONE.value}
        return self.audit.faultless and all_done and not self.messages and budgets_spent

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "asked": self.asked, "made": self.made, "holds": self.holds}

    def text(self) -> str:
        """A page for people."""
        audit = self.audit
        lines = [
            f"chaos: seed {self.seed}, {self.minutes:.1f} minutes of kills, all jobs ended after {self.wall_s:.0f} s",
            f"  kills     {sum(self.kills.values())}: {_counts(self.kills)}",
            f"  jobs      {sum(self.jobs.values())}: {_counts(self.jobs)}",
            f"  budget    {self.made} of {self.asked} new candidates measured",
            f"  measured  {audit.said} reported, {audit.measured_again} of them twice, {audit.unsent} never sent",
            f"  log       {audit.recorded} records, {len(audit.given_up)} of them by the server for work given up",
            f"  audit     {len(audit.lost)} lost, {len(audit.doubled)} doubled, {len(audit.invented)} invented",
            f"  failures  {_counts(self.failures) or 'none'}",
            f"  tracebacks in logs  {_counts(self.tracebacks) or 'none'}",
        ]
        off = {job: each for job, each in self.budgets.items() if not each.once}
        lines += [f"  {job}: {each.made} measured, {each.had} had of {each.asked}" for job, each in off.items()]
        lines += [f"  {message}" for message in self.messages]
        return "\n".join([*lines, f"chaos: {'holds' if self.holds else 'DOES NOT HOLD'}"])


def budgets_of(jobs: Iterable[JobStatus], asked: int) -> dict[str, Spending]:
    """Each job had this budget."""
    done = {job.name: job.progress for job in jobs}
    return {
        name: Spending(asked, each.candidates_done, each.candidates_had + each.trials_saved)
        for name, each in done.items()
    }


def failures_of(records: Iterable[TuningRecord]) -> dict[str, int]:
    """By status and cause."""
    found = Counter(f"{each.status.value} ({each.cause})" for each in records if each.status is not Status.OK)
    return dict(found.most_common())


def messages_of(jobs: Iterable[JobStatus]) -> list[str]:
    """One line for each job that is not done."""
    bad = (job for job in jobs if job.state is not JobState.DONE)
    return [f"{job.name} {job.state.value}: {job.message or '; '.join(job.notes)}" for job in bad]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda each: -each[1]))
