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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

from fractune.local.stack import own_env
from fractune.models.inspection import InspectedAxis, InspectedTensor, Inspection, OpenSizes
from fractune.models.onnx_file import Dim, Interface, Tensor, read_interface, read_outline
from fractune.models.sizes_child import MOST_ANSWER_BYTES
from fractune.models.source import ModelSource, model_file
from fractune_core.codec.plain_json import checked, read_json
from fractune_core.errors import BadModel, one_line, some_of
from fractune_core.files.bundles import is_bundle
from fractune_core.files.fused import is_fused
from fractune_core.host.sandboxing.sandbox import plain_environment
from fractune_core.model_inputs import Inputs, SeveralShapes, as_shapes, each_shape, shapes_in

_CHILD = "fractune.models.sizes_child"
_CHILD_TIMEOUT_S = 10.0
"""The child's work is bounded, and takes a second; a machine may be busy"""
_NAMELESS = frozenset({"", "?", "-1", "None"})
"""Exporters write these for axes without a name; two of them need not be equal"""

BATCH, IMAGE, AUDIO, LENGTH, OTHER = "batch", "image", "audio", "length", "other"
_GUESSES = {
    BATCH: (1, "the batch"),
    IMAGE: (224, "a guess for an image"),
    AUDIO: (16000, "a guess: one second of sound at 16 kHz"),
    LENGTH: (128, "a guess for a sequence"),
    OTHER: (64, "a guess"),
}
"""by role: the size, and how it was found"""
_GIVEN = "given"
_COLOURS = (1, 3)
_BATCH_NAME = re.compile(r".*batch.*|n|b|bs|bsz", re.IGNORECASE)
_LENGTH_NAME = re.compile(r".*(seq|len|time|frames|tokens|words|steps).*|[tl]", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"(.*[_.])?(height|width|[hw]|ih|iw)|.*(image|img)_?size", re.IGNORECASE)
_SAMPLES_NAME = re.compile(r".*(samples|audio|pcm).*", re.IGNORECASE)
_AUDIO_NAME = re.compile(r".*(audio|wav|sound|speech|signal|samples|pcm).*", re.IGNORECASE)
_STATE_NAME = re.compile(r".*(state|hidden|cell|cache).*|[hc](_?\d|_?in|n|0)?", re.IGNORECASE)

Place = tuple[str, int]
"""the name of an input, and the number of an axis"""


@dataclass(frozen=True)
class Variable:
    """Open axes of one size."""

    name: str
    """in the file, or empty"""
    places: tuple[Place, ...]
    role: str
    size: int
    why: str
    is_guess: bool


def inspect(model: ModelSource, *, inputs: SeveralShapes | None = None) -> Inspection:
    """The inputs and outputs of an ONNX model, with a size and its reason for each axis that the file leaves open.

    Reads no weights, and starts no server. Sizes are from the file where it gives a reason: its metadata, the shapes of
    its values, weights, tables of positions. The others are usual ones, marked as guesses. Shapes in `inputs` stay, and
    settle the axes of the same names. The result's `suggested` is an argument `inputs` of `fractune.tune`.

    Raises BadModel for a model of another format, a damaged file, weights in another file, and `inputs` that contradict
    the file.
    """
    with model_file(model, inputs=inputs) as path:
        found = _inspection(path, each_shape(inputs or {})[0])
    return found if isinstance(model, str | os.PathLike) else replace(found, path=path.name)


def _inspection(path: Path, given: Inputs) -> Inspection:
    found = read_interface(path)
    if found is None:
        raise BadModel(f"{path.name}: {_other_format(path)}")
    variables, notes = _examined(path, found, _variables(found.inputs, given))
    axes = {place: each for each in variables for place in each.places}
    return Inspection(
        str(path),
        tuple(_inspected(each, axes, is_given=each.name in given) for each in found.inputs),
        tuple(_inspected(each, {}) for each in found.outputs),
        notes,
    )


AnyInputs = TypeVar("AnyInputs", bound=SeveralShapes | None)


def settled(path: Path, inputs: AnyInputs, report: Callable[[str], None] | None = None) -> AnyInputs:
    """The inputs, with the size 1 for the batches that the file and `inputs` leave open; `report` gets a line on it.

    Raises OpenSizes if another axis is open. A file that is not ONNX is left to the server.
    """
    found = read_interface(path)
    if found is None:
        return inputs
    given: SeveralShapes = {} if inputs is None else inputs
    several = [_settled(path, found, each) for each in each_shape(given)]
    names = dict.fromkeys(name for made in several for name in made)
    if not names:
        return inputs
    if report is not None:
        report(f"the open batch of {some_of(map(repr, names))} is 1; --input fixes another size")
    shapes = {name: [made[name] for made in several] for name in names}
    equal = {name: found[0] if found.count(found[0]) == len(found) else found for name, found in shapes.items()}
    return cast("AnyInputs", {**given, **equal})


def _settled(path: Path, found: Interface, given: Inputs) -> dict[str, list[int]]:
    """The shapes of the inputs with open batches and no other open axis. Raises OpenSizes."""
    axes = {place: each for each in _variables(found.inputs, given) for place in each.places}
    needed = [each for each in found.inputs if each.name not in given and each.is_open and each.dtype]
    unsettled = {each.name: _unsettled(each, axes) for each in needed}
    left_open = [
        each.name for each in needed if each.shape is None or any(at.role != BATCH for at in unsettled[each.name])
    ]
    if left_open:
        raise OpenSizes.of(_inspection(path, given), left_open)
    return {each.name: _inspected(each, axes).suggested or [] for each in needed if unsettled[each.name]}


def _unsettled(tensor: Tensor, axes: Mapping[Place, Variable]) -> list[Variable]:
    """Those of its axes that the caller has not given at another input either."""
    found = (axes.get((tensor.name, axis)) for axis in range(len(tensor.shape or ())))
    return [each for each in found if each is not None and each.why != _GIVEN]


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


def _variables(inputs: Sequence[Tensor], given: Inputs) -> list[Variable]:
    """The open axes by their names, those without a name each alone. Shapes that are given settle axes of a name."""
    places: dict[str | Place, list[Place]] = {}
    for tensor in inputs:
        for axis, dim in enumerate(tensor.shape or ()):
            if not isinstance(dim, int):
                key: str | Place = (tensor.name, axis) if dim is None or dim in _NAMELESS else dim
                places.setdefault(key, []).append((tensor.name, axis))
    tensors = {each.name: each for each in inputs}
    shapes = shapes_in(as_shapes(given))
    return [_variable(key, found, tensors, shapes) for key, found in places.items()]


def _variable(
    key: str | Place,
    places: Sequence[Place],
    tensors: Mapping[str, Tensor],
    shapes: Mapping[str, Sequence[int]],
) -> Variable:
    name = key if isinstance(key, str) else ""
    for tensor, axis in places:
        if tensor in shapes and axis < len(shapes[tensor]):
            return Variable(name, tuple(places), OTHER, shapes[tensor][axis], _GIVEN, is_guess=False)
    role = _role(name, places, tensors)
    size, why = _GUESSES[role]
    return Variable(name, tuple(places), role, size, why, is_guess=role != BATCH)


def _role(name: str, places: Sequence[Place], tensors: Mapping[str, Tensor]) -> str:
    if _BATCH_NAME.fullmatch(name):
        return BATCH
    if _IMAGE_NAME.fullmatch(name):
        return IMAGE
    if _SAMPLES_NAME.fullmatch(name):
        return AUDIO
    is_length = bool(_LENGTH_NAME.fullmatch(name))
    roles = [_role_at(tensors[tensor], axis, is_length=is_length) for tensor, axis in places]
    return next((role for role in (IMAGE, AUDIO, LENGTH, OTHER) if role in roles), BATCH)


def _role_at(tensor: Tensor, axis: int, *, is_length: bool) -> str:
    shape = tensor.shape or ()
    is_sound = bool(_AUDIO_NAME.fullmatch(tensor.name)) and not tensor.dtype.startswith("int")
    if axis == 0 and not is_length and (len(shape) > 1 or not is_sound):
        return BATCH
    if axis == 1 and isinstance(shape[0], int) and _STATE_NAME.fullmatch(tensor.name):
        return BATCH
    if axis in _image_axes(shape):
        return IMAGE
    if is_sound and axis == len(shape) - 1 and not isinstance(shape[-1], int) and len(shape) < 4:
        return AUDIO
    return LENGTH if is_length or len(shape) < 4 else OTHER


def _image_axes(shape: Sequence[Dim]) -> tuple[int, ...]:
    """The height and the width of a picture: channels are before them, or after them."""
    if len(shape) != 4:
        return ()
    return (1, 2) if shape[3] in _COLOURS and shape[1] not in _COLOURS else (2, 3)


def _inspected(tensor: Tensor, axes: Mapping[Place, Variable], *, is_given: bool = False) -> InspectedTensor:
    shape = None
    if tensor.shape is not None:
        shape = tuple(_inspected_axis(dim, axes.get((tensor.name, axis))) for axis, dim in enumerate(tensor.shape))
    return InspectedTensor(tensor.name, tensor.dtype, shape, is_given)


def _inspected_axis(dim: Dim, variable: Variable | None) -> InspectedAxis:
    if isinstance(dim, int):
        return InspectedAxis(dim)
    name = "" if dim is None or dim in _NAMELESS else dim
    if variable is None:
        return InspectedAxis(None, name)
    return InspectedAxis(None, name, variable.size, variable.why, variable.is_guess, variable.role == BATCH)


# ---- what the graph forces


def _examined(path: Path, found: Interface, variables: list[Variable]) -> tuple[list[Variable], tuple[str, ...]]:
    """The variables with the sizes that the graph forces, and notes. A graph that cannot be examined leaves guesses."""
    if all(each.why == _GIVEN for each in variables) or any(each.shape is None for each in found.inputs):
        return variables, ()
    order = {
        "inputs": [{"name": each.name, "shape": _sizes(each)} for each in found.inputs],
        "variables": [
            {"places": each.places, "role": each.role, "size": each.size, "fixed": each.why == _GIVEN}
            for each in variables
        ],
    }
    answer = _answer(json.dumps(order).encode() + b"\n" + read_outline(path))
    if isinstance(answer, str) or len(answer.variables) != len(variables):
        why = answer if isinstance(answer, str) else "its process gave other sizes than asked for"
        return variables, (f"the graph was not examined ({one_line(why)}), so the sizes are guesses",)
    made = [
        replace(
            each, size=max(said.size, 1), why=one_line(said.why) or each.why, is_guess=each.is_guess and not said.why
        )
        for each, said in zip(variables, answer.variables, strict=True)
    ]
    return made, tuple(map(one_line, answer.notes))


def _sizes(tensor: Tensor) -> list[int | None]:
    return [dim if isinstance(dim, int) else None for dim in tensor.shape or ()]


@dataclass(frozen=True)
class _Size:
    size: int
    why: str


@dataclass(frozen=True)
class _Answer:
    """The child's. Native code has read a stranger's graph there, so all of it is checked."""

    variables: list[_Size] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""


def _answer(order: bytes) -> _Answer | str:
    """What the child says, or a text that says why it said nothing."""
    with os.fdopen(os.memfd_create("answer"), "r+b") as file:  # the child bounds its length, which a pipe has not
        try:
            ended = subprocess.run(
                [sys.executable, "-m", _CHILD, str(os.getpid())],
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
        said = file.read(MOST_ANSWER_BYTES + 1)
    if len(said) > MOST_ANSWER_BYTES:
        return f"its process gave more than {MOST_ANSWER_BYTES >> 20} MiB"
    try:
        answer = checked(_Answer, read_json(said))
        return answer.error or answer
    except ValueError:
        return f"its process ended with code {ended.returncode}"
