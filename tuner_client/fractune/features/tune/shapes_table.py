"""The result of a tuning for several shapes or in parts, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fractune.features.shapes.join import JoinedBundle, bundle_times, padding_line, shape_text
from fractune.features.tune.result import TuneResult
from fractune.features.tune.table import doubts, result_json
from fractune.server.job_status import JobStatus
from fractune.text.checked_text import checked_json, checked_lines
from fractune.text.rendering import Column, Table
from fractune.text.text import factor_text, ratio_text, span_text, time_text
from fractune_core.errors import some_of
from fractune_core.files.staged import Stages


def print_shapes(result: TuneResult, joined: JoinedBundle, *, as_json: bool) -> None:
    """Print what each shape takes at each share, and whether the shapes between them are padded."""
    if as_json:
        for job in result.jobs:
            print(json.dumps(result_json(job, str(result.bundle.path))), flush=True)
        print(json.dumps(joined_json(joined)), flush=True)
        return
    shapes_table(result).print()
    for job in result.jobs:
        for line in doubts(job):
            print(line)
    print(padding_line(joined.padding))
    print(f"took {span_text(sum(job.wall_s for job in result.jobs))}: {_spent(result)}")
    for line in checked_lines(result.bundle.path):
        print(line)
    print(f"bundle: {result.bundle.path}")


def shapes_table(result: TuneResult) -> Table:
    """A row for each shape and share: untuned and tuned seconds of the whole model, the smallest shape first."""
    columns = (
        Column("shape", wraps_at=24),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned", "tuned", "gain", "padding costs up to")),
    )
    return Table(title=f"{result.job.model_name} by shape", columns=columns, cells=tuple(_rows(result)))


def joined_json(joined: JoinedBundle) -> dict[str, Any]:
    return {
        "event": "joined",
        "bundle": str(joined.path),
        "buckets": list(joined.buckets),
        "padding": joined.padding.to_json(),
        "checked": checked_json(joined.path),
    }


def _rows(result: TuneResult) -> Iterator[tuple[str, ...]]:
    found = bundle_times(result.bundle.path)
    times = () if found is None else found.times
    padding = {(shape_text(each.inputs), each.share): each.most_padding for each in times}
    buckets = () if result.joined is None else result.joined.buckets
    for job, bucket in zip(reversed(result.jobs), buckets, strict=True):
        for each in job.results:
            factor = padding.get((shape_text(bucket), each.share))
            texts = (time_text(each.untuned_s), time_text(each.tuned_s), ratio_text(each.untuned_s, each.tuned_s))
            yield shape_text(bucket), each.share, *texts, "-" if factor is None else factor_text(factor)


def _spent(result: TuneResult) -> str:
    return ", ".join(_of_job(job) for job in result.jobs)


def _of_job(job: JobStatus) -> str:
    trials = sum(job.progress.trials_done.values())
    return f"{trials} new trials in {span_text(job.wall_s)}"


_RUNTIME = "ONNX Runtime"


def print_parts(result: TuneResult, stages: Stages, *, as_json: bool) -> None:
    """Print what runs each part, and what the own parts take at each share."""
    if as_json:
        for job in result.jobs:
            print(json.dumps(result_json(job, str(result.bundle.path))), flush=True)
        found = {"bundle": str(result.bundle.path), **stages.to_json(), "checked": checked_json(result.bundle.path)}
        print(json.dumps({"event": "parts", **found}), flush=True)
        return
    parts_table(result, stages).print()
    for job in result.jobs:
        for line in doubts(job):
            print(line)
    print(f"took {span_text(sum(job.wall_s for job in result.jobs))}: {sum(map(_trials, result.jobs))} new trials")
    for line in checked_lines(result.bundle.path):
        print(line)
    print(f"bundle: {result.bundle.path}")


def parts_table(result: TuneResult, stages: Stages) -> Table:
    """A row for each part, and for each share of an own part, in the order of running."""
    columns = (
        Column("part", numbers=True),
        Column("run by", wraps_at=32),
        Column("share"),
        *(Column(name, numbers=True) for name in ("untuned", "tuned", "gain")),
    )
    title = f"{result.bundle.path.name} in parts"
    return Table(title=title, columns=columns, cells=tuple(_part_rows(result, stages)))


def _part_rows(result: TuneResult, stages: Stages) -> Iterator[tuple[str, ...]]:
    for number, step in enumerate(stages.steps, 1):
        if step.member is None:
            names = [f"{count} {name}" if count > 1 else name for name, count in step.operators.items()]
            yield str(number), f"{_RUNTIME}: {some_of(names)}", "all", "-", "-", "-"
            continue
        for each in result.jobs[step.member].results:
            times = (time_text(each.untuned_s), time_text(each.tuned_s), ratio_text(each.untuned_s, each.tuned_s))
            yield str(number), "own code", each.share, *times


def _trials(job: JobStatus) -> int:
    return sum(job.progress.trials_done.values())
