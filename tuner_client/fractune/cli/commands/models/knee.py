"""`fractune knee`: the share beyond which a model hardly gains."""

from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import end_without
from fractune.cli.printing import print_json, print_picture, print_tables
from fractune.cli.progress import choose_view
from fractune.features.knee.knee import knee as model_knee
from fractune.features.knee.report import limit_json
from fractune.features.knee.table import knee_json
from fractune.text.figure import check_picture


def knee(
    model: options.ModelFile,
    shares: Annotated[
        str,
        typer.Option(
            "--shares",
            metavar="cpu:1,cpu:2,cpu:4",
            help="Shares of the curve, three or more; limits (cpu:1500m) are predicted.",
        ),
    ],
    slack: Annotated[str, typer.Option("--slack", help="Allowed slow-down against the whole device.")] = "10%",
    operators: Annotated[bool, typer.Option("--operators", help="Also the knee of each operator.")] = False,
    only: options.Only = "",
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw the curves here (.svg or .png).")] = None,
    as_json: options.Json = False,
    *,
    of_model: options.ModelOptions,
    place: options.JobPlace,
) -> None:
    """Find the smallest share that is nearly as fast as the whole device."""
    allowed = options.parse_part("--slack", slack)
    check_picture(picture)
    found = model_knee(
        model,
        shares,
        slack=allowed,
        operators=operators,
        only=only,
        progress=choose_view(quiet=False, as_json=as_json),
        **of_model.parsed(),
        **vars(place),
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        at_load = None if found.at_load is None else knee_json(found.at_load)
        curves, limits = map(knee_json, found.reports), map(limit_json, found.limits)
        shown = {"curves": list(curves), "at_load": at_load, "limits": list(limits)}
        print_json({"event": "knee", **shown, "skipped_shares": dict(found.skipped_shares)})
    else:
        print_tables(found.table)
        if found.limits:
            print_tables(found.limits_table)
        print_picture(picture)
    end_without(found.skipped_shares)
