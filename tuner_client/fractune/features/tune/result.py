"""What tuning and the questions to the log come to: values that show themselves as tables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fractune.features.knee.report import KneeReport
from fractune.features.knee.table import knee_table
from fractune.features.log.table import match_table
from fractune.features.matrix.cross_table import CrossTable, model_table, sentences
from fractune.features.matrix.table import cross_text
from fractune.features.tune.goal_result import Goal
from fractune.features.tune.table import latency_table
from fractune.features.tune.times_table import time_table
from fractune.server.job_status import JobStatus, OperatorMatch, ShareResult
from fractune.text.rendering import Table
from fractune_core.analysis.match import DEFAULT_POLICY, Policy
from fractune_core.analysis.roofline import Roof

if TYPE_CHECKING:
    from fractune.inference.model import Model


@dataclass(frozen=True)
class BundleFile:
    """A bundle on disk; wherever a path is asked for, it is one."""

    path: Path
    job: str = ""
    """`jobs/...`, which made it"""

    def __fspath__(self) -> str:
        return os.fspath(self.path)

    def load(
        self, *, share: str | None = None, public_key: str | bytes | None = None, policy: Policy = DEFAULT_POLICY
    ) -> Model:
        """Load the bundle for the share that this process is under, or for `share`: see `fractune.load`.

        Raises BadBundle, BadRequest, ShareUnavailable, or FractuneError when TVM's runtime is not installed.
        """
        from fractune.inference.model import load

        return load(self.path, share=share, public_key=public_key, policy=policy)

    def sign(self, private_key_pem: str | bytes) -> None:
        """Sign the file in place by an Ed25519 key: see `fractune.sign_bundle`. Raises BadBundle, BadRequest."""
        from fractune.inference.signatures import sign_bundle

        sign_bundle(self.path, private_key_pem)

    def verify(self, *, public_key: str | bytes | None = None) -> None:
        """Check every byte of the file: see `fractune.verify_bundle`. Raises BadBundle, BadRequest."""
        from fractune.inference.signatures import verify_bundle

        verify_bundle(self.path, public_key=public_key)


@dataclass(frozen=True)
class Matrix:
    """The tables tuned-at x run-at: of the model, then, where they were asked for, of its operators."""

    tables: tuple[CrossTable, ...]

    @property
    def table(self) -> Table:
        """Of the model: a row for each variant, a column for each share, and what that says."""
        return cross_text(self.tables[0])

    @property
    def operators(self) -> tuple[Table, ...]:
        """One for each operator; empty unless they were asked for."""
        return tuple(map(cross_text, self.tables[1:]))

    @property
    def sentences(self) -> tuple[str, ...]:
        """What the schedules tuned for each share lose at each of the others, with 95 % intervals."""
        return tuple(sentences(self.tables[0]))

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw the model's table as a heat map to `path` (.svg or .png).

        Raises BadRequest for another suffix, FractuneError without matplotlib, StateUnusable.
        """
        from fractune.features.matrix.picture import draw_table
        from fractune.text.figure import check_picture

        check_picture(Path(path))
        draw_table(self.tables[0], Path(path))


@dataclass(frozen=True)
class TuneResult:
    """A finished job and the bundle that it made."""

    job: JobStatus
    bundle: BundleFile
    measurers: Mapping[str, int] = field(default_factory=dict)
    """how many measurers each share had, by share; empty when a server did the work"""
    goal: Goal | None = None
    """what was to be beaten and how far that came, with `until_beats`; `job` is then the last step's"""

    @property
    def shares(self) -> tuple[ShareResult, ...]:
        """Latency untuned and tuned, in seconds, one for each share."""
        return self.job.results

    @property
    def table(self) -> Table:
        """Latency and speed-up at each share, measured alone."""
        return latency_table(self.job)

    @property
    def operators(self) -> Table:
        """Where the model's time goes: every operator, the heaviest first, its GFLOP/s and how close to its roof."""
        return time_table(self.job)

    @property
    def matrix(self) -> Matrix:
        """How the schedules tuned for each share do at each of the others."""
        return Matrix((model_table(self.job),))


@dataclass(frozen=True)
class KneeResult:
    """The share beyond which the model hardly gains, then, where they were asked for, that of each operator."""

    reports: tuple[KneeReport, ...]
    """of the model first; an operator that was never measured is left out"""

    @property
    def units(self) -> int | None:
        """Cores or SMs of the model's knee; None when only one share was measured."""
        return self.reports[0].knee.units

    @property
    def table(self) -> Table:
        """Times at the shares, the knee and how sure it is."""
        return knee_table(self.reports, f"{self.reports[0].name}: the knee")

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Draw time by share with the knee marked to `path` (.svg or .png).

        Raises BadRequest for another suffix, FractuneError without matplotlib, StateUnusable.
        """
        from fractune.features.knee.picture import draw_knee
        from fractune.text.figure import check_picture

        check_picture(Path(path))
        draw_knee(self.reports, f"{self.reports[0].name}: time by share", Path(path))


@dataclass(frozen=True)
class MatchResult:
    """Which record each operator of a model would use at a share, and why."""

    share: str
    operators: tuple[OperatorMatch, ...]
    roof: Roof | None = None
    """what the share can do at best; None = not known"""

    @property
    def table(self) -> Table:
        """A row for each operator."""
        return match_table(self.operators, self.roof)

    def to_json(self) -> list[dict[str, Any]]:
        """As `fractune match --json` prints it, one mapping for each operator."""
        return [dict(row) for row in self.table.rows]
