"""`fractune fit`: the least CPU limit for a request rate and a p99."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.ending import GOAL_MISSED
from fractune.cli.printing import print_json, print_picture, print_tables
from fractune.features.fit.fit import DEFAULT_STEP, FitResult
from fractune.features.fit.fit import fit as fit_model
from fractune.local.model_server import SERVERS
from fractune.text.figure import check_picture


def fit(
    model: Annotated[Path, typer.Argument(help="Bundle, or ONNX file (see --runtime).", metavar="MODEL")],
    rate: Annotated[str, typer.Option("--rate", metavar="18/s", help="Requests, which arrive at random.")],
    p99: Annotated[str, typer.Option("--p99", metavar="50ms", help="Latency that 99 % of the requests must keep.")],
    share_steps: Annotated[
        str, typer.Option("--share-steps", metavar="50m", help="Limits are multiples of this.")
    ] = DEFAULT_STEP,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    picture: Annotated[Path | None, typer.Option("--picture", help="Draw p99 over limit here (.svg or .png).")] = None,
    runtime: Annotated[
        str, typer.Option("--runtime", metavar="onnxruntime|openvino", help="For an ONNX file.")
    ] = "onnxruntime",
    verify: Annotated[
        bool, typer.Option("--verify", help="Serve the model under the limit; exit code 10 if the p99 is not kept.")
    ] = False,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="|".join(SERVERS),
            help="Serve the bundle behind this server under the limit; exit code 10 if the p99 is not kept.",
        ),
    ] = "",
    server_python: Annotated[
        str, typer.Option("--server-python", metavar="PATH", help="Python that has the server's packages.")
    ] = sys.executable,
    as_json: options.Json = False,
) -> None:
    """Find the least CPU limit for a request rate and a p99."""
    check_picture(picture)
    found = fit_model(
        model,
        rate,
        p99,
        share_steps=share_steps,
        inputs=options.parse_inputs(inputs),
        sizes=options.parse_one_size(sizes),
        verify=verify,
        runtime=runtime,
        server=server,
        server_python=server_python,
        progress=not as_json,
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        print_json(found.to_json())
    else:
        _print(found)
        print_picture(picture)
    if not found.held:
        raise typer.Exit(GOAL_MISSED)


def _print(found: FitResult) -> None:
    print_tables(found.table)
    print()
    print(found.resources)
    for line in found.settings:
        print(f"# {line}")
    if found.verdict:
        print()
    for line in found.verdict:
        print(line)
