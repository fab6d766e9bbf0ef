"""`fractune join`: bundles of one model for several shapes become one."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.shapes.join import JoinedBundle, padding_line, shapes_lines
from fractune.features.shapes.join import join as join_files


def join(
    bundles: Annotated[
        list[Path], typer.Argument(help="Bundles of one model for several shapes, or a joined bundle to compare again.")
    ],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File to write.")] = None,
    force: options.Force = False,
    *,
    padding: options.Padding,
    model: Annotated[
        Path | None, typer.Option("--model", help="The ONNX file; sizes between shapes are compared with it.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Join bundles of one model for several shapes, and prove its padding."""
    found = join_files(bundles, out=out, force=force, model=model, **padding.parsed())
    if as_json:
        print(json.dumps(_json(found)))
        return
    print(f"bundle:    {os.path.relpath(found.path)}")
    for line in shapes_lines(found.buckets):
        print(line)
    print(padding_line(found.padding))


def _json(found: JoinedBundle) -> dict[str, object]:
    return {"bundle": str(found.path), "buckets": list(found.buckets), "padding": found.padding.to_json()}
