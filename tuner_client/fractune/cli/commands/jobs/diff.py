"""`fractune diff`: what got faster from one job or bundle to another."""

import json
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.diff import diff as diff_of

_SIDE = "Name of a job, or a bundle's file."


def diff(
    before: Annotated[str, typer.Argument(metavar="A", help=_SIDE)],
    after: Annotated[str, typer.Argument(metavar="B", help=_SIDE)],
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show what got faster from one job or bundle to another."""
    found = diff_of(before, after, **vars(place))
    if as_json:
        sides = {"before": found.before.to_json(), "after": found.after.to_json()}
        print(json.dumps({"event": "sides", **sides, "notes": found.notes}))
        for each in found.changes:
            print(json.dumps({"event": "change", **each.to_json()}))
        return
    found.table.print()
    for line in found.table.notes:
        print(line)
