"""Kills the processes of a real `fractune up`, one after the other, while it tunes; then compares the log with the
audit of the measurers.

A stack on this machine's cores gets small real models to tune. Processes drawn from the seed are ended by `kill -9`
during --minutes: server, Redis, workers, their children, the forks that build, and `fractune up` itself, which the same
command then starts again. At least --jobs jobs are submitted, a few at a time, and more of them while the minutes last.
When all have ended, the log is compared with the audit files of the measurers. The exit code is 0 when every job is
done with its budget spent once, nothing is lost, doubled or invented, and `fractune up` never ended by itself; else 1.

Usage: scripts/chaos --minutes N [--seed S] [--jobs J] [--every SECONDS] [--candidates N] [--shares S] [--out FILE]
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import fractune
from benchmarks.chaos.audit import Audit, check_audit
from benchmarks.chaos.jobs import Submitter, requests
from benchmarks.chaos.report import ChaosReport, budgets_of, failures_of, messages_of
from benchmarks.chaos.schedule import STACK, Kill, Limits, choose, kills
from benchmarks.chaos.stack import UpProcess, audit_lines, logs_of, running_up
from benchmarks.support.machine import facts, write_json
from fractune_core.records import TuningRecord

_LOOK_EVERY_S = 0.1
_TEND_EVERY_S = 0.5
_QUIET_S = 300.0
"""when no job changes for this long after the last kill, they will not end"""
_MOST = 1_000_000


class Chaos:
    """One run. `schedule` strikes until `end_at_s` of the monotonic clock."""

    def __init__(self, stack: UpProcess, submitter: Submitter, args: argparse.Namespace) -> None:
        self._stack, self._submitter = stack, submitter
        self._jobs_wanted: int = args.jobs
        self._schedule = kills(args.seed, args.every)
        self._limits = Limits()
        self._next: Kill = next(self._schedule)
        self._began_s = time.monotonic()
        self._end_s = self._began_s + 60 * args.minutes
        self._strike_s = self._began_s + self._next.wait_s
        self._tend_s = self._changed_s = self._began_s
        self._seen: object = None
        self.kills = Counter[str]()
        self.stuck = False

    def run(self) -> None:
        """Until all jobs have ended, or nothing moves any more."""
        while not self._is_over():
            now_s = time.monotonic()
            self._stack.tend()
            if self._strike_s <= now_s < self._end_s:
                self._strike(now_s)
            if now_s >= self._tend_s:
                self._tend(now_s)
            time.sleep(_LOOK_EVERY_S)

    def _is_over(self) -> bool:
        now_s, submitted = time.monotonic(), self._submitter
        self.stuck = now_s - max(self._changed_s, self._end_s) > _QUIET_S
        return self.stuck or (now_s >= self._end_s and submitted.asked >= self._jobs_wanted and not submitted.open)

    def _strike(self, now_s: float) -> None:
        victim = choose(self._next, self._stack.living(), self._limits, now_s)
        if victim is not None:
            try:
                if victim.kind == STACK:
                    self._stack.kill()
                else:
                    os.kill(victim.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has ended by itself meanwhile: another one is drawn
                return
            self._limits.note(victim, now_s)
            self.kills[victim.kind] += 1
        self._next = next(self._schedule)
        self._strike_s = now_s + self._next.wait_s

    def _tend(self, now_s: float) -> None:
        more = now_s < self._end_s or self._submitter.asked < self._jobs_wanted
        self._submitter.tend(more=more)
        seen = sorted((job.name, job.revision) for job in self._submitter.jobs.values())
        if seen != self._seen:
            self._seen, self._changed_s = seen, now_s
        self._tend_s = time.monotonic() + _TEND_EVERY_S


def run_chaos(args: argparse.Namespace, folder: Path) -> ChaosReport:
    """Everything is kept in `folder`. Its path must be short: sockets lie in it."""
    shares = args.shares.split(",")
    began_s = time.monotonic()
    with running_up(folder, args.shares) as stack:
        submitter = Submitter(stack.address, requests(folder, args.seed, shares, args.candidates))
        chaos = Chaos(stack, submitter, args)
        chaos.run()
        wall_s = time.monotonic() - began_s
        records = _records(stack)
    jobs = list(submitter.jobs.values())
    audit = Audit()
    for lines in audit_lines(stack.audit):
        audit.read(lines)
    messages = [f"fractune up ended by itself: {words}" for words in stack.ended_by_itself]
    messages += [f"nothing has changed for {_QUIET_S:.0f} s: open jobs are not waited for"] if chaos.stuck else []
    return ChaosReport(
        seed=args.seed,
        minutes=args.minutes,
        wall_s=wall_s,
        kills=dict(chaos.kills),
        jobs=dict(Counter(job.state.value for job in jobs)),
        messages=[*messages, *messages_of(jobs)],
        budgets=budgets_of(jobs, args.candidates),
        failures=failures_of(records),
        tracebacks=logs_of(stack.state),
        audit=check_audit(audit, records),
    )


def _records(stack: UpProcess) -> Sequence[TuningRecord]:
    """The whole log. The last kill may have struck a moment ago: the client waits until somebody serves."""
    deadline_s = time.monotonic() + 60
    while True:
        stack.tend()
        try:
            with fractune.connect(stack.address) as client:
                return client.log.query(limit=_MOST).records
        except fractune.errors.ServerUnreachable:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(_TEND_EVERY_S)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, required=True, help="how long processes are killed")
    parser.add_argument("--seed", type=int, default=0, help="of the schedule and of the jobs")
    parser.add_argument("--jobs", type=int, default=4, help="jobs at least")
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two kills, in the mean")
    parser.add_argument("--candidates", type=int, default=16, help="new candidates of each job")
    parser.add_argument("--shares", default=_default_shares(), help="to offer, as of `fractune up`")
    parser.add_argument("--out", type=Path, help="write the report there as JSON")
    parser.add_argument("--keep", type=Path, help="an empty folder that keeps state, logs and audit")
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the stack ends with this process
    with tempfile.TemporaryDirectory(prefix="fractune-chaos-") as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        report = run_chaos(args, folder)
    print(report.text())
    if args.out is not None:
        write_json(args.out, {"machine": facts(), **report.to_json()})
    return 0 if report.holds else 1


def _default_shares() -> str:
    """One core and, where there is a second, two."""
    return "cpu:1,cpu:2" if len(os.sched_getaffinity(0)) > 1 else "cpu:1"


if __name__ == "__main__":
    sys.exit(main())
