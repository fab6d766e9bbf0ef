"""`fractune pair`: the cost of co-location for two models."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.printing import print_tables
from fractune.features.client import Client
from fractune.features.pair.pair import DEFAULT_ROUNDS, PairResult
from fractune.features.pair.pair import pair as measure_pair
from fractune.sessions.session import session
from fractune_core.errors import BadRequest


def pair(
    a: Annotated[Path, typer.Argument(help="Bundle file.", metavar="A.fractune")],
    b: Annotated[Path | None, typer.Argument(help="Bundle file of the other model.", metavar="B.fractune")] = None,
    shares: Annotated[
        str | None,
        typer.Option(
            "--shares", metavar="cpu:1,cpu:1", help="A share for each model (default: half of the cores each)."
        ),
    ] = None,
    overlap: Annotated[
        str | None, typer.Option("--overlap", metavar="cpu:2", help="Both on the same cores, at the same time.")
    ] = None,
    interleaved: Annotated[
        bool, typer.Option("--interleaved", help="Both on the same cores (all, or those of --overlap), alternately.")
    ] = False,
    co_runner: Annotated[
        str | None,
        typer.Option(
            "--co-runner", metavar="bubble:32MiB", help="Instead of B: a process that streams through memory."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds (alone, together, alone); 7 at least.")] = (
        DEFAULT_ROUNDS
    ),
    rate: Annotated[
        str | None,
        typer.Option("--rate", metavar="20,10", help="Requests a second for latencies (default: 30 % load)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of phases and arrivals.")] = 0,
    record: Annotated[bool, typer.Option("--record", help="Keep the result in the log of the server.")] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Measure the cost of running two models on this machine together."""
    place.check_record(record=record)
    found = measure_pair(
        a,
        b,
        shares=shares,
        overlap=overlap,
        interleaved=interleaved,
        co_runner=co_runner,
        rounds=rounds,
        rate=None if rate is None else parse_rates(rate),
        seed=seed,
        progress=not as_json,
    )
    if as_json:
        print(json.dumps(found.to_json()), flush=True)
    else:
        print_tables(found.table)
    if record:
        _record(found, place, as_json=as_json)


def _record(found: PairResult, place: options.Place, *, as_json: bool) -> None:
    """After the result is shown: it is not lost if no server answers."""
    pair = found.measured()
    with session(Client, place.state, place.server) as client:
        client.add_pair(pair)
    if not as_json:
        print(f"recorded as {pair.pair_id}")


def parse_rates(text: str) -> float | list[float]:
    """Read `20` or `20,10`. Raises BadRequest."""
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"--rate '{text}': write requests a second, such as 20, or 20,10 for each model") from None
    return rates[0] if len(rates) == 1 else rates
