"""`fractune matrix`: the model tuned at each share, run at each share."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.progress import choose_view
from fractune.cli.submit import finished_job, operator_tables
from fractune.output_files import check_writable, replacing
from fractune.reports.cross_table import CrossTable, model_table, sentences
from fractune.reports.picture import check_picture, draw_table
from fractune.reports.tables import COLUMNS, rich_table, rows, table_json
from fractune.reports.text import table_console


def matrix(
    model: options.ModelFile,
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to compare.")],
    operators: Annotated[bool, typer.Option("--operators", help="Also one table for each operator.")] = False,
    rerank: Annotated[
        int,
        typer.Option("--rerank", min=1, help="Measure this many of every share's best trials."),
    ] = 1,
    only: options.Only = "",
    inputs: options.Inputs = None,
    target: options.Target = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the table here (.svg or .png).")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write all cells here.")] = None,
    server: options.Server = None,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Show how the schedules tuned for each share do at each of the others; measures what the log lacks."""
    if picture is not None:
        check_picture(picture)
    if csv_file is not None:
        check_writable("--csv", csv_file)
    spec = options.job_spec(model, shares, inputs=inputs, target=target, only=only, rerank=rerank)
    view = choose_view(quiet=False, as_json=as_json)
    with finished_job(model, spec, state, server, view) as (client, job):
        found = [model_table(job), *(operator_tables(client, job) if operators else [])]
    if csv_file is not None:
        _write_csv(found, csv_file)
    if picture is not None:
        draw_table(found[0], picture)
    if as_json:
        print(json.dumps({"event": "matrix", "shares": list(spec.shares), "tables": [table_json(t) for t in found]}))
        return
    console = table_console()
    for table in found:
        console.print(rich_table(table))
    for sentence in sentences(found[0]):
        print(sentence)
    if picture is not None:
        print(f"picture: {picture}")


def _write_csv(tables: list[CrossTable], path: Path) -> None:
    """Raises StateUnusable when the file cannot be written."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(("subject", "weight", *COLUMNS))
        for table in tables:
            for *row, repeats in rows(table):
                writer.writerow([table.name, table.weight, *row, " ".join(map(str, repeats))])
