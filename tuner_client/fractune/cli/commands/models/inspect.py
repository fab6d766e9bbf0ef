"""`fractune inspect`: the inputs of a model, and sizes for what it leaves open."""

from __future__ import annotations

import json

from fractune.cli import options
from fractune.models.open_sizes import inspect as inspect_model


def inspect(
    model: options.ModelFile,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    as_json: options.Json = False,
) -> None:
    """Show the inputs of an ONNX file, sizes for what it leaves open, its operators and its weights.

    The last line is a command that tunes the model with these sizes. A size that --input gives settles the axes of the
    same name.
    """
    found = inspect_model(model, inputs=options.parse_inputs(inputs), sizes=options.parse_one_size(sizes))
    if as_json:
        print(json.dumps(found.to_json()))
        return
    found.table.print()
    for line in found.table.notes:
        print(line)
    for line in found.summary.lines if found.summary else ():
        print(line)
    print(found.command)
