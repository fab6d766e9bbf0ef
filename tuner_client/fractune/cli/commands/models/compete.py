"""`fractune compete`: a bundle beside other runtimes."""

from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.printing import print_json, print_tables
from fractune.features.client import Client
from fractune.features.compete.compete import REPEATS
from fractune.features.compete.compete import compete as compete_with
from fractune.features.compete.results import checked_json, checked_lines, contest_events
from fractune.sessions.session import session


def compete(
    bundle: Annotated[Path, typer.Argument(help="Bundle file; it gets the times, and is replaced.")],
    model: Annotated[Path, typer.Option("--model", help="The ONNX file that the bundle was made from.")],
    runtimes: Annotated[
        str | None,
        typer.Option("--runtimes", metavar="onnxruntime,openvino", help="Contenders (default: those installed)."),
    ] = None,
    shares: Annotated[
        str | None, typer.Option("--shares", metavar="cpu:1,cpu:2", help="CPU shares of the bundle (default: all).")
    ] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=6, help="Number of timings of each.")] = REPEATS,
    inexact: Annotated[
        bool, typer.Option("--inexact", help="Let runtimes round as they do by default (bfloat16, 8 bits).")
    ] = False,
    check_inputs: options.CheckInputs = None,
    sizes: options.SizesOfBundle = None,
    record: Annotated[bool, typer.Option("--record", help="Keep the times in the log of the server.")] = False,
    as_json: options.Json = False,
    *,
    place: options.Place,
) -> None:
    """Time a bundle beside other runtimes; the faster one serves it."""
    place.check_record(record=record)
    found = compete_with(
        bundle,
        model,
        runtimes=runtimes,
        shares=shares,
        repeats=repeats,
        inexact=inexact,
        check_inputs=check_inputs,
        sizes=options.parse_one_size(sizes),
        progress=not as_json,
    )
    if as_json:
        print_json({"event": "checked", "checked": checked_json(found.path)}, *contest_events(found))
    else:
        print_tables(found.table)
        for line in checked_lines(found.path):
            print(line)
        print(f"bundle: {found.path}", flush=True)
    if record:
        with session(Client, place.state, place.server) as client:
            client.add_runtime_times(found.measured())
