"""Views that follow a job: four live lines, plain lines, a function of the caller, or nothing."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from fractune.server.job_status import JobStatus
from fractune.server.rpc import Absence
from fractune.text.rendering import literal
from fractune.text.text import counts_text, factor_text, left_text, span_text
from fractune_core.errors import one_line
from fractune_core.jobs import JobState

_WORK = {
    JobState.INGESTING: "ingesting: splitting the model into operators",
    JobState.VALIDATING: "validating: checking the best schedules and measuring them again",
    JobState.COMPILING: "compiling the bundle",
    JobState.TIMING: "timing the whole model",
}
_WAITING = "waiting for "
"""begins a note on what the job waits for"""
_REDRAWN_EVERY_S = 1.0
_OF_AGE = 30
"""a display without news waits for this part of its age"""
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
    """Shows the progress of a job within a `with` block, perhaps of several one after the other; this one shows
    nothing.
    """

    afterwards_s = 0.0
    """what the caller does itself after each job, in seconds: it counts in the time left"""

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
"""True = four live lines (plain lines on a plain output), False = nothing, or a function that gets each status"""

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
    return LiveView(console) if redraws else LineView()


def status_text(job: JobStatus) -> str:
    """One line: state and work, time left, and of a search and at the end trials, how many are shared, rate, and
    failures.
    """
    trials = _trials_texts(job) if job.state is JobState.TUNING or not job.state.open else ()
    counts = [*trials, _failed_text(job), _left_text(job)]
    return ", ".join([_WORK.get(job.state, job.state.value), *filter(None, counts)])


def _trials_texts(job: JobStatus) -> Iterator[str]:
    done = job.progress
    if done.trials_planned:
        yield job.trials_text
    elif job.state is JobState.TUNING:
        yield "no new trials"
    if done.candidates_shared:
        yield f"{done.candidates_shared} shared"
    if done.trials_per_s > 0 and job.state is JobState.TUNING:
        yield f"{done.trials_per_s:.1f} trials/s"


def _failed_text(job: JobStatus) -> str:
    failures = dict(job.progress.failures)
    return f"failed: {counts_text(failures)}" if failures else ""


def _left_text(job: JobStatus) -> str:
    left = job.time_left
    return "" if left is None else left_text(left.secs, is_least=left.is_least)


def best_text(job: JobStatus, peer_s: Mapping[str, float]) -> str:
    """The operators' time over ONNX Runtime's whole one at each share, or over that of their first candidates where
    neither `peer_s`, its seconds by share, nor the log knows it.
    """
    known = {**job.pace.peer_s, **peer_s}
    if job.operators_s and job.operators_s.keys() <= known.keys():
        ratios = (f"{secs / known[share]:.2f} at {share}" for share, secs in job.operators_s.items())
        return f"best so far: all operators take {', '.join(ratios)} of ONNX Runtime's time"
    gains = [f"{factor_text(gain)} at {share}" for share, gain in job.pace.speed_ups().items()]
    found = f"{', '.join(gains)} over the first candidates" if gains else "not every operator has a time yet"
    return f"best so far: {found}"


def live_lines(job: JobStatus, step: str = "", peer_s: Mapping[str, float] = MappingProxyType({})) -> list[str]:
    """Four lines on a running job: the best so far, the trials, the time left of all phases, and what it waits for."""
    waits = [note for note in job.notes if note.startswith(_WAITING)]
    work = waits or ([_WORK.get(job.state, job.state.value)] if job.state.open else [])
    return [
        f"{job.model_name}: {best_text(job, peer_s)}",
        ", ".join(filter(None, [*_trials_texts(job), _failed_text(job)])) or "trials: not planned yet",
        _left_text(job) or ("time left: not known yet" if job.state.open else f"it took {span_text(job.wall_s)}"),
        "; ".join(filter(None, [step, *work])),
    ]


class CallingView(View):
    """Passes each status to a function; an exception of the function ends the work like Ctrl-C."""

    def __init__(self, call: Callable[[JobStatus], None]) -> None:
        self._call = call

    def show(self, job: JobStatus) -> None:
        self._call(job)


class _Rhythm:
    """Says when a changing display is due: at once for news, else more and more seldom, so that its output stays
    short however long a job takes.
    """

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._news: object = None
        self._began: float | None = None
        self._shown = 0.0

    def is_due(self, news: object, least_s: float = 0.0) -> bool:
        """Whether to show it now, which counts as shown. The same news waits for `least_s` too."""
        now = time.monotonic()
        self._began = now if self._began is None else self._began
        waits_s = max(self._least_s, least_s, (now - self._began) / _OF_AGE)
        if news == self._news and now - self._shown < waits_s:
            return False
        self._news, self._shown = news, now
        return True


class LiveView(View):
    """Four lines on a terminal, redrawn while the job goes on, and gone at the end."""

    def __init__(self, console: Console | None = None) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._job: JobStatus | None = None
        self._peer_s: Mapping[str, float] = {}
        self._step = ""
        self._rhythm = _Rhythm(_REDRAWN_EVERY_S)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, job: JobStatus) -> None:
        self._job = job
        self._update()

    def show_goal(self, goal: GoalNews) -> None:
        self._peer_s = goal.fields["peer_s"]
        self._live.console.print(literal(goal.lines[-1]))

    def show_step(self, text: str) -> None:
        self._step = text
        if self._live.is_started:
            self._update()
        else:
            self._live.console.print(literal(text))

    def show_absence(self, absence: Absence) -> None:
        print_absence(absence)

    def _update(self) -> None:
        job = self._job
        if self._rhythm.is_due((self._step, job and (job.state, job.notes))):
            lines = [self._step] if job is None else live_lines(job, self._step, self._peer_s)
            self._live.update(Group(*map(_one_row, lines)), refresh=True)


def _one_row(line: str) -> Text:
    text = literal(line)
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


class LineView(View):
    """Prints a line for each change of state and each new note, and more and more seldom between them."""

    def __init__(self) -> None:
        self._notes: set[str] = set()
        self._line = ""
        self._rhythm = _Rhythm(LINE_EVERY_S)

    def show(self, job: JobStatus) -> None:
        for note in job.notes:
            if note not in self._notes:
                print(f"note: {one_line(note)}", flush=True)
        self._notes.update(job.notes)
        line = f"{job.name}: {status_text(job)}"
        if self._rhythm.is_due((job.name, job.state), EQUAL_LINE_EVERY_S if line == self._line else 0.0):
            self._line = line
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
