"""Instructions of x86 for products of whole numbers, exact in int32.

Each adds up the products of a few neighbouring numbers of one row with the weights of as many outputs as a vector has
lanes. None saturates: `vpmaddubsw`, which does, is not among them. TVM's own `vpdpbusd` passes types that LLVM refuses
since version 22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm

from fractune_core.implementations import INT8, INT16
from fractune_workers.children.tvm_api.target import needed_features, vector_unit


@dataclass(frozen=True)
class DotProduct:
    """`lanes` sums of `group` products each: a number of the row times a weight."""

    name: str
    """of the tensor intrinsic"""
    llvm: str
    feature: str
    """the instruction set that has it"""
    data: str
    """type of the row's numbers"""
    weight: str
    lanes: int
    adds: bool = True
    """whether the instruction itself adds to the accumulators"""

    @property
    def group(self) -> int:
        """Numbers of a row in 32 bits."""
        return 32 // int(tvm.DataType(self.data).bits)


_BYTES = [
    DotProduct("fractune_u8s8_512", "llvm.x86.avx512.vpdpbusd.512", "avx512vnni", "uint8", "int8", 16),
    DotProduct("fractune_u8s8_256", "llvm.x86.avx512.vpdpbusd.256", "avxvnni", "uint8", "int8", 8),
]
_PAIRS = [
    DotProduct("fractune_s16s16_512_vnni", "llvm.x86.avx512.vpdpwssd.512", "avx512vnni", "int16", "int16", 16),
    DotProduct("fractune_s16s16_512", "llvm.x86.avx512.pmaddw.d.512", "avx512bw", "int16", "int16", 16, adds=False),
    DotProduct("fractune_s16s16_256_vnni", "llvm.x86.avx512.vpdpwssd.256", "avxvnni", "int16", "int16", 8),
    DotProduct("fractune_s16s16_256", "llvm.x86.avx2.pmadd.wd", "avx2", "int16", "int16", 8, adds=False),
]
DOT_PRODUCTS = {INT8: _BYTES, INT16: _PAIRS}
"""by implementation, the fastest first"""


def dot_product(implementation: str, target: Any, lanes: int) -> DotProduct | None:
    """The instruction of an implementation for vectors of `lanes` numbers; None where the target has none."""
    features = needed_features(target)
    found = (dot for dot in DOT_PRODUCTS[implementation] if dot.lanes == lanes and dot.feature in features)
    return next(found, None)


def dot_products(target: Any) -> list[str]:
    """The implementations of products of whole numbers that a CPU target has instructions for, the faster first."""
    lanes = vector_unit(target).lanes
    return [name for name in DOT_PRODUCTS if dot_product(name, target, lanes)]


def pairing(lanes: int) -> str:
    """The name of the tensor intrinsic that turns two vectors of float32 into one of pairs of 16 bits."""
    return f"fractune_pairs_{lanes}"
