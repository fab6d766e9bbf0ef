"""The plan of a variant without control flow: what its kernels are called with, one after the other.

The variant's code gives the plan as JSON. The reader prepares the arguments of all calls from it when it loads the
code. Kernels check nothing, so the reader checks beforehand that each tensor lies inside its memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fractune_core.codec.plain_json import JsonObject, read_json
from fractune_core.files.manifests import ITEM_BYTES

ARENA = 0
"""the place of tensors that the model makes and needs for a while; parameters and outputs follow"""
_MOST_BYTES = 2**46
"""of one tensor, and of an arena: more than processors can address"""
_MOST_DIMENSIONS = 32


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor: an operand of kernels, or a parameter or output of the model, which begins its place."""

    dtype: str
    shape: tuple[int, ...]
    place: int = 0
    """0 = the arena, then the parameters, then the outputs"""
    offset: int = 0
    """in bytes, within the place"""

    @property
    def size(self) -> int:
        """In bytes."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class PlannedConstant:
    """Numbers that lie in the arena from the beginning, and stay."""

    offset: int
    hex: str


@dataclass(frozen=True)
class PlannedCall:
    kernel: str
    arguments: tuple[int, ...]
    """the numbers of tensors"""


@dataclass(frozen=True)
class Plan(JsonObject):
    """Parameters are the inputs of the model, and after them its weights."""

    arena_bytes: int
    constants: tuple[PlannedConstant, ...]
    parameters: tuple[PlannedTensor, ...]
    outputs: tuple[PlannedTensor, ...]
    tensors: tuple[PlannedTensor, ...]
    calls: tuple[PlannedCall, ...]

    @classmethod
    def read(cls, text: bytes) -> Plan:
        """The plan in JSON. Raises ValueError for another text, and for a plan that reaches beyond its memory."""
        plan = cls.from_json(read_json(text))
        if wrong := next(_complaints(plan), ""):
            raise ValueError(f"its plan has {wrong}")
        return plan


def _complaints(plan: Plan) -> Iterator[str]:
    spaces = (*plan.parameters, *plan.outputs)
    yield from _tensor_complaints((*spaces, *plan.tensors))
    if not 0 <= plan.arena_bytes <= _MOST_BYTES:
        yield f"an arena of {plan.arena_bytes} bytes"
    sizes = [plan.arena_bytes, *(each.size for each in spaces)]
    for each in plan.tensors:
        if not 0 <= each.place < len(sizes):
            yield f"a tensor in place {each.place} of {len(sizes)}"
        elif not 0 <= each.offset <= sizes[each.place] - each.size:
            yield f"{each.size} bytes from {each.offset} on in place {each.place}, which has {sizes[each.place]}"
    for constant in plan.constants:
        if not 0 <= constant.offset <= plan.arena_bytes - len(bytes.fromhex(constant.hex)):
            yield f"a constant at {constant.offset} in an arena of {plan.arena_bytes} bytes"
    for call in plan.calls:
        if not all(0 <= number < len(plan.tensors) for number in call.arguments):
            yield f"a call of '{call.kernel}' with a tensor that is not there"


def _tensor_complaints(tensors: Iterable[PlannedTensor]) -> Iterator[str]:
    for each in tensors:
        if each.dtype not in ITEM_BYTES or len(each.shape) > _MOST_DIMENSIONS or min(each.shape, default=0) < 0:
            yield f"a tensor {each.dtype}{list(each.shape)}"
        elif each.size > _MOST_BYTES:
            yield f"a tensor of {each.size} bytes"
