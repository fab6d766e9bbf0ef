"""A run of the real `fractune tune`, as a user would type it, and what its log holds afterwards."""

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.support.models import Model
from benchmarks.support.processes import Ended, run_timed
from benchmarks.support.runs import Run
from benchmarks.support.trajectory import Trial
from fractune_core.records import Kind, Status, TuningRecord

_COMMAND = [sys.executable, "-m", "fractune.cli"]


@dataclass(frozen=True)
class Tuned:
    """A `fractune tune` that has ended."""

    process: Ended
    result: dict[str, Any]
    """the event `result` of `--json`"""
    tuning_began: float
    """seconds since 1970: when the job was seen to search; at the command's end when there was nothing to search"""
    phases_s: list[dict[str, float]] = field(default_factory=list)
    """of each job, in their order; several shapes have a job each"""

    @property
    def bundle(self) -> Path:
        return Path(self.result["bundle"])

    @property
    def job(self) -> str:
        """Its id, as records name it."""
        return str(self.result["job"]).removeprefix("jobs/")

    @property
    def weights(self) -> dict[str, int]:
        return {operator["workload_hash"]: operator["weight"] for operator in self.result["operators"]}


def tune(model: Model, shares: str, state: Path, out: Path, options: Sequence[str] = ()) -> Tuned:
    """Tune `model` in the folder `state`; the bundle goes to the folder `out`."""
    args = ["tune", str(model.path), "--shares", shares, "--state", str(state), "--out-dir", str(out), "--json"]
    args += ["--compete", "none"]
    ended = run_timed([*_COMMAND, *args, *model.options, *options])
    events = [(at, json.loads(line)) for at, line in ended.lines]
    began = next((at for at, event in events if event["event"] == "job" and event["state"] == "tuning"), None)
    phases_s = [event["phases_s"] for _, event in events if event["event"] == "result"]
    return Tuned(ended, events[-1][1], began or events[-1][0], phases_s)


def records_of(state: Path) -> list[TuningRecord]:
    """All records of the log in the folder `state`, by `fractune log export`."""
    with tempfile.TemporaryDirectory(prefix="fractune-bench-") as folder:
        path = Path(folder) / "log.jsonl"
        run_timed([*_COMMAND, "log", "export", str(path), "--format", "jsonl", "--state", str(state)])
        with path.open(encoding="utf-8") as file:
            parts = [json.loads(line) for line in file]
    return [TuningRecord.from_json(part["record"]) for part in parts if "record" in part]


def winners(records: Sequence[TuningRecord], share: str) -> dict[str, str]:
    """The published schedules: by workload hash the trace that was fastest in the validation, the untuned one among
    them.
    """
    finals = [r for r in records if r.kind is Kind.VALIDATION and r.share == share and r.status is Status.OK]
    return {r.workload_hash: r.trace for r in sorted(finals, key=lambda record: -record.median_s)}


def as_run(tuned: Tuned, records: Sequence[TuningRecord], share: str) -> Run:
    """The trials of this run at one share. Earlier records of its operators in the log count from the start on."""
    trials = [
        Trial(max(record.measured_at, tuned.process.started), record.workload_hash, record.median_s, record.trace)
        for record in records
        if record.kind is Kind.TRIAL
        and record.share == share
        and record.workload_hash in tuned.weights
        and record.measured_at <= tuned.process.started + tuned.process.wall_s
    ]
    trials.sort(key=lambda trial: trial.at_s)
    return Run(tuned.process, tuned.tuning_began, tuned.weights, trials, dict(tuned.result["failures"]))
