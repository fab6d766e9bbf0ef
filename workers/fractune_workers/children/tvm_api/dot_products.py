"""Tensor intrinsics of x86 for products of whole numbers, exact in int32. Importing this module registers them.

Each adds up the products of a few neighbouring numbers of one row with the weights of as many outputs as a vector has
lanes. None saturates: `vpmaddubsw`, which does, is not among them. TVM's own `vpdpbusd` passes types that LLVM refuses
since version 22.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from fractune_core.implementations import INT8, INT16
from fractune_workers.children.tvm_api.target import needed_features

_SUM = "int32"


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
_BY_IMPLEMENTATION = {INT8: _BYTES, INT16: _PAIRS}
"""the fastest first"""


def dot_product(implementation: str, target: Any, lanes: int) -> DotProduct | None:
    """The instruction of an implementation for vectors of `lanes` numbers; None where the target has none."""
    features = needed_features(target)
    found = (dot for dot in _BY_IMPLEMENTATION[implementation] if dot.lanes == lanes and dot.feature in features)
    return next(found, None)


def _description(dot: DotProduct) -> Any:
    """The computation that the instruction takes the place of in a schedule."""
    lanes, group = dot.lanes, dot.group

    @T.prim_func(s_tir=True)
    def described(
        row: T.Buffer((group,), dot.data, offset_factor=1),  # type: ignore[valid-type]
        weights: T.Buffer((lanes, group), dot.weight, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), _SUM, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], row[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            for lane in T.serial(0, lanes):
                for k in T.serial(0, group):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SR", [lane, k])
                        sums[vi] = sums[vi] + T.cast(row[vk], _SUM) * T.cast(weights[vi, vk], _SUM)

    return described


def _instruction(dot: DotProduct) -> Any:
    lanes, group, llvm = dot.lanes, dot.group, dot.llvm
    few, many, vector = f"{dot.data}x{group}", f"{dot.weight}x{lanes * group}", f"{_SUM}x{lanes}"

    @T.prim_func(s_tir=True)
    def adding(
        row: T.Buffer((group,), dot.data, offset_factor=1),  # type: ignore[valid-type]
        weights: T.Buffer((lanes, group), dot.weight, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), _SUM, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], row[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(llvm),
                sums.vload([0], vector),
                T.reinterpret(T.broadcast(T.reinterpret(row.vload([0], few), dtype=_SUM), lanes), dtype=many),
                weights.vload([0, 0], many),
                dtype=vector,
            )

    @T.prim_func(s_tir=True)
    def added(
        row: T.Buffer((group,), dot.data, offset_factor=1),  # type: ignore[valid-type]
        weights: T.Buffer((lanes, group), dot.weight, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), _SUM, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], row[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            sums[T.ramp(T.int32(0), 1, lanes)] += T.call_llvm_pure_intrin(
                T.llvm_lookup_intrinsic_id(llvm),
                T.reinterpret(T.broadcast(T.reinterpret(row.vload([0], few), dtype=_SUM), lanes), dtype=many),
                weights.vload([0, 0], many),
                dtype=vector,
            )

    return adding if dot.adds else added


for _dot in [*_BYTES, *_PAIRS]:
    TensorIntrin.register(_dot.name, _description(_dot), _instruction(_dot), override=True)
