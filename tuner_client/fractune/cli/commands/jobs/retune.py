"""`fractune retune`: what was tuned once, tuned again."""

import json
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import end_without
from fractune.cli.progress import choose_view
from fractune.features.retune import DEFAULT_LIMIT
from fractune.features.retune import retune as retune_models
from fractune_core.errors import JobFailed
from fractune_core.jobs import JobSpec, Priority


def retune(
    shares: Annotated[str, typer.Option("--shares", metavar="cpu:1,cpu:2", help="Shares to tune for.")],
    models: Annotated[str, typer.Option("--models", metavar="TEXT", help="Part of the models' names.")] = "",
    device: Annotated[
        str, typer.Option("--device", metavar="KEY", help="Only models measured on a device with this in its key.")
    ] = "",
    tvm: Annotated[
        str, typer.Option("--tvm", metavar="VERSION", help="Only models that this version of TVM measured last.")
    ] = "",
    trials: Annotated[
        int | None, typer.Option("--trials", help=f"Candidates of each model (default: {JobSpec.trials}).")
    ] = None,
    minutes: Annotated[float | None, typer.Option("--minutes", help="Stop each search after this long.")] = None,
    priority: Annotated[Priority, typer.Option("--priority", help="Share of the fleet.")] = Priority.LOW,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Look at this many of the newest jobs.")] = DEFAULT_LIMIT,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the models, in their order.")] = False,
    as_json: options.Json = False,
    *,
    place: options.JobPlace,
) -> None:
    """Tune the known models again: for other shares or new hardware."""
    found = retune_models(
        shares,
        trials=trials,
        minutes=minutes,
        models=models,
        device=device,
        tvm=tvm,
        priority=priority,
        limit=limit,
        dry_run=dry_run,
        progress=choose_view(quiet=False, as_json=as_json),
        **vars(place),
    )
    table = found.table
    if as_json:
        for row in table.rows:
            print(json.dumps({"event": "retuned", **row}))
    else:
        table.print()
        for note in table.notes:
            print(note)
    if failed := sum(bool(each.error) for each in found.models):
        raise JobFailed(f"{failed} of {len(found.models)} models could not be tuned; the table has the reasons")
    end_without(found.skipped_shares)
