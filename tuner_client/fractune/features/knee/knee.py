"""`fractune.knee`: the share beyond which a model hardly gains."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from fractune.features.knee import report
from fractune.features.matrix.matrix import job_tables
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.rpc import RECONNECT_S
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PathText, PlaceOptions, finished_job
from fractune.text.rendering import Drawable, Table
from fractune_core.errors import BadRequest, one_line
from fractune_core.jobs import JobSpec, LogOptions
from fractune_core.model_inputs import Inputs, Sizes
from fractune_core.shares import with_kernel_shares


@dataclass(frozen=True)
class KneeResult(Drawable):
    """The knee of the model, and if requested that of each operator."""

    reports: tuple[report.KneeReport, ...]
    """the model first; without operators that were never measured"""
    at_load: report.KneeReport | None = None
    """of the model's latencies of requests at 30 % load; None if not measured at every share"""
    limits: tuple[report.LimitLatency, ...] = ()
    """the model under the CPU limits that were named, predicted; the smallest limit first"""
    skipped_shares: Mapping[str, str] = field(default_factory=dict)
    """shares that could not be verified, each with the cause"""

    def __repr__(self) -> str:
        model, operators = self.reports[0], self.reports[1:]
        more = f", {len(operators)} operators" if operators else ""
        return f"KneeResult({one_line(model.name)}: {model.knee.reason}{more})"

    @property
    def units(self) -> int | None:
        """Cores or SMs at the model's knee; None if only one share was measured."""
        return self.reports[0].knee.units

    @property
    def table(self) -> Table:
        """Times at the shares, the knee, and its certainty."""
        return report.knee_table(self._shown, f"{self.reports[0].name}: the knee")

    @property
    def _shown(self) -> list[report.KneeReport]:
        model, *operators = self.reports
        return [model, *([self.at_load] if self.at_load else []), *operators]

    @property
    def limits_table(self) -> Table:
        """Predicted latency by CPU limit; without rows if no limit was named."""
        return report.limits_table(self.reports[0].name, self.limits)

    def _draw(self, path: Path) -> None:
        """Draw time by share with the knee marked."""
        report.draw_knee(self._shown, f"{self.reports[0].name}: time by share", path)


def knee(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    slack: float = 0.1,
    operators: bool = False,
    only: str = "",
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
    **options: Unpack[LogOptions],
) -> KneeResult:
    """The smallest share at which the model takes at most `slack` longer than on the whole device (0.1 = 10 %).

    It uses the log, with three shares or more for a curve, and measures what the log lacks, without a search. With
    `operators` it has each operator's knee too. CPU limits among the shares (`cpu:1500m`) are predicted from the times
    at whole cores (`limits`). The other options and errors are those of `tune`.
    """
    timed, limits = report.split_limits(shares)
    if not 0 <= slack <= 1:
        raise BadRequest(f"--slack is {slack}; it must be from 0 to 1, 0.1 being 10 %")
    with sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes) as (path, shapes):
        spec = JobSpec.requested(path.name, timed, rerank=1, only=only, inputs=shapes, **options)
        if len(with_kernel_shares(spec.shares)) < 2:
            raise BadRequest(f"--shares {spec.shares[0]}: a knee needs two shares, and a curve three; name more")
        with finished_job(path, spec, PlaceOptions(server, state, reconnect_s), choose_view(progress)) as (place, job):
            tables = job_tables(place.client, job, operators=operators)
    granted = {each.share: each.granted for each in job.results}
    measured = (table for table in tables if any(map(table.fastest, table.shares)))
    reports = tuple(report.fastest_knee(table, granted, slack) for table in measured)
    under_limits = report.limit_latencies(reports[0].run_secs, limits, disturbed=bool(reports[0].disturbed))
    return KneeResult(reports, report.at_load_knee(tables[0], granted, slack), under_limits, job.spec.skipped_shares)
