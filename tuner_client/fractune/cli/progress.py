"""Views of a running job: four live lines, plain lines, JSON lines, or nothing."""

import json
import sys
from dataclasses import asdict
from typing import Any

from fractune.cli.ending import LeavableView
from fractune.features.tune.table import operator_json
from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.sessions.progress import GoalNews, LineView, LiveView, View


def choose_view(*, quiet: bool, as_json: bool) -> LeavableView:
    return LeavableView(_plain_view(quiet=quiet, as_json=as_json))


def _plain_view(*, quiet: bool, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if quiet:
        return View()
    return LiveView() if sys.stdout.isatty() else LineView()


class JsonView(View):
    """An object on a line for each change: `job` (state and notes), `operator`, `progress`, `goal`.

    `waiting` comes while the server is unreachable.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, Any]] = {}

    def show(self, job: JobStatus) -> None:
        name = job.name
        self._report("job", name, {"state": job.state.value, "notes": list(job.notes)})
        for operator in job.operators:
            if operator.selected:
                self._report("operator", operator.workload_hash, operator_json(operator))
        self._report("progress", name, {"state": job.state.value, **progress_json(job)})

    def show_goal(self, goal: GoalNews) -> None:
        print(json.dumps({"event": "goal", **goal.fields}), flush=True)

    def show_step(self, text: str) -> None:
        print(json.dumps({"event": "step", "text": text}), flush=True)

    def show_absence(self, absence: Absence) -> None:
        print(json.dumps({"event": "waiting", **asdict(absence)}), flush=True)

    def _report(self, event: str, key: str, data: dict[str, Any]) -> None:
        whole = {"job": key, **data} if event != "operator" else data
        if self._last.get((event, key)) != whole:
            self._last[event, key] = whole
            print(json.dumps({"event": event, **whole}), flush=True)


def progress_json(job: JobStatus) -> dict[str, Any]:
    return {
        "trials_planned": job.progress.trials_planned,
        "trials_known": job.progress.trials_known,
        "trials_done": dict(job.progress.trials_done),
        "candidates_done": job.progress.candidates_done,
        "candidates_shared": job.progress.candidates_shared,
        "failures": dict(job.progress.failures),
        "trials_per_s": job.progress.trials_per_s,
        "elapsed_s": job.progress.elapsed_s,
        "time_left_s": None if job.time_left is None else job.time_left.secs,
        "time_left_is_least": None if job.time_left is None else job.time_left.is_least,
    }
