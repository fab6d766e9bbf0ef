"""Views of a running job: a live table, plain lines, JSON lines, or nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fractune.cli.ending import LeavableView
from fractune.features.tune.table import operator_json
from fractune.server.job_status import JobStatus, OperatorStatus
from fractune.server.rpc import Absence
from fractune.sessions.progress import GoalNews, LineView, View, print_absence, status_text
from fractune.text.rendering import Column, Table, literal
from fractune.text.text import ratio_text, time_text

_TABLE_ROWS = 24
"""operators in the live table, the heaviest first"""
_GOAL_STEPS = 3
"""last steps of a goal that are shown"""


def choose_view(*, quiet: bool, as_json: bool) -> LeavableView:
    return LeavableView(_plain_view(quiet=quiet, as_json=as_json))


def _plain_view(*, quiet: bool, as_json: bool) -> View:
    if as_json:
        return JsonView()
    if quiet:
        return View()
    return TableView() if sys.stdout.isatty() else LineView()


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
        "trials_done": dict(job.progress.trials_done),
        "candidates_done": job.progress.candidates_done,
        "candidates_shared": job.progress.candidates_shared,
        "failures": dict(job.progress.failures),
        "trials_per_s": job.progress.trials_per_s,
        "elapsed_s": job.progress.elapsed_s,
        "time_left_s": job.time_left_s,
    }


class TableView(View):
    """A live table on a terminal: operators with trials, best time and gain at each share."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, auto_refresh=False)
        self._job: JobStatus | None = None
        self._goal: Sequence[str] = ()
        self._step = ""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, job: JobStatus) -> None:
        self._job = job
        self._update()

    def show_goal(self, goal: GoalNews) -> None:
        self._goal = goal.lines
        self._update()

    def show_step(self, text: str) -> None:
        self._step = text
        self._update()

    def show_absence(self, absence: Absence) -> None:
        print_absence(absence)

    def _update(self) -> None:
        table = [] if self._job is None else [job_table(self._job)]
        lines = goal_lines(self._goal) if self._goal else []
        lines += [literal(self._step, style="bold")] if self._step else []
        self._live.update(Group(*table, *lines), refresh=True)


def job_table(job: JobStatus) -> Group:
    best = (
        (Column(f"best {share}", numbers=True), Column("gain", numbers=True, dispensable=1)) for share in job.tuned_at
    )
    counts = (Column("weight", numbers=True, dispensable=3), Column("trials", numbers=True, dispensable=2))
    selected = sorted((o for o in job.operators if o.selected), key=lambda o: -o.weight)
    table = Table(
        title=f"{job.model_name}  {job.name}",
        columns=(Column("operator", wraps_at=16), *counts, *chain(*best)),
        cells=tuple(_operator_cells(operator, job.tuned_at) for operator in selected[:_TABLE_ROWS]),
    )
    lines = [Text(f"... and {len(selected) - _TABLE_ROWS} more")] if len(selected) > _TABLE_ROWS else []
    lines += [literal(f"note: {note}", style="yellow") for note in job.notes]
    return Group(table, *lines, literal(status_text(job), style="bold"))


def _operator_cells(operator: OperatorStatus, shares: Sequence[str]) -> tuple[str, ...]:
    cells = [operator.name, str(operator.weight), str(operator.trials)]
    for share in shares:
        best_s, untuned_s = operator.best_s.get(share), operator.untuned_s.get(share)
        cells += [time_text(best_s), ratio_text(untuned_s, best_s)]
    return tuple(cells)


def goal_lines(lines: Sequence[str]) -> list[Text]:
    """The goal, and how far the last steps came."""
    steps = [literal(step) for step in lines[1:][-_GOAL_STEPS:]]
    for step in steps:
        step.pad_left(6)
    return [literal(lines[0], style="bold"), *steps]
