"""Layouts of a whole model: convolutions and matrix products with constant weights compute in blocks of the vector
width, and the values between them stay in blocks.
"""

from __future__ import annotations

from functools import partial

import tvm
from tvm import relax

from fractune_workers.children.layouts import elementwise, four_bits, images, products, ranges, shuffle
from fractune_workers.children.layouts.planner import Planner, Rule
from fractune_workers.children.recurrent.vectors import refuse_recurrences, with_vectors
from fractune_workers.children.rewriting.channels_last import with_channels_last
from fractune_workers.children.rewriting.expressions import rewritten
from fractune_workers.children.tvm_api.dot_products import dot_products
from fractune_workers.children.tvm_api.target import vector_unit

_RULES: dict[str, Rule] = {
    "nn.conv2d": products.conv2d,
    "matmul": products.matmul,
    "astype": products.cast,
    "nn.max_pool2d": images.pool,
    "nn.avg_pool2d": images.pool,
    "nn.adaptive_avg_pool2d": images.adaptive_pool,
    "image.resize2d": images.resize,
    "concat": elementwise.concat,
    "reshape": shuffle.reshape,
    "squeeze": elementwise.squeeze,
    **dict.fromkeys(elementwise.UNARY, elementwise.unary),
    **dict.fromkeys(elementwise.UNARY_OF_CHANNELS, partial(elementwise.unary, every_lane=True)),
    **dict.fromkeys([*elementwise.BINARY, *elementwise.BINARY_OF_CHANNELS], elementwise.binary),
    **dict.fromkeys(elementwise.REDUCE, elementwise.reduce),
    "clip": ranges.clip,
    "max": ranges.largest,
    "min": ranges.smallest,
}
"""by the Relax operator"""


def planned(mod: tvm.IRModule, target: tvm.target.Target, implementation: str = "") -> tvm.IRModule:
    """The module with its layouts planned for the target; its results stay the same.

    The implementation of this name computes the convolutions and products that it fits; all others are computed
    directly. Calls and their arguments correspond one to one, whatever the implementation. Raises BadModel for a
    recurrent operator on a GPU.
    """
    if target.kind.name != "llvm":
        refuse_recurrences(mod)
        return with_channels_last(mod) if target.kind.name == "cuda" else mod
    unit = vector_unit(target)
    rules: dict[str, Rule] = {**_RULES, "call_tir": partial(four_bits.in_vectors, unit=unit)}
    planner = Planner(mod.clone(), rules, elementwise.part, unit.lanes, implementation, dot_products(target))
    tidy = [relax.transform.EliminateCommonSubexpr(), relax.transform.DeadCodeElimination()]
    return tvm.transform.Sequential(tidy)(with_vectors(rewritten(mod, planner), unit))
