"""Layout rule of channel shuffles: one kernel from blocks to blocks, which comes with its schedule."""

from __future__ import annotations

from typing import Any

from tvm import relax, te
from tvm.s_tir import Schedule

from fractune_workers.children.layouts.kernels.blocks import Blocks
from fractune_workers.children.layouts.planner import CHANNELS, Made, Planner, is_image
from fractune_workers.children.rewriting.expressions import OPAQUE, bound_call, shape_of


def reshape(planner: Planner, call: Any) -> Made:
    """The last step of a channel shuffle. (N, C, H, W) was reshaped to (N, groups, C / groups, H, W), axes 1 and 2
    changed places, and this reshape restores the first shape.
    """
    exchanged = bound_call(planner.builder_, call.args[0], "permute_dims")
    if exchanged is None or (grouped := bound_call(planner.builder_, exchanged.args[0], "reshape")) is None:
        return None
    known = planner.in_blocks(grouped.args[0])
    if known is None or known[1].plain != shape_of(call) or not is_image(known[1]):
        return None
    value, source = known
    batch, channels, *pixels = source.shape
    split = shape_of(grouped)
    groups = split[1]
    axes = exchanged.attrs.axes or ()
    if [int(axis) for axis in axes] != [0, 2, 1, 3, 4] or split != (batch, groups, channels // groups, *pixels):
        return None
    made = planner.blocks(source.shape, CHANNELS, groups if channels // groups >= planner.lanes else 1)
    kernel = planner.builder_.add_func(_kernel(groups, source, made, str(value.ty.dtype)), "shuffle")
    return relax.call_tir(kernel, [value], relax.TensorType(made.physical, value.ty.dtype)), made


def _kernel(groups: int, source: Blocks, made: Blocks, dtype: str) -> Any:
    """A TIR function from an image in `source` to the shuffled image in `made`: it takes the channels of the groups
    alternately (Zhang et al. 2018, ShuffleNet). A lane that stands for no channel gets the numbers of some channel.

    The loop over lanes is left to LLVM: as a vector, its loads are one by one. (136 channels of 28 x 28 take 60 us on
    one AVX-512 core, as a vector 150.)
    """
    image = te.placeholder(source.physical, dtype, name="image")
    channels = source.shape[source.axis]

    def element(n: Any, k: Any, y: Any, x: Any, lane: Any) -> Any:
        channel = te.min(made.channel(k, lane)[0], channels - 1)
        block, place = source.place(channel % groups * (channels // groups) + channel // groups)
        return image(n, block, y, x, place)

    moved = te.create_prim_func([image, te.compute(made.physical, element, name="shuffle")])
    sch = Schedule(moved)
    n, k, *_ = sch.get_loops(sch.get_sblock("shuffle", "main"))
    sch.parallel(sch.fuse(n, k))
    nameless = sch.mod["main"].without_attr("global_symbol")
    return nameless.with_attrs({**OPAQUE, "tirx.is_scheduled": True})
