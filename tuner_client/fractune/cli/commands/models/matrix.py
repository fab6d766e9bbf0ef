"""`fractune matrix`: the model tuned at each share, run at each share."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import end_without
from fractune.cli.printing import print_json, print_tables
from fractune.cli.progress import choose_view
from fractune.features.matrix.cross_table import CrossTable
from fractune.features.matrix.matrix import matrix as model_matrix
from fractune.features.matrix.table import COLUMNS, rows, table_json
from fractune.text.figure import check_picture
from fractune.text.output_files import as_cell, check_writable, replacing


def matrix(
    model: options.ModelFile,
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to compare.")],
    operators: Annotated[bool, typer.Option("--operators", help="Also one table for each operator.")] = False,
    rerank: Annotated[int, typer.Option("--rerank", min=1, help="Number of every share's best trials to measure.")] = 1,
    only: options.Only = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the table here (.svg or .png).")] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Write all cells here.")] = None,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.JobPlace,
) -> None:
    """Compare the schedules tuned for each share at every other share. Measures what the log lacks."""
    check_picture(picture)
    if csv_file is not None:
        check_writable("--csv", csv_file)
    found = model_matrix(
        model,
        shares,
        operators=operators,
        rerank=rerank,
        only=only,
        progress=choose_view(quiet=False, as_json=as_json),
        **of_model.parsed(),
        **vars(place),
    )
    if csv_file is not None:
        _write_csv(found.tables, csv_file)
    if picture is not None:
        found.draw(picture)
    if as_json:
        tables = [table_json(table) for table in found.tables]
        skipped = dict(found.skipped_shares)
        shown = {"shares": list(found.tables[0].shares), "tables": tables, "skipped_shares": skipped}
        print_json({"event": "matrix", **shown})
    else:
        print_tables(found.table, *found.operators, picture=picture)
    end_without(found.skipped_shares)


def _write_csv(tables: Sequence[CrossTable], path: Path) -> None:
    """Raises StateUnusable when the file cannot be written."""
    with replacing(path) as file:
        writer = csv.writer(file)
        writer.writerow(("subject", "weight", *COLUMNS))
        for table in tables:
            for *row, repeats in rows(table):
                writer.writerow(map(as_cell, [table.name, table.weight, *row, ";".join(map(str, repeats))]))
