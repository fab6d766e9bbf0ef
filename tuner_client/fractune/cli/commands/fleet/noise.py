"""`fractune noise`: how reliable a measurement is on this machine."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.cli.printing import print_picture, print_tables
from fractune.features.noise import noise as measure_noise
from fractune.text.figure import check_picture
from fractune.text.text import span_text
from fractune_core.errors import BadRequest


def noise(
    share: Annotated[str, typer.Option("--share", metavar="cpu:1", help="Share to measure under.")],
    measurers: Annotated[
        str | None,
        typer.Option("--measurers", metavar="1,2", help="Concurrent measurers to try (1,2; on a GPU 1,2,4,8)."),
    ] = None,
    candidates: Annotated[int, typer.Option("--candidates", help="Candidates to time, 8 to 200.")] = 24,
    model: Annotated[
        Path | None, typer.Option("--model", help="Time this model's heaviest operator (default: a convolution).")
    ] = None,
    only: Annotated[str, typer.Option("--only", help="Only an operator whose name contains one of these (A,B).")] = "",
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    run_script: options.RunScript = False,
    picture: Annotated[
        Path | None, typer.Option("--picture", help="Draw each setting's times over the reference's (.svg or .png).")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the candidates.")] = 0,
    state: options.State = None,
    as_json: options.Json = False,
) -> None:
    """Measure how reliable measurements are on this machine. It also finds how many may run at the same time."""
    check_picture(picture)
    found = measure_noise(
        share,
        measurers=None if measurers is None else parse_measurers(measurers),
        candidates=candidates,
        model=model,
        only=only,
        inputs=options.parse_inputs(inputs),
        sizes=options.parse_one_size(sizes),
        run_script=run_script,
        seed=seed,
        state=state,
    )
    if picture is not None:
        found.draw(picture)
    if as_json:
        print(json.dumps({**found.data, "saved": str(found.saved)}), flush=True)
    else:
        print_tables(found.table)
        print(f"took {span_text(found.data['wall_s'])}; saved in {found.saved}")
        print_picture(picture)


def parse_measurers(text: str) -> list[int]:
    """Read `1,2,4`. Raises BadRequest."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise BadRequest(f"--measurers '{text}': write whole numbers, such as 1,2") from None
