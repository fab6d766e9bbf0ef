"""`fractune inspect`: the inputs of a model, and sizes for what it leaves open."""

import json
from collections.abc import Mapping, Sequence

from fractune.cli import options
from fractune.models.inspection import Inspection, tune_command
from fractune.models.model_folder import ModelFolder, described, inspect_folder, read_folder, size_options
from fractune.models.open_sizes import inspect as inspect_model
from fractune_core.errors import BadRequest, some_of


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
    by_name = options.parse_one_size(sizes)
    if model.is_dir():
        if inputs:
            raise BadRequest(f"{model}: --input is for one graph; give sizes by --size, or inspect a graph's own file")
        _inspect_folder(read_folder(model), by_name, as_json=as_json)
        return
    found = inspect_model(model, inputs=options.parse_inputs(inputs), sizes=by_name)
    words = [
        word
        for option, texts in (("--size", sizes), ("--input", inputs))
        for each in texts or ()
        for word in (option, each)
    ]
    command = found.command_after(words)
    if as_json:
        print(json.dumps({**found.to_json(), "command": command}))
        return
    _print(found)
    print(command)


def _print(found: Inspection) -> None:
    found.table.print()
    for line in found.table.notes:
        print(line)
    for line in found.summary.lines if found.summary else ():
        print(line)


def _inspect_folder(folder: ModelFolder, given: Mapping[str, int], *, as_json: bool) -> None:
    """Each graph with the largest of its sizes, and the commands that tune each alone and all of them."""
    sizes = folder.sizes(given)
    for line in () if as_json else described(folder):
        print(line)
    every = inspect_folder(folder.path, sizes=given)
    commands = []
    for each, own, (name, found) in zip(folder.graphs, sizes, every.items(), strict=True):
        command = tune_command(str(each.path), [*size_options(own), *found.options])
        commands.append(command)
        if as_json:
            print(json.dumps({**found.to_json(), "command": command}))
        else:
            print(f"{name}:")
            _print(found)
    if not as_json:
        print(*commands, *_together(folder, given, [each.left_open for each in every.values()]), sep="\n")


def _together(
    folder: ModelFolder, given: Mapping[str, int], left_open: Sequence[Mapping[str, int] | None]
) -> list[str]:
    """The command that tunes all graphs. A graph with an input of an unknown number of axes has to be tuned alone."""
    sizes: dict[str, int] = {}
    for each in left_open:
        if each is None:
            return []
        differing = [name for name in each if sizes.get(name, each[name]) != each[name]]
        if differing:
            return [f"the graphs suggest different sizes for {some_of(differing)}; tune each by its own command"]
        sizes |= each
    return [tune_command(str(folder.path), size_options({**given, **sizes}))]
