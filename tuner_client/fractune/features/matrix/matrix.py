"""`fractune.matrix`: the schedules tuned for each share, run at every other share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Unpack

from fractune.features.matrix import cross_table
from fractune.features.matrix.cross_table import CrossTable, cross_text, draw_table, model_table, operator_table
from fractune.models.open_sizes import sized_model
from fractune.models.source import ModelSource
from fractune.server.job_status import JobStatus, operator_records
from fractune.server.rpc import RECONNECT_S, RpcClient
from fractune.sessions.progress import ProgressOption, choose_view
from fractune.sessions.session import PathText, PlaceOptions, finished_job
from fractune.text.rendering import Drawable, Table
from fractune_core.codec.messages import from_lists
from fractune_core.errors import one_line
from fractune_core.jobs import JobSpec, LogOptions
from fractune_core.model_inputs import Inputs, Sizes
from fractune_core.pb import fractune_pb2 as pb


@dataclass(frozen=True)
class Matrix(Drawable):
    """The tables tuned-at x run-at: the model's, then its operators' if requested."""

    tables: tuple[CrossTable, ...]
    skipped_shares: Mapping[str, str] = field(default_factory=dict)
    """shares that could not be verified, each with the cause"""

    def __repr__(self) -> str:
        operators = f", {len(self.tables) - 1} operators" if self.tables[1:] else ""
        return f"Matrix({one_line(self.tables[0].name)}: {', '.join(self.tables[0].shares)}{operators})"

    @property
    def table(self) -> Table:
        """The model's table: a row for each variant, a column for each share, with sentences as notes."""
        return cross_text(self.tables[0])

    @property
    def operators(self) -> tuple[Table, ...]:
        """A table for each operator; empty unless requested."""
        return tuple(map(cross_text, self.tables[1:]))

    @property
    def sentences(self) -> tuple[str, ...]:
        """The loss of the schedules tuned for each share at every other share, with 95 % intervals."""
        return tuple(cross_table.sentences(self.tables[0]))

    def _draw(self, path: Path) -> None:
        """Draw the model's table as a heat map."""
        draw_table(self.tables[0], path)


def matrix(
    model: ModelSource,
    shares: str | Sequence[str],
    *,
    operators: bool = False,
    rerank: int = 1,
    only: str = "",
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    run_script: bool = False,
    server: str | None = None,
    state: PathText | None = None,
    progress: ProgressOption = True,
    reconnect_s: float = RECONNECT_S,
    **options: Unpack[LogOptions],
) -> Matrix:
    """Compare the schedules tuned for each share at every other share; measures what the log lacks, without a search.

    With `operators` there is a table for each operator too. The other options and errors are those of `tune`.
    """
    with sized_model(model, run_script=run_script, inputs=inputs, sizes=sizes) as (path, shapes):
        spec = JobSpec.requested(path.name, shares, rerank=rerank, only=only, inputs=shapes, **options)
        with finished_job(path, spec, PlaceOptions(server, state, reconnect_s), choose_view(progress)) as (place, job):
            return Matrix(tuple(job_tables(place.client, job, operators=operators)), job.spec.skipped_shares)


def job_tables(client: RpcClient, job: JobStatus, *, operators: bool) -> list[CrossTable]:
    """The tables of a finished job: the model's, then its operators' if requested."""
    return [model_table(job), *(operator_tables(client, job) if operators else ())]


def operator_tables(client: RpcClient, job: JobStatus) -> list[CrossTable]:
    """The table tuned-at x run-at of every operator of the finished job, from published records."""
    request = pb.TabulateModelRequest(
        model=job.model,
        shares=job.tuned_at,
        inputs=from_lists(job.spec.inputs, pb.Shape),
        target=job.spec.target,
        namespace=job.spec.namespace,
    )
    published = map(operator_records, client.tabulate_model(request))
    selected = {each.workload_hash for each in job.operators if each.selected}
    chosen = (each for each in published if each.operator.workload_hash in selected)
    return [operator_table(each, job.tuned_at, job.launch_s) for each in chosen]
