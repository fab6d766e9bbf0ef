"""One operator of a job: its time inside the model and alone, and the schedules that were tried."""

import math
from collections.abc import Sequence
from dataclasses import asdict
from urllib.parse import urlencode

from fractune.dashboard.following import Trial, operator_progress
from fractune.dashboard.views.log import record_path
from fractune.dashboard.views.page import Block, Cell, Dot, Dots, Page, columns_of, cross_block, job_path, moment
from fractune.dashboard.views.parts import COLOURS, kind_of, points_block, progress_charts, roof_cell
from fractune.features.log.code import decisions_text
from fractune.features.matrix.cross_table import CrossTable, table_json
from fractune.features.tune.times_table import operator_time
from fractune.server.job_status import JobStatus, OperatorStatus
from fractune.text.text import ratio_text, span_text, time_text
from fractune_core.errors import NotFound, one_line, shortened
from fractune_core.records import TuningRecord

MOST_SCHEDULES = 1000
"""the newest"""
_NAME = 48
"""letters in a heading"""
_MOST_LISTED = 12
"""of the fastest at each share"""


def named_operator(job: JobStatus, operator: str) -> OperatorStatus | None:
    """`operator` is a workload hash or a name; None for an empty one. Raises NotFound for one that the job has not."""
    found = next((each for each in job.operators if operator in (each.workload_hash, each.name)), None)
    if operator and found is None:
        raise NotFound(
            f"operator '{shortened(operator, _NAME)}': {job.name} has none of this name; its page lists them"
        )
    return found


def operator_page(
    job: JobStatus,
    operator: OperatorStatus,
    trials: Sequence[Trial],
    records: Sequence[TuningRecord],
    table: CrossTable | None,
) -> Page:
    """`trials` are all of the job; `records` the newest of the operator in it. `table` is its table tuned at x run at,
    once the job has published its schedules.
    """
    name, of = one_line(operator.name), "one run of the operator"
    where = {"job": job.name, "operator": operator.workload_hash, "namespace": job.spec.namespace}
    progress = {share: operator_progress(job, trials, share, operator.workload_hash) for share in job.tuned_at}
    ran = sorted((each for each in records if math.isfinite(each.median_s)), key=lambda each: each.median_s)
    ways = {way: place % COLOURS for place, way in enumerate(dict.fromkeys(each.implementation for each in ran))}
    return Page(
        f"{name if len(name) <= _NAME else f'{name[:_NAME]}...'}: {job.name}",
        {
            "job": job.name,
            "operator": {**asdict(operator), "arithmetic": operator.arithmetic and asdict(operator.arithmetic)},
            "progress": {share: [vars(point) for point in points] for share, points in progress.items()},
            "schedules": [
                {
                    "record_id": each.record_id,
                    "share": each.share,
                    "implementation": each.implementation,
                    "median_s": each.median_s,
                    "measured_at": each.measured_at,
                    "decisions": decisions_text(each.trace),
                }
                for each in ran
            ],
            "matrix": None if table is None else table_json(table),
        },
        links=[
            ("the whole job", job_path(job.name)),
            ("its records", f"/log?{urlencode(where)}"),
        ],
        lead=name if len(name) > _NAME else "",
        first=[_times(job, operator)],
        dots=[picture for share in job.tuned_at if (picture := _picture(job, share, ran, ways))],
        charts=progress_charts(progress, of, {share: operator.untuned_s.get(share) for share in progress}),
        blocks=(
            *([] if table is None else [cross_block(table)]),
            _fastest(job, ran, len(records)),
            points_block(progress, of, len(trials)),
        ),
    )


def _times(job: JobStatus, operator: OperatorStatus) -> Block:
    """Inside the model and alone, at each share."""
    columns = columns_of(
        "share, #inside the model, #of the model, #once inside, #once alone, #untuned, #gain, #of roof, implementation"
    )
    results = {each.share: each for each in job.tuned_results}
    rows = []
    for share in job.tuned_at:
        best_s, untuned_s = operator.best_s.get(share), operator.untuned_s.get(share)
        time = operator_time(operator, results[share], job.roofs.get(share)) if share in results else None
        inside_s = None if time is None else time.inside_s
        rows.append(
            (
                Cell(share, colour=kind_of(operator.name)),
                Cell(time_text(inside_s)),
                Cell("-" if time is None else f"{time.model_part:.0%}"),
                Cell(time_text(inside_s / operator.weight if inside_s and operator.weight else None)),
                *(Cell(time_text(secs)) for secs in (best_s, untuned_s)),
                Cell(ratio_text(untuned_s, best_s)),
                roof_cell(job, operator, share),
                Cell((operator.implementations[share] or "direct") if share in operator.implementations else "-"),
            )
        )
    runs = f"{operator.weight} run{'s' if operator.weight != 1 else ''} in one inference, {operator.trials} trials"
    slower = [time.why_slower for each in results.values() if (time := operator_time(operator, each, None))]
    notes = (runs, *dict.fromkeys(f"slower inside than alone: {why}" for why in slower if why))
    return Block("Inside the model and alone", columns, tuple(rows), notes)


def _picture(job: JobStatus, share: str, ran: Sequence[TuningRecord], ways: dict[str, int]) -> Dots | None:
    """Each schedule that ran at the share by its time, on a log scale, over the time since the job began."""
    found = [each for each in ran if each.share == share]
    if not found:
        return None
    least, most = math.log(found[0].median_s), math.log(found[-1].median_s)
    begin, end = (pick(each.measured_at for each in found) for pick in (min, max))
    dots = [
        Dot(
            16 + 83 * (each.measured_at - begin) / (end - begin or 1.0),
            95 - 85 * (math.log(each.median_s) - least) / (most - least or 1.0),
            ways[each.implementation],
            f"{time_text(each.median_s)}, {each.implementation or 'direct'}: {decisions_text(each.trace)}",
        )
        for each in found
    ]
    middle = math.exp((least + most) / 2)
    marks = [(95.0, time_text(found[0].median_s)), (52.5, time_text(middle)), (10.0, time_text(found[-1].median_s))]
    ends = tuple(f"after {span_text(max(0.0, at - job.created_at))}" for at in (begin, end))
    legend = [(colour, way or "direct") for way, colour in ways.items()]
    return Dots(
        f"Schedules at {share} by implementation, on a log scale, over the time of the job",
        (ends[0], ends[1]),
        dots,
        marks,
        legend,
    )


def _fastest(job: JobStatus, ran: Sequence[TuningRecord], read: int) -> Block:
    """The fastest schedules at each share, with links to their records and code."""
    columns = columns_of("share, #median, implementation, decisions, measured, ")
    shown = [each for share in job.tuned_at for each in [one for one in ran if one.share == share][:_MOST_LISTED]]
    rows = tuple(
        (
            Cell(each.share),
            Cell(time_text(each.median_s), record_path(each, {})),
            Cell(each.implementation or "direct"),
            Cell(decisions_text(each.trace)),
            moment(each.measured_at),
            Cell("code", record_path(each, {}, "/code")),
        )
        for each in shown
    )
    notes = (f"of the newest {MOST_SCHEDULES} records",) if read >= MOST_SCHEDULES else ()
    return Block("Fastest schedules", columns, rows, notes, "no schedule of it ran yet")
