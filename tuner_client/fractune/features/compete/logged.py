"""Times of other runtimes that a log holds, as a table."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from fractune.server.job_status import JobStatus
from fractune.text.rendering import Column, Table
from fractune.text.text import disturbed_notes, estimate_text, marked_time, moment_text
from fractune_core.analysis.runtime_times import RuntimeTime
from fractune_core.disturbed import is_disturbed
from fractune_core.errors import one_line
from fractune_core.files.buckets import shape_text

_HOW = (
    "the runtime and the bundle of that time, interleaved, both confined to the share; paced: with pauses",
    "bundle over it: the bundle's time over the runtime's, with the 95 % interval; above 1 the runtime is faster",
)


def newest(times: Sequence[RuntimeTime]) -> list[RuntimeTime]:
    """Of times that come newest first, one for each runtime at each share and shape."""
    found: dict[Hashable, RuntimeTime] = {}
    for each in times:
        found.setdefault((shape_text(each.inputs), each.share, each.runtime), each)
    return [found[key] for key in sorted(found, key=str)]


def of_job(job: JobStatus, times: Sequence[RuntimeTime]) -> list[RuntimeTime]:
    """The newest at the job's shares, with inputs of the shapes that the job gives."""
    return newest([each for each in times if each.share in job.tuned_at and _has_shapes(each, job)])


def _has_shapes(each: RuntimeTime, job: JobStatus) -> bool:
    return all(each.inputs.get(name) == list(shape) for name, shape in job.spec.inputs.items() if shape)


def runtimes_table(times: Sequence[RuntimeTime]) -> Table:
    """A row for each."""
    columns = (
        *(Column("inputs", wraps_at=24), Column("share"), Column("runtime")),
        *(
            Column("in a loop", numbers=True),
            Column("the bundle", numbers=True),
            Column("bundle over it", numbers=True),
        ),
        *(Column("paced", numbers=True), Column("the bundle", numbers=True), Column("bundle over it", numbers=True)),
        *(Column("host", dispensable=1), Column("measured", dispensable=2)),
    )
    cells = tuple(
        (
            *(one_line(shape_text(each.inputs)), each.share, one_line(f"{each.runtime} {each.version}")),
            *(_time(each, each.loop_s), _time(each, each.bundle_loop_s), estimate_text(each.loop_ratio)),
            *(_time(each, each.paced_s), _time(each, each.bundle_paced_s), estimate_text(each.paced_ratio)),
            *(one_line(each.host), moment_text(each.measured_at)),
        )
        for each in times
    )
    return Table(title="Other runtimes", columns=columns, cells=cells, notes=(*_HOW, *disturbed_notes(times)))


def _time(each: RuntimeTime, secs: float) -> str:
    return marked_time(secs, at_most=is_disturbed(each.others_cores))
