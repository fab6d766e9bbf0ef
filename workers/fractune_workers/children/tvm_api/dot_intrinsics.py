"""Tensor intrinsics for products of whole numbers. Importing this module registers them."""

from __future__ import annotations

from itertools import chain
from typing import Any

from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from fractune_workers.children.tvm_api.dot_products import DOT_PRODUCTS, DotProduct

_SUM = "int32"


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


for _dot in chain(*DOT_PRODUCTS.values()):
    TensorIntrin.register(_dot.name, _description(_dot), _instruction(_dot), override=True)
