"""Output that several commands share."""

from __future__ import annotations

from pathlib import Path

from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.table import cross_text
from fractune.features.tune.table import latency_table, layout_transforms
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus
from fractune.text.rendering import Table
from fractune.text.text import LAUNCH_NOTE, counts_text, span_text, spent_text
from fractune_core.analysis.roofline import NEAR

HEAVIEST = 8
"""operators with a row of their own in the closing table"""


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


def print_result(job: JobStatus, bundle: str, step: str = "") -> None:
    """Print the results of a job. `step` says which part of the work it was: ` in the last step`."""
    latency, cross, times = latency_table(job), cross_text(model_table(job)), time_table(job, HEAVIEST)
    for table in (latency, cross, times):
        table.print()
    for line in dict.fromkeys((*times.notes, *cross.notes, *latency.notes)):
        print(line)
    progress = job.progress
    done = ", ".join(f"{progress.trials_done.get(share, 0)} at {share}" for share in job.tuned_at)
    print(f"new trials{step}: {done}; failed: {counts_text(dict(progress.failures))}")
    if progress.candidates_shared:
        print(f"shared: {progress.candidates_shared} more trials, which other jobs requested")
    print(f"layout transforms in one inference: {layout_transforms(job)}")
    if progress.trials_saved:
        near = f"{NEAR * 100:.0f} % of their roof"
        print(f"saved {progress.trials_saved} trials: operators at {near} are not searched further")
    rate = f", {progress.trials_per_s:.1f} trials/s while searching" if progress.trials_per_s > 0 else ""
    print(f"took {span_text(job.wall_s)}{step}{rate}")
    for title, spent_s in (("by phase", progress.phases_s), ("by kind of work, in parallel", progress.busy_s)):
        if spent_s:
            print(f"  {title}: {spent_text(spent_s)}")
    print(f"bundle: {bundle}")
