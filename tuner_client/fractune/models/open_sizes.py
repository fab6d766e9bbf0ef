"""Sizes for the axes that an ONNX file leaves open: those of a batch are 1, and the others need a reason or the user.

Each open axis belongs to a variable: axes of one name have one size. A variable begins with a guess by the form and the
names of its inputs. A process of its own (`sizes_child`) then finds the sizes that the graph forces.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from fractune.local.stack import own_env
from fractune.models import inspection
from fractune.models.inspection import InspectedAxis, InspectedSize, InspectedTensor, Inspection, OpenSizes
from fractune.models.source import ModelSource, check_given, check_model_file, is_model_script, model_file
from fractune_core import model_inputs
from fractune_core.codec.plain_json import checked, read_json
from fractune_core.errors import BadModel, BadRequest, one_line, some_of
from fractune_core.files.bundles import is_bundle
from fractune_core.files.fused import is_fused
from fractune_core.files.model_files import Interface, Tensor, read_interface, read_outline
from fractune_core.host.sandbox import plain_environment
from fractune_core.model_inputs import PAST_NAME, Formula, Inputs, NamedSizes, Place, SeveralShapes, Sizes, as_shapes

_CHILD = "fractune.models.sizes_child"
_MOST_ANSWER_BYTES = 1 << 20
_CHILD_TIMEOUT_S = 10.0
"""The child's work is bounded, and takes a second; a machine may be busy"""

CACHE_BRANCH = "use_cache_branch"
"""input of a decoder that holds a branch without a cache and one with it: which one is taken"""
BATCH, IMAGE, AUDIO, LENGTH, OTHER = "batch", "image", "audio", "length", "other"
_GUESSES = {
    BATCH: (1, "the batch"),
    IMAGE: (224, "a guess for an image"),
    AUDIO: (16000, "a guess: one second of sound at 16 kHz"),
    LENGTH: (128, "a guess for a sequence"),
    OTHER: (64, "a guess"),
}
"""by role: the size, and how it was found"""
PASTS, STEPS = (256, 1024), (1, 64)
"""sizes of a cache, and numbers of tokens: a step and a part of a prompt. With an encoder a step alone: its decoder may
lack a mask, without which nothing can be padded"""
_CACHE, _STEP = (PASTS[0], "a guess for a cache"), (STEPS[0], "a guess: one step, as the model has a cache")
ENCODER_NAME = re.compile(r"encoder_.*(seq|len).*", re.IGNORECASE)
_GIVEN = "given"
_COLOURS = (1, 3)
_LENGTH_NAME = re.compile(r".*(seq|len|time|frames|tokens|words|steps|past|total).*|[tls]", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"(.*[_.])?(height|width|[hw]|ih|iw)|.*(image|img)_?size", re.IGNORECASE)
_SAMPLES_NAME = re.compile(r".*(samples|audio|pcm).*", re.IGNORECASE)
_AUDIO_NAME = re.compile(r".*(audio|wav|sound|speech|signal|samples|pcm).*", re.IGNORECASE)
_STATE_NAME = re.compile(r".*(state|hidden|cell|cache).*|[hc](_?\d|_?in|n|0)?", re.IGNORECASE)


@dataclass(frozen=True)
class Variable:
    """Open axes of one size."""

    name: str
    """in the file; of an axis without a name its place"""
    places: tuple[Place, ...]
    role: str
    size: int
    why: str
    is_guess: bool
    equals: Formula | None = None
    """what the file or the graph says that it is"""


def inspect(
    model: ModelSource, *, inputs: SeveralShapes | None = None, sizes: Mapping[str, int] | None = None
) -> Inspection:
    """The inputs and outputs of an ONNX model, with a size and its reason for each axis that the file leaves open.

    Reads no weights, and starts no server. Sizes are from the file where it gives a reason: its metadata, the shapes of
    its values, weights, tables of positions. The others are usual ones, marked as guesses. Shapes in `inputs`, and
    `sizes` by name, stay. The result's `suggested` is an argument `inputs` of `fractune.tune`.

    Raises BadModel for a model of another format, a damaged file, and `inputs` that contradict the file.
    """
    if isinstance(model, str | os.PathLike) and not is_model_script(Path(model)):
        check_model_file(Path(model))
        check_given(Path(model), inputs or {})
        return _summed_up(Path(model), inputs, sizes)
    with model_file(model, inputs=inputs) as path:
        return replace(_summed_up(path, inputs, sizes), path=path.name)


def _summed_up(path: Path, inputs: SeveralShapes | None, sizes: Mapping[str, int] | None) -> Inspection:
    found = _inspection(path, model_inputs.each_shape(inputs or {})[0], sizes or {})
    return replace(found, summary=inspection.read_summary(path))


def _inspection(path: Path, given: Inputs, sizes: Mapping[str, int]) -> Inspection:
    found = read_interface(path)
    if found is None:
        raise BadModel(f"{path.name}: {_other_format(path)}")
    names = found.sizes_with()
    variables = _variables(found.inputs, names, names.solved(model_inputs.shapes_in(as_shapes(given)), sizes))
    variables, notes = _examined(path, found, variables)
    axes = {place: each for each in variables for place in each.places}
    return Inspection(
        str(path),
        tuple(_inspected(each, axes, is_given=each.name in given) for each in found.inputs),
        tuple(_inspected(each, {}) for each in found.outputs),
        tuple(_inspected_size(each, names) for each in variables),
        notes,
    )


@contextmanager
def sized_model(
    model: ModelSource,
    *,
    run_script: bool = False,
    inputs: Inputs | None = None,
    sizes: Sizes | None = None,
    greedy: bool = False,
    report: Callable[[str], None] | None = None,
) -> Iterator[tuple[Path, Inputs | None]]:
    """The model as one file until the block ends, and its inputs with one shape each. Raises as `model_file` and
    `settled`, and BadRequest for several shapes.
    """
    with model_file(model, run_script=run_script, inputs=inputs, greedy=greedy) as path:
        yield path, settled_once(path, inputs, sizes, report)


def settled_once(
    path: Path, inputs: Inputs | None, sizes: Sizes | None, report: Callable[[str], None] | None = None
) -> Inputs | None:
    """As `settled`. Raises BadRequest for several shapes."""
    found = settled(path, inputs, sizes, report)
    if found is not None and len(model_inputs.each_shape(found)) > 1:
        raise BadRequest("sizes: several numbers for a name; give one (tune takes several)")
    return cast("Inputs | None", found)


def settled(
    path: Path, inputs: SeveralShapes | None, sizes: Sizes | None = None, report: Callable[[str], None] | None = None
) -> SeveralShapes | None:
    """The inputs with shapes for what `sizes` name, and with the size 1 for batches that nothing gives. Of several
    sizes all combinations that do not contradict the model; `report` gets a line on the others, and on batches.

    Raises OpenSizes if another axis is open, BadRequest for unknown names and contradictions, and BadModel for `sizes`
    of a file that is not ONNX. Without `sizes` such a file is left to the server.
    """
    found = read_interface(path)
    if found is None:
        if sizes:
            raise BadModel(f"{path.name}: sizes need an ONNX file, and this is none; give each shape by --input")
        return inputs
    report = report or (lambda _line: None)
    pairs = [
        (given, chosen)
        for given in model_inputs.each_shape(inputs or {})
        for chosen in model_inputs.each_size(sizes or {}, least=0)
    ]
    choices = [_with_branch(found, given, chosen) for given, chosen in pairs]
    names = _related(path, found, choices)
    made: list[Inputs] = []
    refused: list[BadRequest] = []
    batches: dict[str, None] = {}
    for given, chosen in choices:
        try:
            known = names.solved(model_inputs.shapes_in(as_shapes(given)), chosen)
        except BadRequest as error:
            refused.append(error)
            continue
        shapes, ones = _shapes(path, found, names, known, given, chosen)
        made.append({**given, **shapes})
        batches.update(dict.fromkeys(ones))
    if not made:
        raise refused[0]
    if refused:
        report(f"{len(refused)} of {len(choices)} combinations of sizes are left out: {refused[0]}")
    if batches:
        report(f"the open batch of {some_of(map(repr, batches))} is 1; --size fixes another size")
    return _joined(made) if made != [inputs or {}] else inputs


def _with_branch(found: Interface, given: Inputs, sizes: dict[str, int]) -> tuple[Inputs, dict[str, int]]:
    """Inputs and sizes of a decoder that has a branch without a cache and one with it: a past of 0 takes the first,
    which reads no past. No tensor may be empty, so the past has one row there. Raises BadRequest for another size of 0.
    """
    is_merged = any(each.name == CACHE_BRANCH for each in found.inputs)
    empty = [name for name, size in sizes.items() if not size]
    for name in empty:
        if not (is_merged and PAST_NAME.fullmatch(name)):
            model_inputs.check_size(name, 0)
    if not is_merged or CACHE_BRANCH in given:
        return given, sizes
    return {**given, CACHE_BRANCH: f"{model_inputs.CONSTANT}{int(not empty)}"}, {
        name: size or 1 for name, size in sizes.items()
    }


def _joined(several: Sequence[Inputs]) -> SeveralShapes:
    """The inputs of all tunings; an input with equal shapes has one."""
    by_name = {name: [each[name] for each in several] for name in several[0]}
    return cast(
        "SeveralShapes",
        {name: found[0] if found.count(found[0]) == len(found) else found for name, found in by_name.items()},
    )


def _related(path: Path, found: Interface, choices: Sequence[tuple[Inputs, Mapping[str, int]]]) -> NamedSizes:
    """The names, with what the graph forces if sizes may follow from others."""
    names = found.sizes_with()
    variables = _variables(found.inputs, names, {})
    lengths = {each.name for each in variables if each.role not in (BATCH, IMAGE) and each.equals is None}
    given = {name for inputs, _ in choices for name in inputs}
    is_all_given = not any(sizes for _, sizes in choices) and given >= {each.name for each in found.inputs}
    if len(lengths) < 2 or (is_all_given and len(choices) == 1) or any(each.shape is None for each in found.inputs):
        return names
    answer = _asked(path, found, variables, search=False)
    return names if isinstance(answer, str) else found.sizes_with(answer.formulas(variables))


def _shapes(
    path: Path, found: Interface, names: NamedSizes, known: Mapping[str, int], given: Inputs, sizes: Mapping[str, int]
) -> tuple[dict[str, list[int]], list[str]]:
    """The shapes of the inputs that are not given, and which of them have a batch of 1 that nothing gives. Raises
    OpenSizes.
    """
    roles = {each.name: each.role for each in _variables(found.inputs, names, known)}
    ones = {name: 1 for name, role in roles.items() if role == BATCH and name in names.names and name not in known}
    whole = names.solved(model_inputs.shapes_in(as_shapes(given)), {**sizes, **ones})
    needed = [each for each in found.inputs if each.name not in given and each.is_open and each.dtype]
    shapes = {each.name: names.shape(each.name, whole) for each in needed}
    left_open = [each.name for each in needed if each.shape is None or None in shapes[each.name]]
    if left_open:
        raise OpenSizes.of(_inspection(path, given, sizes), left_open)
    batches = [each.name for each in needed if None in names.shape(each.name, known)]
    return {name: [size or 1 for size in shape] for name, shape in shapes.items()}, batches


def _other_format(path: Path) -> str:
    if is_bundle(path):
        return "this is a bundle, which `fractune run` runs; inspect the model that it was made from"
    if is_fused(path):
        return "this is a fused model, which has fixed sizes; inspect one of its variants' own files"
    return (
        "inspect reads ONNX files, and this is none; a TVM IRModule has its sizes already, and a torch.export program "
        "those of the example that it was exported with, unless it has dynamic shapes"
    )


# ---- variables


def _variables(inputs: Sequence[Tensor], names: NamedSizes, known: Mapping[str, int]) -> list[Variable]:
    """The names of open axes, then the sums and products of them."""
    places: dict[Formula, list[Place]] = {Formula.of(name): [] for name in names.names}
    for place, formula in names.axes.items():
        places.setdefault(formula, []).append(place)
    tensors = {each.name: each for each in inputs}
    has_cache = any(map(PAST_NAME.fullmatch, names.names))
    variables = []
    for formula, found in places.items():
        name, role = str(formula), _role("" if str(formula) in names.nameless else str(formula), found, tensors)
        size, why = _GUESSES[role]
        if has_cache and role == LENGTH and not ENCODER_NAME.fullmatch(name):
            size, why = _CACHE if PAST_NAME.fullmatch(name) else _STEP
        is_known = formula.value(known) is not None
        variables.append(
            Variable(
                name,
                tuple(found),
                role,
                formula.value(known) or size,
                _GIVEN if is_known else why if formula.is_name else name,
                is_guess=role != BATCH and formula.is_name and not is_known,
                equals=None if formula.is_name else formula,
            )
        )
    return variables


def _role(name: str, places: Sequence[Place], tensors: Mapping[str, Tensor]) -> str:
    if model_inputs.BATCH_NAME.fullmatch(name):
        return BATCH
    if _IMAGE_NAME.fullmatch(name):
        return IMAGE
    if _SAMPLES_NAME.fullmatch(name):
        return AUDIO
    is_length = bool(_LENGTH_NAME.fullmatch(name))
    if not places:
        return LENGTH if is_length else OTHER
    roles = [_role_at(tensors[tensor], axis, is_length=is_length) for tensor, axis in places]
    return next((role for role in (IMAGE, AUDIO, LENGTH, OTHER) if role in roles), BATCH)


def _role_at(tensor: Tensor, axis: int, *, is_length: bool) -> str:
    shape = tensor.shape or ()
    is_sound = bool(_AUDIO_NAME.fullmatch(tensor.name)) and not tensor.dtype.startswith("int")
    if axis == 0 and not is_length and (len(shape) > 1 or not is_sound):
        return BATCH
    if axis == 1 and isinstance(shape[0], int) and _STATE_NAME.fullmatch(tensor.name):
        return BATCH
    if axis in _image_axes(shape) and not is_length:
        return IMAGE
    if is_sound and axis == len(shape) - 1 and not isinstance(shape[-1], int) and len(shape) < 4:
        return AUDIO
    return LENGTH if is_length or len(shape) < 4 else OTHER


def _image_axes(shape: Sequence[model_inputs.Dim]) -> tuple[int, ...]:
    """The height and the width of a picture: channels are before them, or after them."""
    if len(shape) != 4:
        return ()
    return (1, 2) if shape[3] in _COLOURS and shape[1] not in _COLOURS else (2, 3)


def _inspected(tensor: Tensor, axes: Mapping[Place, Variable], *, is_given: bool = False) -> InspectedTensor:
    shape = None
    if tensor.shape is not None:
        shape = tuple(_inspected_axis(dim, axes.get((tensor.name, axis))) for axis, dim in enumerate(tensor.shape))
    return InspectedTensor(tensor.name, tensor.dtype, shape, is_given)


def _inspected_axis(dim: model_inputs.Dim, variable: Variable | None) -> InspectedAxis:
    if isinstance(dim, int):
        return InspectedAxis(dim)
    name = "" if dim is None or dim in model_inputs.NAMELESS else dim
    if variable is None:
        return InspectedAxis(None, name)
    return InspectedAxis(None, name, variable.size, variable.why, variable.is_guess, variable.role == BATCH)


def _inspected_size(variable: Variable, names: NamedSizes) -> InspectedSize:
    several = {_CACHE: PASTS, _STEP: STEPS[: 1 if any(map(ENCODER_NAME.fullmatch, names.names)) else 2]}
    return InspectedSize(
        variable.name,
        variable.size,
        several.get((variable.size, variable.why), (variable.size,)),
        variable.why,
        equals="" if variable.equals is None else str(variable.equals),
        is_given=variable.why == _GIVEN,
        has_name=variable.name not in names.nameless,
        is_batch=variable.role == BATCH,
        inputs=tuple(dict.fromkeys(name for name, _ in variable.places)),
    )


# ---- what the graph forces


def _examined(path: Path, found: Interface, variables: list[Variable]) -> tuple[list[Variable], tuple[str, ...]]:
    """The variables with the sizes that the graph forces, and notes. A graph that cannot be examined leaves guesses."""
    if all(each.why == _GIVEN for each in variables) or any(each.shape is None for each in found.inputs):
        return variables, ()
    answer = _asked(path, found, variables, search=True)
    if isinstance(answer, str):
        return variables, (f"the graph was not examined ({one_line(answer)}), so the sizes are guesses",)
    formulas = answer.formulas(variables)
    made = []
    for each, said in zip(variables, answer.variables, strict=True):
        equals = formulas.get(each.name, each.equals)
        why = _GIVEN if each.why == _GIVEN else str(equals) if equals else one_line(said.why) or each.why
        is_guess = each.is_guess and not said.why and equals is None
        made.append(replace(each, size=max(said.size, 1), why=why, is_guess=is_guess, equals=equals))
    return made, tuple(map(one_line, answer.notes))


def _asked(path: Path, found: Interface, variables: Sequence[Variable], *, search: bool) -> _Answer | str:
    """What the child says of the graph, or a text that says why it said nothing."""
    numbers = {each.name: at for at, each in enumerate(variables)}
    order = {
        "inputs": [{"name": each.name, "shape": _sizes(each)} for each in found.inputs],
        "variables": [
            {
                "name": each.name,
                "places": each.places,
                "role": each.role,
                "size": each.size,
                "fixed": each.why == _GIVEN,
                "formula": each.equals
                and [(factor, [numbers[name] for name in names]) for factor, names in each.equals.terms],
            }
            for each in variables
        ],
        "search": search,
    }
    answer = _answer(json.dumps(order).encode() + b"\n" + read_outline(path))
    if not isinstance(answer, str) and not answer.fits(len(variables)):
        return "its process gave other sizes than asked for"
    return answer


def _sizes(tensor: Tensor) -> list[int | None]:
    return [dim if isinstance(dim, int) else None for dim in tensor.shape or ()]


@dataclass(frozen=True)
class _Size:
    size: int
    why: str


@dataclass(frozen=True)
class _Term:
    factor: int
    names: list[int]


@dataclass(frozen=True)
class _Relation:
    of: int
    terms: list[_Term]


@dataclass(frozen=True)
class _Answer:
    """The child's. Native code has read a stranger's graph there, so all of it is checked."""

    variables: list[_Size] = field(default_factory=list)
    relations: list[_Relation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""

    def fits(self, count: int) -> bool:
        """Whether it is about so many sizes."""
        numbers = [at for each in self.relations for at in (each.of, *(at for term in each.terms for at in term.names))]
        return len(self.variables) == count and all(0 <= at < count for at in numbers)

    def formulas(self, variables: Sequence[Variable]) -> dict[str, Formula]:
        """By the name of each variable that follows from others."""
        return {
            variables[each.of].name: Formula(
                tuple((term.factor, tuple(variables[at].name for at in term.names)) for term in each.terms)
            )
            for each in self.relations
        }


def _answer(order: bytes) -> _Answer | str:
    """What the child says, or a text that says why it said nothing."""
    with os.fdopen(os.memfd_create("answer"), "r+b") as file:  # the child bounds its length, which a pipe has not
        try:
            ended = subprocess.run(
                [sys.executable, "-m", _CHILD, str(os.getpid()), str(_MOST_ANSWER_BYTES)],
                input=order,
                env={**plain_environment(os.environ), **own_env(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                stdout=file,
                stderr=subprocess.DEVNULL,
                timeout=_CHILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"it took more than {_CHILD_TIMEOUT_S:.0f} s"
        file.seek(0)
        said = file.read(_MOST_ANSWER_BYTES + 1)
    if len(said) > _MOST_ANSWER_BYTES:
        return f"its process gave more than {_MOST_ANSWER_BYTES >> 20} MiB"
    try:
        answer = checked(_Answer, read_json(said))
        return answer.error or answer
    except ValueError:
        return f"its process ended with code {ended.returncode}"
