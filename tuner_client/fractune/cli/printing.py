"""Output that several commands share: tables, answers, and views of a running job."""

import json
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fractune.cli.ending import LeavableView
from fractune.features.matrix.cross_table import cross_text, model_table
from fractune.features.tune.answer import MOST_ROWS, Answer
from fractune.features.tune.table import latency_table, layout_transforms, operator_json
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.sessions.progress import GoalNews, LineView, LiveView, View
from fractune.text.rendering import Table
from fractune.text.text import LAUNCH_NOTE, counts_text, span_text, spent_text
from fractune_core.analysis.roofline import NEAR
from fractune_core.errors import one_line


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


HEAVIEST = 8
"""operators with a row of their own, unless all are wanted"""
_MOST_NOTES = 3


def print_tables(*tables: Table, picture: Path | None = None) -> None:
    """Print the tables, then the notes of the first, and what a mark in any of them means."""
    for table in tables:
        table.print()
    marks = (LAUNCH_NOTE for table in tables if LAUNCH_NOTE in table.notes)
    for line in dict.fromkeys((*marks, *tables[0].notes)):
        print(line)
    print_picture(picture)


def print_picture(picture: Path | None) -> None:
    if picture is not None:
        print(f"picture: {picture}")


def print_json(*events: Mapping[str, Any]) -> None:
    """Print an object on a line for each event."""
    if events:
        print(*map(json.dumps, events), sep="\n", flush=True)


def print_answer(
    answer: Answer, bundle: str, lines: Iterable[str] = (), notes: Iterable[str] = (), most_rows: int | None = MOST_ROWS
) -> list[str]:
    """Print the answer, one table with `most_rows` (None = all), and the first `notes`. With five further `lines` these
    are 25 at most. Returns the notes that were printed.
    """
    job, table = answer.job, answer.table
    for line in answer.lines:
        print(line)
    if table.cells:
        replace(table, cells=table.cells[:most_rows]).print()
    if most_rows is not None and len(table.cells) > most_rows:
        print(f"{len(table.cells) - most_rows} more rows: --verbose or --json has all")
    found = list(dict.fromkeys((*table.notes, *notes)))
    for note in found[:_MOST_NOTES]:
        print(note)
    if len(found) > _MOST_NOTES:
        print(f"more notes: {len(found) - _MOST_NOTES}; 'fractune show {job.name}' prints all")
    for line in lines:
        print(line)
    print(f"{answer.spent}; the rest: fractune show {job.name} --operators")
    print(f"bundle: {bundle}", flush=True)
    return found[:_MOST_NOTES]


def print_details(job: JobStatus, most: int | None = HEAVIEST, printed: Collection[str] = ()) -> None:
    """Print all that is known of a finished job, but for notes that were `printed` before. Of its operators the `most`
    heaviest have a row; None = all.
    """
    latency, cross, times = latency_table(job), cross_text(model_table(job)), time_table(job, most)
    for table in (latency, cross, times):
        table.print()
    _print_new((*times.notes, *cross.notes, *latency.notes), printed)
    if job.roofs:
        print("roof: the highest speed that the share's arithmetic and memory allow for an operator")
    progress = job.progress
    done = ", ".join(f"{progress.trials_done.get(share, 0)} at {share}" for share in job.tuned_at)
    print(f"measured: {done}; failed: {counts_text(dict(progress.failures))}")
    if progress.candidates_shared:
        print(f"shared: {progress.candidates_shared} more trials, which other jobs requested")
    print(f"operators that only change the layout of data: {layout_transforms(job)} in one inference")
    if progress.trials_saved:
        near = f"{NEAR * 100:.0f} % of their roof"
        print(f"saved {progress.trials_saved} trials: operators at {near} are not searched further")
    rate = f", {progress.trials_per_s:.1f} trials/s while searching" if progress.trials_per_s > 0 else ""
    print(f"took {span_text(job.wall_s)}{rate}")
    for title, spent_s in (("by phase", progress.phases_s), ("by kind of work, in parallel", progress.busy_s)):
        if spent_s:
            print(f"  {title}: {spent_text(spent_s)}")
    _print_new((f"note: {one_line(note)}" for note in job.notes), printed)


def _print_new(lines: Iterable[str], printed: Collection[str]) -> None:
    for line in dict.fromkeys(lines):
        if line not in printed:
            print(line)
