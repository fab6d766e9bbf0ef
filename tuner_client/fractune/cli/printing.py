"""Output that several commands share."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.table import cross_text
from fractune.features.tune.answer import MOST_ROWS, Answer
from fractune.features.tune.table import latency_table, layout_transforms
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune.text.text import LAUNCH_NOTE, counts_text, span_text, spent_text
from fractune_core.analysis.roofline import NEAR
from fractune_core.errors import one_line

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
