"""The pass that plans layouts: it knows which values lie in blocks, and asks a rule for each operator.

The pass goes once through the model. A value in blocks is known under the variable of the plain value, which is made
from it as well. An operator that can compute in blocks takes the value in blocks; any other takes the plain value.
Values that no operator took are dead code, which is removed at the end. So the pass need not know the rest of the
model, and any operator may occur.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from math import prod
from typing import Any

import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.names import FROM_BLOCKS, TO_BLOCKS
from fractune_workers.children.layouts.kernels.direct import Blocks, block_count, from_blocks, input_run, to_blocks
from fractune_workers.children.rewriting import expressions
from fractune_workers.children.tvm_api.dot_intrinsics import dot_products
from fractune_workers.children.tvm_api.target import VectorUnit, vector_unit

Array = npt.NDArray[Any]
Made = tuple[Any, Blocks] | None
"""a value in blocks; None where the operator computes on plain values"""
MadeOrPlain = tuple[Any, Blocks | None] | None
"""the same, or a plain value, without blocks"""
Rule = Callable[["Planner", Any], MadeOrPlain]
"""computes the result of a call in blocks, or a plain one of an operand in blocks"""
PartRule = Callable[["Planner", Any, int], Made]
"""computes one result of a split in blocks"""
CHANNELS = 1
"""the axis of an image's channels: layouts are NCHW"""


def is_image(blocks: Blocks) -> bool:
    return len(blocks.shape) == len(blocks.plain) == 4 and blocks.axis == CHANNELS


@mutator
class Planner(PyExprMutator):
    def __init__(
        self,
        mod: tvm.IRModule,
        rules: Mapping[str, Rule],
        part: PartRule,
        lanes: int,
        implementation: str,
        target: tvm.target.Target,
    ) -> None:
        super().__init__(mod)
        self._rules = rules
        self._part = part
        self.lanes = lanes
        self.implementation = implementation
        self.target = target
        self._known: dict[Any, tuple[Any, Blocks]] = {}
        """by the variable of a plain value: the variable of the same in blocks"""
        self._of_constants: dict[Any, Any] = {}
        """by the tensor of a constant: what a rule has made of it"""
        self._made: Made = None
        """the result of the last call in blocks"""

    @cached_property
    def dot_products(self) -> list[str]:
        """Implementations of products of whole numbers that the target has instructions for, the faster first."""
        return dot_products(self.target) if self.lanes == vector_unit(self.target).lanes else []

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        made, self._made = self._made, None
        if made is not None:
            self._known[self.visit_expr(binding.var)] = made

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        rule = self._rules.get(expressions.operator_of(visited))
        return self._replacing(visited, rule(self, visited) if rule and expressions.has_fixed_shapes(call) else None)

    def visit_tuple_getitem_(self, op: Any) -> Any:
        visited = super().visit_tuple_getitem_(op)
        split = expressions.bound_call(self.builder_, visited.tuple_value, "split")
        return visited if split is None else self._replacing(visited, self._part(self, split, visited.index))

    def _replacing(self, plain: Any, made: MadeOrPlain) -> Any:
        """The plain value of what a rule made of the expression `plain`."""
        if made is None:
            return plain
        value, blocks = made
        if blocks is None:
            return value
        value = self.emit(value)
        self._made = value, blocks
        return self.plain(value, blocks)

    # For rules

    def emit(self, value: Any) -> Any:
        """A variable with the value."""
        return value if isinstance(value, relax.Var) else self.builder_.emit(value)

    def in_blocks(self, value: Any) -> tuple[Any, Blocks] | None:
        """The value in blocks, if it is there already."""
        return self._known.get(value) if isinstance(value, relax.Var) else None

    def into_blocks(self, value: Any, axis: int, parts: int | None = None) -> tuple[Any, Blocks]:
        """The value with `axis` in blocks, converted if need be; in `parts` parts, None = any number."""
        known = self.in_blocks(value)
        blocks = self.blocks(expressions.shape_of(value), axis, parts or 1)
        if known and known[1].axis == axis and not known[1].dropped and (not parts or known[1].parts == blocks.parts):
            return known
        return self.changed(value, blocks), blocks

    def changed(self, value: Any, blocks: Blocks) -> Any:
        """A plain value, put into `blocks`."""
        if blocks.is_view:
            return self.builder_.emit(relax.op.reshape(value, blocks.physical))
        return self.builder_.emit(self.kernel(to_blocks, value, blocks=blocks, name=TO_BLOCKS))

    def blocks(self, shape: Sequence[int], axis: int, parts: int = 1) -> Blocks:
        """Blocks along the axis, in `parts` parts where the parts are not whole blocks anyway."""
        return Blocks(tuple(shape), axis, self.lanes, parts=parts if shape[axis] // parts % self.lanes else 1)

    def constant(self, value: Any) -> Array | None:
        """The numbers of a constant, None for anything else."""
        return expressions.numbers_of(self.builder_, value)

    def once(self, constant: Any, make: Callable[[], Any]) -> Any:
        """What `make` makes of a constant: a product may be there for all tokens and for one."""
        value = self.builder_.lookup_binding(constant) if isinstance(constant, relax.Var) else constant
        if value.value not in self._of_constants:
            self._of_constants[value.value] = make()
        return self._of_constants[value.value]

    def kernel(
        self,
        compute: Callable[..., Any],
        *operands: Any,
        name: str,
        attributes: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """A call of the tensor expression `compute(*operands, **options)` as a function with `attributes`."""
        made = partial(compute, **options)
        return self.builder_.call_te(made, *operands, primfunc_name_hint=name, primfunc_attrs=attributes)

    def plain_of(self, value: Any, blocks: Blocks) -> Any:
        """A variable with the plain value of a value in blocks. Rules find the value in blocks by this variable."""
        plain = self.emit(self.plain(value, blocks))
        self._known[plain] = value, blocks
        return plain

    def plain(self, value: Any, blocks: Blocks) -> Any:
        """A value in blocks, as a plain one."""
        if blocks.is_view:
            return relax.op.reshape(value, blocks.plain)
        return self.kernel(from_blocks, value, blocks=blocks, name=FROM_BLOCKS)


# The size of blocks: half a vector where blocks of whole vectors would multiply many zeros.

_LEAST_GAIN = 1.12
"""Multiplications of whole vectors over those of half ones. Half vectors need twice the instructions. Nine models
took up to 1.16 times as long by them with gains below 1.06, five 0.64 to 0.92 times with gains from 1.13 on."""


def block_lanes(values: Sequence[Any], unit: VectorUnit) -> int:
    """The lanes of the blocks of a model that computes these values: the unit's, or half as many.

    A unit that begins one multiplication of whole vectors a cycle begins two of half ones. So 24 channels in 3 blocks
    of 8 take 9/16 of the time of 2 blocks of 16. Products of whole numbers need whole vectors.
    """
    calls = [each for each in values if expressions.operator_of(each) and expressions.has_fixed_shapes(each)]
    half = unit.lanes // 2
    if unit.multiplies > 1 or any(expressions.operator_of(each) == "round" for each in calls):
        return unit.lanes
    whole_work, half_work = (sum(_multiplications(each, lanes) for each in calls) for lanes in (unit.lanes, half))
    return half if whole_work > _LEAST_GAIN * half_work else unit.lanes


def _multiplications(call: Any, lanes: int) -> int:
    """Of a convolution or a product in blocks of so many lanes; 0 of any other call."""
    name = expressions.operator_of(call)
    if name not in ("nn.conv2d", "matmul"):
        return 0
    made, weights = expressions.shape_of(call), expressions.shape_of(call.args[1])
    if name == "matmul":
        return prod(made[:-1]) * expressions.shape_of(call.args[0])[-1] * _filled(made[-1], lanes) if made else 0
    run = input_run(weights[1], lanes)
    inputs = _filled(weights[1], lanes) if run == lanes else -(-weights[1] // run) * run
    inputs = inputs if weights[1] > 1 else 1
    return made[0] * block_count(made[1], lanes) * lanes * prod(made[2:]) * inputs * prod(weights[2:])


def _filled(channels: int, lanes: int) -> int:
    """Channels with those that fill up the last block; too few for blocks stay as they are."""
    return channels if 2 * channels <= lanes else block_count(channels, lanes) * lanes
