"""The result of a tuning as JSON, and of one for several shapes or in parts as a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fractune.features.compete.results import contest_events
from fractune.features.goal import goal_json
from fractune.features.shapes.join import bundle_times
from fractune.features.tune.answer import answer_json
from fractune.features.tune.result import TuneResult
from fractune.features.tune.table import result_json
from fractune.server.job_status import ShareResult
from fractune.text.checked_text import checked_json
from fractune.text.rendering import Column, Table
from fractune.text.text import factor_text, marked_time, ratio_text, untuned_notes
from fractune_core.errors import some_of
from fractune_core.files.buckets import shape_text
from fractune_core.files.staged import Stages


def result_events(result: TuneResult) -> Iterator[dict[str, Any]]:
    """The events of a finished tuning as plain data: what was compared, and the result last."""
    path = result.bundle.path
    if result.competed is not None:
        yield from contest_events(result.competed)
    found = {"checked": checked_json(path), **answer_json(result.answer)}
    if result.joined is None and result.stages is None:
        goal = {} if result.goal is None else {"goal": goal_json(result.goal)}
        yield {**result_json(result.job, str(path)), **found, **goal}
        return
    for job in result.jobs:
        yield result_json(job, str(path))
    if result.joined is not None:
        joined = {"buckets": list(result.joined.buckets), "padding": result.joined.padding.to_json()}
        yield {"event": "joined", "bundle": str(path), **joined, **found}
    elif result.stages is not None:
        yield {"event": "parts", "bundle": str(path), **result.stages.to_json(), **found}


def shapes_table(result: TuneResult) -> Table:
    """A row for each shape and share, the smallest shape first: the whole model without and with tuning. The last
    column is about the smallest inputs that run in this shape: how many times as long padding makes them.
    """
    columns = (
        Column("shape", wraps_at=24),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned TVM", "tuned", "gain", "padding costs up to")),
    )
    notes = untuned_notes(each for job in result.jobs for each in job.results)
    return Table(title=f"{result.job.model_name} by shape", columns=columns, cells=tuple(_rows(result)), notes=notes)


def _rows(result: TuneResult) -> Iterator[tuple[str, ...]]:
    found = bundle_times(result.bundle.path)
    times = () if found is None else found.times
    padding = {(shape_text(each.inputs), each.share): each.most_padding for each in times}
    buckets = () if result.joined is None else result.joined.buckets
    for job, bucket in zip(reversed(result.jobs), buckets, strict=True):
        for each in job.results:
            factor = padding.get((shape_text(bucket), each.share))
            yield shape_text(bucket), each.share, *_times(each), "-" if factor is None else factor_text(factor)


def _times(each: ShareResult) -> tuple[str, str, str]:
    untuned = marked_time(each.untuned_s, at_most=each.is_untuned_at_most)
    tuned = marked_time(each.tuned_s, at_most=each.is_disturbed)
    return untuned, tuned, ratio_text(each.untuned_s, each.tuned_s)


_RUNTIME = "ONNX Runtime"


def parts_table(result: TuneResult, stages: Stages) -> Table:
    """A row for each part, and for each share of an own part, in the order of running."""
    columns = (
        Column("part", numbers=True),
        Column("run by", wraps_at=32),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned TVM", "tuned", "gain")),
    )
    title = f"{result.bundle.path.name} in parts"
    notes = untuned_notes(each for job in result.jobs for each in job.results)
    return Table(title=title, columns=columns, cells=tuple(_part_rows(result, stages)), notes=notes)


def _part_rows(result: TuneResult, stages: Stages) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate(stages.steps, 1):
        if step.member is None:
            names = [f"{count} {name}" if count > 1 else name for name, count in step.operators.items()]
            yield str(number), f"{_RUNTIME}: {some_of(names)}", "all", "-", "-", "-"
            continue
        for each in result.jobs[step.member].results:
            yield str(number), "own code", each.share, *_times(each)
