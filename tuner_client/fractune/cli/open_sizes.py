"""Open sizes on the command line: asked for on a terminal, else shown with the command that fixes them."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fractune.cli.options import parse_several, parse_sizes
from fractune.models.inspection import InspectedSize, Inspection, OpenSizes
from fractune.models.open_sizes import settled
from fractune.models.source import is_model_script, model_file
from fractune_core.errors import BadModel, shortened
from fractune_core.model_inputs import SeveralShapes
from fractune_core.named_sizes import Sizes

_SHOWN = 80


def settled_or_asked(
    model: Path, inputs: SeveralShapes, sizes: Sizes, report: Callable[[str], None], *, may_ask: bool
) -> SeveralShapes:
    """The inputs with sizes for what the model leaves open; a terminal is asked for them. Raises BadModel, and
    OpenSizes without a terminal.
    """
    if is_model_script(model):
        return inputs
    with model_file(model, inputs=inputs) as path:
        try:
            return settled(path, inputs, sizes, report) or {}
        except OpenSizes as error:
            found = error.found
            may_ask = may_ask and sys.stdin.isatty() and sys.stderr.isatty()
            if found is None or not may_ask or any(each.is_open and each.axes is None for each in found.inputs):
                raise
            return settled(path, inputs, {**sizes, **_asked(found)}, report) or {}


def check_options(params: Mapping[str, Any], args: Sequence[str]) -> None:
    """Check the shapes of a command line of a job's file, by its parsed options. Raises BadModel, OpenSizes."""
    model = params["model"]
    if is_model_script(model):
        return
    inputs = parse_several(params["inputs"])
    sizes = {**parse_sizes("--lengths", params["lengths"]), **parse_sizes("--size", params["sizes"])}
    known = {name: each for name, each in sizes.items() if each is not None}
    try:
        with model_file(model, inputs=inputs) as path:
            if len(known) == len(sizes):
                settled(path, inputs, known)
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


def _asked(found: Inspection) -> dict[str, int]:
    """The sizes that do not follow from others, each asked for once."""
    print(found.table, "Enter takes a size in brackets.", sep="\n", file=sys.stderr)
    return {each.name: _asked_size(each) for each in found.sizes if not (each.equals or each.is_given)}


def _asked_size(of: InspectedSize) -> int:
    while not of.is_batch:
        print(f"size of {shortened(of.name, _SHOWN)} [{of.suggested}]: ", end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline()
        if not answer:
            raise BadModel(f"the size of {of.name} was not given; fix it by --size")
        if not answer.strip():
            break
        if answer.strip().isdecimal() and int(answer) > 0:
            return int(answer)
        print("write a whole number of at least 1", file=sys.stderr)
    return of.suggested
