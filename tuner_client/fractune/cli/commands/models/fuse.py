"""`fractune fuse`: variants of one model become one model with a slot for each."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from fractune.cli import options
from fractune.features.fuse import FusedModel, apart_text, slots_text
from fractune.features.fuse import fuse as fuse_models


def fuse(
    models: Annotated[list[Path], typer.Argument(help="Model files with the same structure and different weights.")],
    slots: Annotated[
        int | None, typer.Option("--slots", help="Number of slots; spare ones stay empty. [default: one a model]")
    ] = None,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    run_script: options.RunScript = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write. [default: FIRST_xSLOTS.fused]")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Fuse variants of a model into one model with a slot for each."""
    shapes, by_name = options.parse_inputs(inputs), options.parse_one_size(sizes)
    found = fuse_models(models, slots=slots, inputs=shapes, sizes=by_name, run_script=run_script, out=out)
    if as_json:
        print(json.dumps(_json(found)))
        return
    print(f"slots:     {slots_text(found.slots)}")
    print(f"operators: {found.operators} to tune, each for all slots at once")
    if found.apart:
        print(f"           {apart_text(found.apart)}")
    print(f"model:     {found.path}")
    print(f"next:      fractune tune {os.path.relpath(found.path)} --shares cpu:1")


def _json(found: FusedModel) -> dict[str, object]:
    return {
        "path": str(found.path),
        "slots": list(found.slots),
        "operators": found.operators,
        "apart": list(found.apart),
    }
