"""`fractune cost`: the use of the fleet by jobs."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.cost import DEFAULT_LIMIT
from fractune.features.cost import cost as costs_of
from fractune.text.text import parse_lifetime_s


def cost(
    job: Annotated[
        str | None, typer.Argument(metavar="[JOB]", help="One job (default: the newest --limit jobs).")
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="30d", help="Only work that ended within this time (12h, 30d).")
    ] = None,
    prices: Annotated[
        Path | None, typer.Option("--prices", metavar="FILE.toml", help="Prices of an hour; adds the cost in money.")
    ] = None,
    by_token: Annotated[
        bool, typer.Option("--by-token", help="A row for each token; needs a token of the scope admin.")
    ] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many jobs, newest first.")] = DEFAULT_LIMIT,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Show the use of the fleet by jobs: share-seconds, CPU seconds, money. Money needs --prices."""
    began = None if since is None else time.time() - parse_lifetime_s("--since", since)
    found = costs_of(job, since=began, prices=prices, tokens=by_token, limit=limit, **vars(place))
    table = found.by_token if by_token else found.table
    if as_json:
        for row in table.rows:
            print(json.dumps(row))
    else:
        print(table)
