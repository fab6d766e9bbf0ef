"""The result of tuning a model in parts, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fractune.features.tune.result import TuneResult
from fractune.features.tune.table import doubts, result_json
from fractune.server.job_status import JobStatus
from fractune.text.checked_text import checked_json, checked_lines
from fractune.text.rendering import Column, Table
from fractune.text.text import ratio_text, span_text, time_text
from fractune_core.errors import some_of
from fractune_core.files.staged import Stages

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
    return Table(title=title, columns=columns, cells=tuple(_rows(result, stages)))


def _rows(result: TuneResult, stages: Stages) -> Iterator[tuple[str, ...]]:
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
