"""Layouts of a whole model: convolutions and matrix products with constant weights compute in blocks of the vector
width, and what lies between them stays in blocks.

The pass goes once through the model. A value in blocks is known under the variable of the plain value, which is made
from it as well: whoever can compute in blocks takes the one, everybody else takes the other, and what nobody took is
removed at the end as dead code. So nothing has to be known about the rest of the model, and any operator may occur.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.names import FROM_BLOCKS, TO_BLOCKS
from fractune_workers.children.layouts import kernels
from fractune_workers.children.layouts.blocks import Blocks, from_blocks, pack, to_blocks
from fractune_workers.children.layouts.channels_last import with_channels_last
from fractune_workers.children.layouts.expressions import has_fixed_shapes, numbers_of, shape_of
from fractune_workers.children.layouts.implementations import IMPLEMENTATIONS
from fractune_workers.children.layouts.kernels import Window, pack_groups
from fractune_workers.children.layouts.shuffle import shuffle
from fractune_workers.children.tvm_api.target import vector_unit

_CHANNELS = 1
"""the axis of an image's channels: layouts are NCHW"""
_FLOAT = "float32"
_MOST_TAPS = 49
"""of a pooling window that is written out"""
_UNARY = frozenset({
    "abs", "ceil", "clip", "cos", "erf", "floor", "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu",
    "nn.relu6", "nn.silu", "round", "sigmoid", "sign", "sin", "square", "tanh",
})  # fmt: skip
"""of finite numbers they make finite ones: a lane that stands for no channel stays harmless"""
_UNARY_OF_CHANNELS = frozenset(["exp", "log", "nn.softplus", "rsqrt", "sqrt"])
"""only where every lane stands for a channel"""
_BINARY = {"add": 0.0, "divide": 1.0, "maximum": 0.0, "minimum": 0.0, "multiply": 0.0, "subtract": 0.0}
"""what fills up a constant operand"""
_BINARY_OF_CHANNELS = frozenset({"divide", "power"})
_REDUCE = {"max": relax.op.max, "mean": relax.op.mean, "min": relax.op.min, "sum": relax.op.sum}

_TAKES_AN_EPILOGUE = {"op_pattern": 4}
"""TVM's kOutEWiseFusable, which it finds by itself where there is one block: element-wise operators after it are fused
with it"""

_Array = npt.NDArray[Any]
_Made = tuple[Any, Blocks] | None
"""a value in blocks"""


def planned(mod: tvm.IRModule, target: tvm.target.Target, implementation: str = "") -> tvm.IRModule:
    """The module with its layouts planned for the target; what it computes stays the same.

    Convolutions that the implementation of this name fits are computed by it, all others directly: calls and their
    arguments correspond one to one, whatever the implementation.
    """
    if target.kind.name != "llvm":
        return with_channels_last(mod) if target.kind.name == "cuda" else mod
    planner = _Planner(mod.clone(), vector_unit(target).lanes, implementation)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            planner.builder_.update_func(name, planner.visit_expr(function))
    tidy = [relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(tidy)(planner.builder_.get())


@mutator
class _Planner(PyExprMutator):
    def __init__(self, mod: tvm.IRModule, lanes: int, implementation: str) -> None:
        super().__init__(mod)
        self.lanes = lanes
        self.implementation = IMPLEMENTATIONS[implementation] if implementation else None
        self._known: dict[Any, tuple[Any, Blocks]] = {}
        """by the variable of a plain value: the variable of the same in blocks"""
        self._made: _Made = None
        """what the call visited last has in blocks"""

    def visit_var_binding_(self, binding: Any) -> None:
        super().visit_var_binding_(binding)
        made, self._made = self._made, None
        if made is not None:
            self._known[self.visit_expr(binding.var)] = made

    def visit_call_(self, call: Any) -> Any:
        visited = super().visit_call_(call)
        rule = _RULES.get(getattr(visited.op, "name", "").removeprefix("relax."))
        made = rule(self, visited) if rule and has_fixed_shapes(call) else None
        if made is None:
            return visited
        value, blocks = made
        if not isinstance(value, relax.Var):
            value = self.builder_.emit(value)
        self._made = value, blocks
        return self._plain(value, blocks)

    # What rules ask for

    def in_blocks(self, value: Any) -> tuple[Any, Blocks] | None:
        """The value in blocks, if it is there already."""
        return self._known.get(value) if isinstance(value, relax.Var) else None

    def into_blocks(self, value: Any, axis: int, parts: int | None = None) -> tuple[Any, Blocks]:
        """The value with `axis` in blocks, changed into them if need be; in so many parts, or None for any."""
        known = self.in_blocks(value)
        blocks = self.blocks(shape_of(value), axis, parts or 1)
        if known and known[1].axis == axis and not known[1].dropped and (not parts or known[1].parts == blocks.parts):
            return known
        return self.changed(value, blocks), blocks

    def changed(self, value: Any, blocks: Blocks) -> Any:
        """A plain value, put into `blocks`."""
        return self.builder_.emit(self.kernel(to_blocks, value, blocks=blocks, name=TO_BLOCKS))

    def blocks(self, shape: Sequence[int], axis: int, parts: int = 1) -> Blocks:
        """With the axis in so many parts, where these are not whole blocks anyway."""
        return Blocks(tuple(shape), axis, self.lanes, parts=parts if shape[axis] // parts % self.lanes else 1)

    def called(self, value: Any, name: str) -> Any | None:
        """The call of the operator `name` that a variable is bound to; None for anything else."""
        bound = self.builder_.lookup_binding(value) if isinstance(value, relax.Var) else None
        return bound if getattr(getattr(bound, "op", None), "name", "") == f"relax.{name}" else None

    def constant(self, value: Any) -> _Array | None:
        """The numbers of a constant, None for anything else."""
        return numbers_of(self.builder_, value)

    def kernel(
        self,
        compute: Callable[..., Any],
        *operands: Any,
        name: str,
        attributes: dict[str, Any] | None = None,
        **options: Any,
    ) -> Any:
        """A call of the tensor expression that `compute(*operands, **options)` makes, a function with `attributes`."""
        made = partial(compute, **options)
        return self.builder_.call_te(made, *operands, primfunc_name_hint=name, primfunc_attrs=attributes)

    def _plain(self, value: Any, blocks: Blocks) -> Any:
        innermost = blocks.axis == len(blocks.shape) - 1
        if innermost and not blocks.filled_up:  # it lies in memory as it should
            return relax.op.reshape(value, blocks.plain)
        return self.kernel(from_blocks, value, blocks=blocks, name=FROM_BLOCKS)


_Rule = Callable[[_Planner, Any], _Made]


def _conv2d(planner: _Planner, call: Any) -> _Made:
    data, weight = call.args
    numbers = planner.constant(weight)
    attrs = call.attrs
    plain = (str(attrs.data_layout), str(attrs.kernel_layout), str(attrs.out_layout)) == ("NCHW", "OIHW", "NCHW")
    if numbers is None or numbers.dtype != _FLOAT or not plain:
        return None
    window = _window(attrs)
    out_channels, group_channels = numbers.shape[:2]
    lanes, groups = planner.lanes, int(attrs.groups)
    channels = group_channels * groups
    if 2 * out_channels <= lanes:
        return None
    made = planner.blocks(shape_of(call), _CHANNELS)
    if groups == 1 and 2 * channels <= lanes and planner.in_blocks(data) is None:
        packed = pack(numbers, 0, lanes)
        return planner.kernel(kernels.conv2d_first, data, relax.const(packed), name="conv2d", window=window), made
    if groups == 1:
        return _dense_conv2d(planner, data, numbers, window), made
    if group_channels == 1 and out_channels == groups:
        image, blocks = planner.into_blocks(data, _CHANNELS)
        weights = relax.const(pack(numbers[:, 0], 0, lanes, parts=blocks.parts))
        value = planner.kernel(kernels.depthwise_conv2d, image, weights, name="conv2d", window=window)
        return value, replace(made, parts=blocks.parts)
    parts = _parts(planner, data, groups, numbers)
    image, _ = planner.into_blocks(data, _CHANNELS, parts)
    if parts > 1:
        packed = pack(pack(numbers, 1, lanes), 0, lanes, parts=parts)
        group = len(packed) // groups * lanes, packed.shape[1] * lanes
    else:
        packed, group = pack_groups(numbers, groups, lanes), (out_channels // groups, group_channels)
    compute = partial(kernels.grouped_conv2d, group=group)
    value = planner.kernel(compute, image, relax.const(packed), name="conv2d", window=window)
    return value, planner.blocks(made.shape, _CHANNELS, parts)


def _parts(planner: _Planner, data: Any, groups: int, numbers: _Array) -> int:
    """In how many parts a convolution reads and writes its groups: by themselves if each fills a block, and if the
    image does not lie otherwise already.
    """
    if min(len(numbers) // groups, numbers.shape[1]) < planner.lanes:
        return 1
    known = planner.in_blocks(data)
    wanted = planner.blocks(shape_of(data), _CHANNELS, groups)
    return groups if known is None or known[1].parts == wanted.parts else 1


def _dense_conv2d(planner: _Planner, data: Any, numbers: _Array, window: Window) -> Any:
    image, blocks = planner.into_blocks(data, _CHANNELS)
    packed = pack(pack(numbers, 1, planner.lanes, parts=blocks.parts), 0, planner.lanes)
    other = planner.implementation
    if other is None or not other.fits(window, packed.shape, (blocks.shape[2], blocks.shape[3])):
        return planner.kernel(kernels.conv2d, image, relax.const(packed), name="conv2d", window=window)
    weights = relax.const(other.pack(packed))
    return planner.kernel(other.compute, image, weights, name="conv2d", attributes=_TAKES_AN_EPILOGUE, window=window)


def _window(attrs: Any) -> Window:
    padding = [int(side) for side in attrs.padding]
    top, left, bottom, right = padding * (4 // len(padding))
    sy, sx = (int(step) for step in attrs.strides)
    dy, dx = (int(step) for step in attrs.dilation)
    return Window((sy, sx), (top, left, bottom, right), (dy, dx))


def _matmul(planner: _Planner, call: Any) -> _Made:
    data, weight = call.args
    numbers = planner.constant(weight)
    if numbers is None or numbers.ndim != 2 or numbers.dtype != _FLOAT or data.ty.dtype != _FLOAT:
        return None
    shape = shape_of(call)
    if len(shape) < 2 or 2 * shape[-1] <= planner.lanes:
        return None
    packed = relax.const(pack(numbers, 1, planner.lanes).transpose(1, 0, 2).copy())
    return planner.kernel(kernels.matmul, data, packed, name="matmul"), planner.blocks(shape, len(shape) - 1)


def _unary(planner: _Planner, call: Any, *, every_lane: bool = False) -> _Made:
    known = planner.in_blocks(call.args[0])
    if known is None or (every_lane and known[1].filled_up):
        return None
    value, blocks = known
    return relax.Call(call.op, [value, *call.args[1:]], call.attrs), blocks


def _binary(planner: _Planner, call: Any) -> _Made:
    operands = list(call.args)
    name = str(call.op.name).removeprefix("relax.")
    known = (planner.in_blocks(operand) for operand in operands)
    blocks = next((each[1] for each in known if each and each[1].plain == shape_of(call)), None)
    if blocks is None:
        return None
    if blocks.filled_up and name in _BINARY_OF_CHANNELS and planner.constant(operands[1]) is None:
        return None
    laid = [_operand(planner, operand, blocks, _BINARY.get(name, 0.0)) for operand in operands]
    if any(operand is None for operand in laid):
        return None
    return relax.Call(call.op, laid, call.attrs), blocks


def _operand(planner: _Planner, operand: Any, blocks: Blocks, fill: float) -> Any | None:
    """An operand of an element-wise operator, to go with a value that lies in `blocks`; None where none fits."""
    known = planner.in_blocks(operand)
    if known:
        theirs = known[1]
        alike = (len(theirs.shape), theirs.axis, theirs.dropped) == (len(blocks.shape), blocks.axis, blocks.dropped)
        if not alike or theirs.shape[blocks.axis] != blocks.shape[blocks.axis]:
            return None
        same_parts = theirs.parts == blocks.parts
        return known[0] if same_parts else planner.changed(operand, replace(theirs, parts=blocks.parts))
    numbers = planner.constant(operand)
    if numbers is not None:
        return relax.const(_packed_operand(numbers, blocks, fill))
    if shape_of(operand) != blocks.plain:
        return None
    return planner.changed(operand, blocks)


def _packed_operand(numbers: _Array, blocks: Blocks, fill: float) -> _Array:
    if numbers.size == 1:
        return numbers.reshape(())
    aligned = numbers.reshape((1,) * (len(blocks.kept) - numbers.ndim) + numbers.shape)
    whole = np.expand_dims(aligned, blocks.dropped)
    if whole.shape[blocks.axis] == 1:
        return whole[..., None]
    return pack(whole, blocks.axis, blocks.size, fill, blocks.parts)


def _reduce(planner: _Planner, call: Any) -> _Made:
    known = planner.in_blocks(call.args[0])
    if known is None or call.attrs.axis is None:
        return None
    value, blocks = known
    axes = [blocks.kept[int(axis)] for axis in call.attrs.axis]
    if blocks.axis in axes:
        return None
    reduce = _REDUCE[str(call.op.name).removeprefix("relax.")]
    shape = tuple(1 if axis in axes else extent for axis, extent in enumerate(blocks.shape))
    dropped = blocks.dropped if call.attrs.keepdims else tuple(sorted((*blocks.dropped, *axes)))
    return reduce(value, axes, keepdims=True), replace(blocks, shape=shape, dropped=dropped)


def _squeeze(planner: _Planner, call: Any) -> _Made:
    known = planner.in_blocks(call.args[0])
    if known is None:
        return None
    value, blocks = known
    given = call.attrs.axis
    ones = [axis for axis in blocks.kept if blocks.shape[axis] == 1]
    axes = ones if given is None else [blocks.kept[int(axis)] for axis in given]
    if blocks.axis in axes:
        return None
    return value, replace(blocks, dropped=tuple(sorted((*blocks.dropped, *axes))))


def _concat(planner: _Planner, call: Any) -> _Made:
    fields = call.args[0]
    if not isinstance(fields, relax.Tuple):
        return None
    parts = [planner.in_blocks(field) for field in fields]
    first = next((known for known in parts if known), None)
    if first is None:
        return None
    if first[1].dropped:
        return None
    axis = int(call.attrs.axis) % len(first[1].shape)
    of_channels = axis == first[1].axis
    if of_channels and (first[1].parts > 1 or any(shape_of(field)[axis] % planner.lanes for field in fields)):
        return None
    laid = [planner.into_blocks(field, first[1].axis, first[1].parts)[0] for field in fields]
    return relax.op.concat(laid, axis), replace(first[1], shape=shape_of(call))


def _reshape(planner: _Planner, call: Any) -> _Made:
    """The last step of a channel shuffle: (N, C, H, W) was seen as (N, groups, C / groups, H, W), axes 1 and 2 changed
    places, and the shape is the first again.
    """
    exchanged = planner.called(call.args[0], "permute_dims")
    if exchanged is None or (grouped := planner.called(exchanged.args[0], "reshape")) is None:
        return None
    known = planner.in_blocks(grouped.args[0])
    if known is None or known[1].plain != shape_of(call) or not _is_image(known[1]):
        return None
    value, source = known
    batch, channels, *pixels = source.shape
    split = shape_of(grouped)
    groups = split[1]
    axes = exchanged.attrs.axes or ()
    if [int(axis) for axis in axes] != [0, 2, 1, 3, 4] or split != (batch, groups, channels // groups, *pixels):
        return None
    made = planner.blocks(source.shape, _CHANNELS, groups if channels // groups >= planner.lanes else 1)
    kernel = planner.builder_.add_func(shuffle(groups, source, made, str(value.ty.dtype)), "shuffle")
    return relax.call_tir(kernel, [value], relax.TensorType(made.physical, value.ty.dtype)), made


def _is_image(blocks: Blocks) -> bool:
    return len(blocks.shape) == len(blocks.plain) == 4 and blocks.axis == _CHANNELS


def _image(planner: _Planner, call: Any) -> tuple[Any, str, int] | None:
    """The image of an operator over images in blocks, the name of its layout, and of how many parts it is."""
    known = planner.in_blocks(call.args[0])
    if known is None or not _is_image(known[1]) or str(call.attrs.layout) != "NCHW":
        return None
    return known[0], f"NCHW{known[1].size}c", known[1].parts


def _pool(planner: _Planner, call: Any) -> _Made:
    image = _image(planner, call)
    attrs = call.attrs
    kernel = tuple(int(extent) for extent in attrs.pool_size)
    if image is None or str(attrs.out_layout) != "NCHW" or math.prod(kernel) > _MOST_TAPS:
        return None
    made = planner.blocks(shape_of(call), _CHANNELS, image[2])
    options: dict[str, Any] = {"kernel": kernel, "window": _window(attrs), "extents": made.shape[2:]}
    if call.op.name == "relax.nn.max_pool2d":
        return planner.kernel(kernels.max_pool2d, image[0], name="max_pool2d", **options), made
    # What a mean counts at the edges of such an image is a matter of its own.
    if attrs.ceil_mode or options["window"].dilation != (1, 1):
        return None
    options["of_padding"] = bool(attrs.count_include_pad)
    return planner.kernel(kernels.avg_pool2d, image[0], name="avg_pool2d", **options), made


def _adaptive_pool(planner: _Planner, call: Any) -> _Made:
    image = _image(planner, call)
    if image is None:
        return None
    value = relax.op.nn.adaptive_avg_pool2d(image[0], call.attrs.output_size, layout=image[1])
    return value, planner.blocks(shape_of(call), _CHANNELS, image[2])


def _resize(planner: _Planner, call: Any) -> _Made:
    image = _image(planner, call)
    if image is None:
        return None
    attrs = call.attrs
    value = relax.op.image.resize2d(
        image[0],
        call.args[1],
        roi=[float(edge) for edge in attrs.roi],
        layout=image[1],
        method=attrs.method,
        coordinate_transformation_mode=attrs.coordinate_transformation_mode,
        rounding_method=attrs.rounding_method,
        cubic_alpha=attrs.cubic_alpha,
        cubic_exclude=attrs.cubic_exclude,
        extrapolation_value=attrs.extrapolation_value,
    )
    return value, planner.blocks(shape_of(call), _CHANNELS, image[2])


_RULES: dict[str, _Rule] = {
    "nn.conv2d": _conv2d,
    "matmul": _matmul,
    "nn.max_pool2d": _pool,
    "nn.avg_pool2d": _pool,
    "nn.adaptive_avg_pool2d": _adaptive_pool,
    "image.resize2d": _resize,
    "concat": _concat,
    "reshape": _reshape,
    "squeeze": _squeeze,
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_UNARY_OF_CHANNELS, partial(_unary, every_lane=True)),
    **dict.fromkeys([*_BINARY, *_BINARY_OF_CHANNELS], _binary),
    **dict.fromkeys(_REDUCE, _reduce),
}
