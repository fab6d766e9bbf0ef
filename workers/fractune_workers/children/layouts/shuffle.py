"""Channel shuffles from blocks to blocks: one kernel, which comes with its schedule."""

from __future__ import annotations

from typing import Any

from tvm import te
from tvm.s_tir import Schedule

from fractune_workers.children.layouts.blocks import Blocks

_OPAQUE = 8
"""TVM's kOpaque: nothing is fused with it"""


def shuffle(groups: int, source: Blocks, made: Blocks, dtype: str) -> Any:
    """The TIR function that takes an image as `source` says, and makes one that lies as `made` says, with the channels
    of its groups taken in turn: what (N, groups, C / groups, H, W) does when its axes 1 and 2 change places (Zhang et
    al. 2018, ShuffleNet). A lane that stands for no channel gets some channel's numbers.

    The loop over lanes is left to LLVM: made a vector here, its loads are one by one. (On one AVX-512 core 60 us for
    136 channels of 28 x 28, as a vector 150.)
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
    return nameless.with_attrs({"op_pattern": _OPAQUE, "tirx.is_scheduled": True})
