"""`fractune knee`: the share beyond which a model hardly gains."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.cli.submit import finished_job, operator_tables
from fractune.reports.cross_table import CrossTable, model_table
from fractune.reports.knee_picture import draw_knee
from fractune.reports.knee_report import KneeReport, knee_report
from fractune.reports.knee_text import knee_json, knee_lines, knee_table, parse_slack
from fractune.reports.picture import check_picture
from fractune.reports.text import table_console
from fractune_core.convert import granted_from_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.shares import GrantedShare


def knee(
    model: options.ModelFile,
    shares: Annotated[
        str, typer.Option("--shares", metavar="cpu:1,cpu:2,cpu:4", help="Shares to look at; best three.")
    ],
    slack: Annotated[str, typer.Option("--slack", help="How much slower than the whole device is still good.")] = "10%",
    operators: Annotated[bool, typer.Option("--operators", help="Also the knee of each operator.")] = False,
    only: options.Only = "",
    inputs: options.Inputs = None,
    target: options.Target = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the curves here (.svg or .png).")] = None,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Find the smallest share at which a model is almost as fast as on the whole device, by what the log knows."""
    allowed = parse_slack(slack)
    if picture is not None:
        check_picture(picture)
    spec = options.job_spec(model, shares, inputs=inputs, target=target, only=only, rerank=1)
    view = choose_view(quiet=False, as_json=as_json)
    with finished_job(model, spec, state, server, view) as (client, job):
        tables = [model_table(job), *(operator_tables(client, job) if operators else [])]
    granted = {each.share: granted_from_proto(each.granted) for each in job.result.shares}
    reports = [_report(table, granted, allowed) for table in tables if any(map(table.fastest, table.shares))]
    if picture is not None:
        draw_knee(reports, f"{job.model_display_name}: time by share", picture)
    if as_json:
        print(json.dumps({"event": "knee", "curves": [knee_json(report) for report in reports]}))
    else:
        _print(reports, job, picture)


def _report(table: CrossTable, granted: Mapping[str, GrantedShare], slack: float) -> KneeReport:
    """The knee of what is fastest at each share, whatever share it was tuned at."""
    fastest = {share: variant for share in table.shares if (variant := table.fastest(share)) is not None}
    measured = {share: (granted[share].units, table.cells[name][share].run_secs) for share, name in fastest.items()}
    whole = next(iter(granted.values()))
    return knee_report(table.name, measured, whole.units_total, slack, whole.unit)


def _print(reports: Sequence[KneeReport], job: pb.Job, picture: Path | None) -> None:
    table_console().print(knee_table(reports, f"{job.model_display_name}: the knee"))
    for line in knee_lines(reports):
        print(line)
    if picture is not None:
        print(f"picture: {picture}")
