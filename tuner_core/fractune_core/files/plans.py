"""The plan of a variant: the tensors that it takes, and without control flow what its kernels are called with.

The variant's code gives the plan as JSON. The reader prepares the arguments of all calls from it when it loads the
code. Kernels check nothing, so the reader checks beforehand that each tensor lies inside its memory. A variant for
TVM's virtual machine has the parameters alone.
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
_COUNT_BYTES = 8


def plan_name(entry: str) -> str:
    """The function of a variant's code that gives the plan of an entry."""
    return f"{entry}_plan"


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
        return self.size_of_row(-len(self.shape) - 1)

    def size_of_row(self, axis: int) -> int:
        """In bytes, that of all axes behind this one, which is counted from the last and negative."""
        behind = self.shape[len(self.shape) + axis + 1 :]
        return math.prod(behind) * ITEM_BYTES[self.dtype]


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
class PlannedCache:
    """A parameter that is a buffer of the caller with at least so many rows as the parameter has."""

    parameter: int
    axis: int
    """of the rows, counted from the last one: it is the same in all tensors in the buffer, and negative"""


@dataclass(frozen=True)
class Plan(JsonObject):
    """Parameters are the inputs of the model, and after them its weights."""

    arena_bytes: int
    constants: tuple[PlannedConstant, ...]
    parameters: tuple[PlannedTensor, ...]
    outputs: tuple[PlannedTensor, ...]
    tensors: tuple[PlannedTensor, ...]
    calls: tuple[PlannedCall, ...]
    caches: tuple[PlannedCache, ...] = ()
    unused: tuple[int, ...] = ()
    """offsets in the arena of numbers (int64) that the caller writes: the rows of the caches before those in use"""
    tokens: tuple[int, ...] = ()
    """the same, of the number of the token that an output is for"""

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
    written = (*plan.unused, *plan.tokens)
    if not all(0 <= offset <= plan.arena_bytes - _COUNT_BYTES and not offset % _COUNT_BYTES for offset in written):
        yield f"a number of rows or tokens outside its arena of {plan.arena_bytes} bytes"
    yield from _cache_complaints(plan)


def _cache_complaints(plan: Plan) -> Iterator[str]:
    """A tensor in a buffer begins where the buffer does, and all of its axes from the rows on are the buffer's."""
    for each in plan.caches:
        if not 0 <= each.parameter < len(plan.parameters):
            yield f"a cache for the parameter {each.parameter} of {len(plan.parameters)}"
            continue
        buffer = plan.parameters[each.parameter]
        held = [tensor for tensor in plan.tensors if tensor.place == ARENA + 1 + each.parameter]
        if not -len(buffer.shape) <= each.axis < 0 or buffer.shape[each.axis] == 0:
            yield f"a cache with rows in the axis {each.axis} of {list(buffer.shape)}"
        elif wrong := next((tensor for tensor in held if not _is_in_rows(tensor, buffer, each.axis)), None):
            yield f"a tensor {wrong.dtype}{list(wrong.shape)} in a cache {buffer.dtype}{list(buffer.shape)}"


def _is_in_rows(tensor: PlannedTensor, buffer: PlannedTensor, axis: int) -> bool:
    """Whether each head of the tensor has the rows of a head of the buffer."""
    rows = tensor.shape[axis:]
    return (tensor.dtype, tensor.offset, rows) == (buffer.dtype, 0, buffer.shape[axis:]) and len(tensor.shape) >= -axis


def _tensor_complaints(tensors: Iterable[PlannedTensor]) -> Iterator[str]:
    for each in tensors:
        if each.dtype not in ITEM_BYTES or len(each.shape) > _MOST_DIMENSIONS or min(each.shape, default=0) < 0:
            yield f"a tensor {each.dtype}{list(each.shape)}"
        elif each.size > _MOST_BYTES:
            yield f"a tensor of {each.size} bytes"
