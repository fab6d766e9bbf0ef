"""Open sizes on the command line: asked for on a terminal, else shown with the command that fixes them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune.cli.options import parse_several
from fractune.models.inspection import InspectedAxis, Inspection, OpenSizes
from fractune.models.open_sizes import settled
from fractune.models.source import is_model_script, model_file
from fractune_core.errors import BadModel, shortened
from fractune_core.model_inputs import SeveralShapes

_SHOWN = 80


def settled_or_asked(
    model: Path, inputs: SeveralShapes, report: Callable[[str], None], *, may_ask: bool
) -> SeveralShapes:
    """The inputs with sizes for what the model leaves open; a terminal is asked for them. Raises BadModel, and
    OpenSizes where there is no terminal.
    """
    if is_model_script(model):
        return inputs
    with model_file(model, inputs=inputs) as path:
        try:
            return settled(path, inputs, report)
        except OpenSizes as error:
            found = error.found
            may_ask = may_ask and sys.stdin.isatty() and sys.stderr.isatty()
            if found is None or not may_ask or any(each.is_open and each.axes is None for each in found.inputs):
                raise
            return {**inputs, **_asked(found)}


def check_options(params: Mapping[str, Any], args: Sequence[str]) -> None:
    """Check the shapes of a command line of a job's file, by its parsed options. Raises BadModel, OpenSizes."""
    model, lengths = params["model"], params["lengths"]
    if is_model_script(model):
        return
    inputs = parse_several(params["inputs"])
    try:
        with model_file(model, inputs=inputs) as path:
            if not lengths:
                settled(path, inputs)
    except BadModel as error:
        show_open(error, args)
        error.args = (str(error).replace("inputs: ", "--input: ", 1),)
        raise


def show_open(error: BadModel, args: Sequence[str]) -> None:
    """Print the table of open sizes, and the command line with options that fix them, if the error is about these. The
    error itself has the options too, for a quiet command.
    """
    if isinstance(error, OpenSizes) and error.found is not None and "--quiet" not in args:
        print(error.found.table, shlex.join(["fractune", *args, *error.found.options]), sep="\n", file=sys.stderr)


def _asked(found: Inspection) -> dict[str, list[int]]:
    """The shapes of the open inputs, with each size asked for once."""
    print(found.table, "Enter takes a size in brackets.", sep="\n", file=sys.stderr)
    sizes: dict[object, int] = {}
    shapes: dict[str, list[int]] = {}
    for tensor in found.inputs:
        for number, axis in enumerate(tensor.axes or ()):
            key = axis.name or (tensor.name, number)
            if tensor.is_open and axis.size is None and key not in sizes:
                sizes[key] = _asked_size(f"{tensor.name}, {axis.name or f'axis {number}'}", axis)
        if tensor.is_open:
            axes = enumerate(tensor.axes or ())
            shapes[tensor.name] = [axis.size or sizes[axis.name or (tensor.name, number)] for number, axis in axes]
    return shapes


def _asked_size(place: str, axis: InspectedAxis) -> int:
    suggested = axis.suggested or 1
    while not axis.is_batch:
        print(f"size of {shortened(place, _SHOWN)} [{suggested}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise BadModel(f"the size of {place} was not given; fix it by --input")
        if not answer.strip():
            break
        if answer.strip().isdecimal() and int(answer) > 0:
            return int(answer)
        print("write a whole number of at least 1", file=sys.stderr)
    return suggested
