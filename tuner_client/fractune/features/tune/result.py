"""The result of a tuning, which shows itself as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fractune.features.compete.results import CompeteResult
from fractune.features.goal.goal_result import Goal
from fractune.features.matrix.cross_table import model_table
from fractune.features.matrix.matrix import Matrix
from fractune.features.shapes.join import JoinedBundle
from fractune.features.tune.bundle import BundleFile
from fractune.features.tune.table import latency_table
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus, ShareResult
from fractune.text.checked_text import checks_of
from fractune.text.rendering import Table
from fractune.text.text import ratio_text, time_text
from fractune_core.errors import one_line
from fractune_core.files.checked import Checked
from fractune_core.files.staged import Stages


@dataclass(frozen=True)
class TuneResult:
    """A finished job and the bundle that it made."""

    job: JobStatus
    bundle: BundleFile
    measurers: Mapping[str, int] = field(default_factory=dict)
    """number of measurers of each share, by share; empty if a server did the work"""
    goal: Goal | None = None
    """the goal and its progress, with `until_beats`; `job` is then the last step's"""
    jobs: tuple[JobStatus, ...] = ()
    """of a tuning for several shapes: the job of each, the largest first, which is `job`; of a model in parts: the job
    of each part"""
    joined: JoinedBundle | None = None
    """of a tuning for several shapes: its buckets, and whether they may be padded"""
    stages: Stages | None = None
    """of a model in parts: what runs in which order"""
    competed: CompeteResult | None = None
    """other runtimes beside the bundle, with `compete`, and for a model in parts"""

    def __repr__(self) -> str:
        times = ", ".join(f"{each.share} {_time_text(each)}" for each in self.shares)
        return f"TuneResult({one_line(self.job.model_name)}: {times}; bundle {self.bundle.path})"

    def _repr_html_(self) -> str:
        return self.table._repr_html_()

    def to_pandas(self) -> Any:
        """The table, a row for each share, as a `pandas.DataFrame`. Raises FractuneError without pandas."""
        return self.table.to_pandas()

    def to_polars(self) -> Any:
        """The table, a row for each share, as a `polars.DataFrame`. Raises FractuneError without Polars."""
        return self.table.to_polars()

    @property
    def shares(self) -> tuple[ShareResult, ...]:
        """Latency untuned and tuned, in seconds, one for each share."""
        return self.job.results

    @property
    def table(self) -> Table:
        """Latency and speed-up at each share, measured alone."""
        return latency_table(self.job)

    @property
    def checked(self) -> list[Checked]:
        """What was compared of the bundle's outputs, of a joined bundle for each member. Raises BadBundle."""
        return checks_of(self.bundle.path)

    @property
    def operators(self) -> Table:
        """The distribution of the model's time: every operator, the heaviest first, with GFLOP/s and part of the
        roof.
        """
        return time_table(self.job)

    @property
    def matrix(self) -> Matrix:
        """The schedules tuned for each share at every other share; for a model in parts, those of its first part."""
        return Matrix((model_table(self.job),))


def _time_text(each: ShareResult) -> str:
    return f"{time_text(each.tuned_s)} ({ratio_text(each.untuned_s, each.tuned_s)})"
