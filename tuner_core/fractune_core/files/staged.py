"""A model in parts: the steps of a run. Some are ONNX files that ONNX Runtime runs.

A bundle with stages is a joined bundle whose members are the parts of our own code. Values have the names of the ONNX
graph, and a step reads inputs of the model and outputs of steps before it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fractune_core.codec.plain_json import JsonObject
from fractune_core.files.compared import ONNX_RUNTIME

MOST_PARTS = 4
"""that another runtime runs"""


@dataclass(frozen=True)
class Tensor(JsonObject):
    name: str
    dtype: str
    shape: list[int | None]
    """None = depends on the data"""


@dataclass(frozen=True)
class Step(JsonObject):
    """A part of the model: a member of the bundle, or an ONNX file in it."""

    inputs: list[Tensor]
    outputs: list[Tensor]
    member: int | None = None
    part: str = ""
    """the file's entry in the bundle"""
    operators: dict[str, int] = field(default_factory=dict)
    """of the file: how many nodes of each operator it has"""


@dataclass(frozen=True)
class Stages(JsonObject):
    inputs: list[Tensor]
    """of the whole model"""
    outputs: list[Tensor]
    steps: list[Step] = field(default_factory=list)

    @property
    def parts(self) -> list[Step]:
        """Those that ONNX Runtime runs."""
        return [step for step in self.steps if step.member is None]

    @property
    def tensors(self) -> list[list[Tensor]]:
        """The inputs and the outputs, of the whole and of each step."""
        return [self.inputs, self.outputs, *(each for step in self.steps for each in (step.inputs, step.outputs))]


def part_entry(number: int) -> str:
    return f"parts/{number}.onnx"


def stages_complaint(manifest: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> str:
    """What is wrong with the field `stages` of a joined manifest, empty if nothing is."""
    try:
        stages = Stages.from_json(manifest["stages"])
    except ValueError as error:
        return f"'stages' are not inputs, outputs and steps ({error})"
    return next(_complaints(stages, manifest, members), "")


def _complaints(stages: Stages, manifest: Mapping[str, Any], members: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if [step.member for step in stages.steps if step.member is not None] != list(range(len(members))):
        yield "'steps' of 'stages' do not run every member once, in their order"
        return
    if [step.part for step in stages.parts] != [part_entry(number) for number in range(len(stages.parts))]:
        yield "'steps' of 'stages' name their files otherwise than parts/0.onnx, parts/1.onnx and so on"
    for step in stages.parts:
        if step.part not in manifest["sha256"]:
            yield f"'{step.part}' is missing, which 'stages' name"
    if stages.parts and ONNX_RUNTIME not in manifest.get("runtimes", {}):
        yield f"'runtimes' lacks '{ONNX_RUNTIME}', which runs parts of the model"
    names = [
        *(each.name for described in stages.tensors for each in described),
        *(name for step in stages.parts for name in step.operators),
    ]
    if not all(map(str.isprintable, names)):
        yield "'stages' have a name that is not printable"
    for described in stages.tensors:
        if len({each.name for each in described}) < len(described):
            yield "'stages' have two inputs or outputs with one name"
    yield from _flow_complaints(stages, members)


def _flow_complaints(stages: Stages, members: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every value is made once, before it is read, and has one type and shape."""
    known = {each.name: each for each in stages.inputs}
    if any(None in each.shape for each in stages.inputs):
        yield "an input of 'stages' has no fixed shape"
    for number, step in enumerate(stages.steps):
        if step.member is not None and not _is_member(step, members[step.member]):
            yield f"steps[{number}] has other inputs or outputs than its member"
        for each in step.inputs:
            if known.get(each.name) != each:
                yield f"steps[{number}] reads '{each.name[:80]}', which no step before it makes"
        for each in step.outputs:
            if each.name in known:
                yield f"steps[{number}] makes '{each.name[:80]}', which is there already"
            known[each.name] = each
    if not stages.outputs or any(known.get(each.name) != each for each in stages.outputs):
        yield "'outputs' of 'stages' are not values that its steps make"


def _is_member(step: Step, member: Mapping[str, Any]) -> bool:
    for mine, theirs in ((step.inputs, member["inputs"]), (step.outputs, member["outputs"])):
        if [each.to_json() for each in mine] != [
            {name: each[name] for name in ("name", "dtype", "shape")} for each in theirs
        ]:
            return False
    return True
