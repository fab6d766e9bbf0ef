"""`fractune inspect`: the inputs of a model, and sizes for what it leaves open."""

from __future__ import annotations

import json
import shlex

from fractune.cli import options
from fractune.models.inspection import Inspection
from fractune.models.model_folder import ModelFolder, described, inspect_folder, read_folder, size_options
from fractune.models.open_sizes import inspect as inspect_model


def inspect(
    model: options.ModelFile,
    inputs: options.Inputs = None,
    sizes: options.SizesByName = None,
    as_json: options.Json = False,
) -> None:
    """Show an ONNX file or folder: inputs, open sizes, operators, weights.

    The last line is a command that tunes the model with these sizes. A size that --input gives settles the axes of the
    same name.
    """
    if model.is_dir():
        _inspect_folder(read_folder(model), as_json=as_json)
        return
    found = inspect_model(model, inputs=options.parse_inputs(inputs), sizes=options.parse_one_size(sizes))
    if as_json:
        print(json.dumps(found.to_json()))
        return
    _print(found)
    print(found.command)


def _print(found: Inspection) -> None:
    found.table.print()
    for line in found.table.notes:
        print(line)
    for line in found.summary.lines if found.summary else ():
        print(line)


def _inspect_folder(folder: ModelFolder, *, as_json: bool) -> None:
    """Each graph with the largest of its sizes, and the commands that tune all of them and each alone."""
    for line in () if as_json else described(folder):
        print(line)
    commands = []
    for each, found in zip(folder.graphs, inspect_folder(folder.path).values(), strict=True):
        words = [*size_options(each.sizes), *found.options, "--shares", "cpu:1"]
        command = shlex.join(["fractune", "tune", str(each.path), *words])
        commands.append(command)
        if as_json:
            print(json.dumps({**found.to_json(), "command": command}))
        else:
            _print(found)
    if not as_json:
        print(*commands, shlex.join(["fractune", "tune", str(folder.path), "--shares", "cpu:1"]), sep="\n")
