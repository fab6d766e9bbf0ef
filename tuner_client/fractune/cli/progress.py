"""How a running job is shown: a live table, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fractune.reports.result import operator_json
from fractune.reports.text import counts_text, ratio_text, span_text, time_text
from fractune_core.convert import state_from_proto
from fractune_core.jobs import JobState
from fractune_core.pb import fractune_pb2 as pb

LINE_EVERY_S = 5.0
"""plain lines: at most this often while nothing but numbers change"""
_TABLE_ROWS = 24
"""operators that the live table shows, the heaviest first"""


class View(Protocol):
    """Shows a job as it goes on."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def show(self, job: pb.Job) -> None: ...


def choose_view(*, quiet: bool, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if quiet:
        return QuietView()
    return TableView() if sys.stdout.isatty() else LineView()


def time_left_s(job: pb.Job) -> float | None:
    """Seconds until the search has its trials at the present rate; None when that cannot be told."""
    progress = job.progress
    if state_from_proto(job.state) is not JobState.TUNING or progress.trials_per_s <= 0:
        return None
    left_s = max(progress.trials_planned - progress.candidates_done, 0) / progress.trials_per_s
    if job.spec.minutes:
        left_s = min(left_s, max(job.spec.minutes * 60 - progress.elapsed_s, 0.0))
    return left_s


def status_text(job: pb.Job) -> str:
    """One line: state, trials, rate, time left, failures."""
    progress = job.progress
    parts = [
        state_from_proto(job.state).value,
        f"{progress.candidates_done}/{progress.trials_planned} trials",
    ]
    if progress.trials_per_s > 0:
        parts.append(f"{progress.trials_per_s:.1f} trials/s")
    left_s = time_left_s(job)
    if left_s is not None:
        parts.append(f"{span_text(left_s)} left")
    if progress.failures:
        parts.append(f"failed: {counts_text(dict(progress.failures))}")
    return ", ".join(parts)


class QuietView:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, job: pb.Job) -> None:
        pass


class LineView(QuietView):
    """A line for each change of state and each new note, and every few seconds."""

    def __init__(self) -> None:
        self._state: int | None = None
        self._notes: set[str] = set()
        self._told_at = 0.0

    def show(self, job: pb.Job) -> None:
        for note in job.notes:
            if note not in self._notes:
                print(f"note: {note}")
        self._notes.update(job.notes)
        now = time.monotonic()
        if job.state != self._state or now - self._told_at >= LINE_EVERY_S:
            self._state, self._told_at = job.state, now
            print(f"{job.name}: {status_text(job)}", flush=True)


class JsonView(QuietView):
    """An object a line, whenever it has changed: `job` (state and notes), `operator`, `progress`."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], dict[str, Any]] = {}

    def show(self, job: pb.Job) -> None:
        name = job.name
        self._tell("job", name, {"state": state_from_proto(job.state).value, "notes": list(job.notes)})
        for operator in job.operators:
            if operator.selected:
                self._tell("operator", operator.workload_hash, operator_json(operator))
        self._tell("progress", name, {"state": state_from_proto(job.state).value, **progress_json(job)})

    def _tell(self, event: str, key: str, data: dict[str, Any]) -> None:
        whole = {"job": key, **data} if event != "operator" else data
        if self._last.get((event, key)) != whole:
            self._last[event, key] = whole
            print(json.dumps({"event": event, **whole}), flush=True)


def progress_json(job: pb.Job) -> dict[str, Any]:
    progress = job.progress
    return {
        "trials_planned": progress.trials_planned,
        "trials_done": dict(progress.trials_done),
        "candidates_done": progress.candidates_done,
        "failures": dict(progress.failures),
        "trials_per_s": progress.trials_per_s,
        "elapsed_s": progress.elapsed_s,
        "time_left_s": time_left_s(job),
    }


class TableView:
    """A live table on a terminal: operators with trials, best time and gain at each share."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, job: pb.Job) -> None:
        self._live.update(job_table(job), refresh=True)


def job_table(job: pb.Job) -> Group:
    table = Table(title=f"{job.model_display_name}  {job.name}", title_justify="left")
    table.add_column("operator", no_wrap=True, overflow="ellipsis")
    table.add_column("weight", justify="right")
    table.add_column("trials", justify="right")
    for share in job.spec.shares:
        table.add_column(f"best {share}", justify="right")
        table.add_column("gain", justify="right")
    selected = sorted((o for o in job.operators if o.selected), key=lambda o: -o.weight)
    for operator in selected[:_TABLE_ROWS]:
        cells = [operator.display_name, str(operator.weight), str(operator.trials)]
        for share in job.spec.shares:
            best_s, untuned_s = operator.best_s.get(share), operator.untuned_s.get(share)
            cells += [time_text(best_s), ratio_text(untuned_s, best_s)]
        table.add_row(*cells)
    lines = [Text(f"... and {len(selected) - _TABLE_ROWS} more")] if len(selected) > _TABLE_ROWS else []
    lines += [Text(f"note: {note}", style="yellow") for note in job.notes]
    return Group(table, *lines, Text(status_text(job), style="bold"))
