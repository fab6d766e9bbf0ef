"""Views that follow a job: a bar, plain lines, a function of the caller, or nothing."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.text.rendering import literal
from fractune.text.text import counts_text, span_text
from fractune_core.errors import one_line
from fractune_core.jobs import JobState

_WORK = {
    JobState.INGESTING: "ingesting: splitting the model into operators",
    JobState.VALIDATING: "validating: checking the best schedules and measuring them again",
    JobState.COMPILING: "compiling the bundle",
    JobState.TIMING: "timing the whole model",
}
LINE_EVERY_S = 5.0
"""least seconds between plain lines while only numbers change"""
EQUAL_LINE_EVERY_S = 60.0
"""least seconds between equal plain lines: they only show that the job goes on"""


@dataclass(frozen=True)
class GoalNews:
    """The part of a goal that views show."""

    lines: Sequence[str]
    """a line for the goal, then one for each step"""
    fields: Mapping[str, Any]
    """all data as JSON values"""


class View:
    """Shows the progress of a job within a `with` block; this one shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def show(self, job: JobStatus) -> None:
        pass

    def show_goal(self, goal: GoalNews) -> None:
        """Called when the goal of a tuning is known, and after each step."""

    def show_step(self, text: str) -> None:
        """Called before each job of a work of several."""

    def show_absence(self, absence: Absence) -> None:
        """Called every few seconds while the job's server is unreachable."""

    def leaves(self, job: str, stop: BaseException) -> bool:
        """Whether the server should continue `job` although `stop` ends the following; otherwise the job is
        cancelled.
        """
        del job, stop
        return False


def print_absence(absence: Absence) -> None:
    """Print a line on standard error; a redrawn display stays below it."""
    print(
        f"waiting for the server at {absence.server}, which has been away for {absence.away_s:.0f} s of "
        f"{absence.reconnect_s:g}",
        file=sys.stderr,
        flush=True,
    )


ProgressOption: TypeAlias = bool | Callable[[JobStatus], None] | View
"""True = a bar (plain lines on a plain output), False = nothing, or a function that gets each status"""

LineProgress: TypeAlias = bool | Callable[[str], None]
"""True = lines on standard error, False = nothing, or a function that gets each line"""


def choose_view(progress: ProgressOption) -> View:
    """The view for an option `progress`."""
    if isinstance(progress, View):
        return progress
    if callable(progress):
        return CallingView(progress)
    if not progress:
        return View()
    console = Console()
    # In a notebook rich redraws by a widget, and warns where there are no widgets.
    redraws = importlib.util.find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
    return BarView(console) if redraws else LineView()


def status_text(job: JobStatus) -> str:
    """One line: state and work, trials once they are planned, how many are shared, rate, time left, failures."""
    parts = [_WORK.get(job.state, job.state.value)]
    if job.progress.trials_planned:
        parts.append(f"{job.progress.candidates_had}/{job.progress.trials_planned} trials")
    elif job.state is JobState.TUNING:
        parts.append("no new trials")
    if job.progress.candidates_shared:
        parts.append(f"{job.progress.candidates_shared} shared")
    if job.progress.trials_per_s > 0 and job.state is JobState.TUNING:
        parts.append(f"{job.progress.trials_per_s:.1f} trials/s")
    if job.time_left_s is not None:
        parts.append(f"{span_text(job.time_left_s)} left")
    if job.progress.failures:
        parts.append(f"failed: {counts_text(dict(job.progress.failures))}")
    return ", ".join(parts)


class CallingView(View):
    """Passes each status to a function; an exception of the function ends the work like Ctrl-C."""

    def __init__(self, call: Callable[[JobStatus], None]) -> None:
        self._call = call

    def show(self, job: JobStatus) -> None:
        self._call(job)


class BarView(View):
    """A bar of the trials, redrawn at each change of the job."""

    def __init__(self, console: Console) -> None:
        # The texts come from models and servers, so they are not markup.
        name, status = (TextColumn(field, markup=False) for field in ("{task.description}", "{task.fields[status]}"))
        columns = (name, BarColumn(), status)
        self._progress = Progress(*columns, console=console, auto_refresh=False)
        self._task = self._progress.add_task("", total=None, status="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, job: JobStatus) -> None:
        ended = job.state is JobState.DONE
        self._progress.update(
            self._task,
            description=one_line(job.model_name),
            total=1 if ended else job.progress.trials_planned or None,
            completed=1 if ended else job.progress.candidates_had,
            status=status_text(job),
            refresh=True,
        )

    def show_goal(self, goal: GoalNews) -> None:
        self._progress.console.print(literal(goal.lines[-1]))

    def show_step(self, text: str) -> None:
        self._progress.console.print(literal(text))

    def show_absence(self, absence: Absence) -> None:
        print_absence(absence)


class LineView(View):
    """Prints a line for each change of state and each new note, and every few seconds."""

    def __init__(self) -> None:
        self._state: JobState | None = None
        self._notes: set[str] = set()
        self._line, self._printed_at = "", 0.0

    def show(self, job: JobStatus) -> None:
        for note in job.notes:
            if note not in self._notes:
                print(f"note: {one_line(note)}", flush=True)
        self._notes.update(job.notes)
        now, line = time.monotonic(), f"{job.name}: {status_text(job)}"
        least_s = EQUAL_LINE_EVERY_S if line == self._line else LINE_EVERY_S
        if job.state is not self._state or now - self._printed_at >= least_s:
            self._state, self._line, self._printed_at = job.state, line, now
            print(line, flush=True)

    def show_goal(self, goal: GoalNews) -> None:
        print(goal.lines[-1], flush=True)

    def show_step(self, text: str) -> None:
        print(text, flush=True)

    def show_absence(self, absence: Absence) -> None:
        print_absence(absence)


def line_reporter(progress: LineProgress) -> Callable[[str], None]:
    """A function that reports lines according to an option `progress`."""
    if callable(progress):
        return progress
    return _print_line if progress else lambda _: None


def _print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
