"""Tensor intrinsics for products of whole numbers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T

from fractune_core.operators import INT8, INT16
from fractune_workers.children.tvm_api.target import needed_features, vector_unit

# Instructions of x86 for products of whole numbers, exact in int32.
#
# Each adds up the products of a few neighbouring numbers of one row with the weights of as many outputs as a vector
# has lanes. None saturates: `vpmaddubsw`, which does, is not among them. TVM's own `vpdpbusd` passes types that LLVM
# refuses since version 22.


_PREFIX = "fractune_"


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
    DotProduct(f"{_PREFIX}u8s8_512", "llvm.x86.avx512.vpdpbusd.512", "avx512vnni", "uint8", "int8", 16),
    DotProduct(f"{_PREFIX}u8s8_256", "llvm.x86.avx512.vpdpbusd.256", "avxvnni", "uint8", "int8", 8),
]
_PAIRS = [
    DotProduct(f"{_PREFIX}s16s16_512_vnni", "llvm.x86.avx512.vpdpwssd.512", "avx512vnni", "int16", "int16", 16),
    DotProduct(f"{_PREFIX}s16s16_512", "llvm.x86.avx512.pmaddw.d.512", "avx512bw", "int16", "int16", 16, adds=False),
    DotProduct(f"{_PREFIX}s16s16_256_vnni", "llvm.x86.avx512.vpdpwssd.256", "avxvnni", "int16", "int16", 8),
    DotProduct(f"{_PREFIX}s16s16_256", "llvm.x86.avx2.pmadd.wd", "avx2", "int16", "int16", 8, adds=False),
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
    return f"{_PREFIX}pairs_{lanes}"


_SUM = "int32"
_BITS, _LOWER_BITS = 16, 0xFFFF


def _function(dot: DotProduct, *, as_loops: bool) -> Any:
    """The computation in loops, as a schedule has it, or by the instruction that takes the place of the loops.

    TVM's parser evaluates the conditions: the function contains one of the three forms.
    """
    lanes, group, llvm = dot.lanes, dot.group, dot.llvm
    few, many, vector = f"{dot.data}x{group}", f"{dot.weight}x{lanes * group}", f"{_SUM}x{lanes}"

    @T.prim_func(s_tir=True)
    def function(
        row: T.Buffer((group,), dot.data, offset_factor=1),  # type: ignore[valid-type]
        weights: T.Buffer((lanes, group), dot.weight, offset_factor=1),  # type: ignore[valid-type]
        sums: T.Buffer((lanes,), _SUM, offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(sums[0:lanes], row[0:group], weights[0:lanes, 0:group])
            T.writes(sums[0:lanes])
            if as_loops:
                for lane in T.serial(0, lanes):
                    for k in T.serial(0, group):
                        with T.sblock("update"):
                            vi, vk = T.axis.remap("SR", [lane, k])
                            sums[vi] = sums[vi] + T.cast(row[vk], _SUM) * T.cast(weights[vi, vk], _SUM)
            elif dot.adds:
                sums[T.ramp(T.int32(0), 1, lanes)] = T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(llvm),
                    sums.vload([0], vector),
                    T.reinterpret(T.broadcast(T.reinterpret(row.vload([0], few), dtype=_SUM), lanes), dtype=many),
                    weights.vload([0, 0], many),
                    dtype=vector,
                )
            else:
                sums[T.ramp(T.int32(0), 1, lanes)] += T.call_llvm_pure_intrin(
                    T.llvm_lookup_intrinsic_id(llvm),
                    T.reinterpret(T.broadcast(T.reinterpret(row.vload([0], few), dtype=_SUM), lanes), dtype=many),
                    weights.vload([0, 0], many),
                    dtype=vector,
                )

    return function


def _pairs_description(lanes: int) -> Any:
    @T.prim_func(s_tir=True)
    def described(
        numbers: T.Buffer((2, lanes), "float32", offset_factor=1),  # type: ignore[valid-type]
        pairs: T.Buffer((lanes, 2), "int16", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(numbers[0:2, 0:lanes])
            T.writes(pairs[0:lanes, 0:2])
            for lane in T.serial(0, lanes):
                for k in T.serial(0, 2):
                    with T.sblock("update"):
                        vi, vk = T.axis.remap("SS", [lane, k])
                        pairs[vi, vk] = T.cast(T.cast(numbers[vk, vi], _SUM), "int16")

    return described


def _pairs(lanes: int) -> Any:
    """The lower 16 bits of the one vector, and the other 16 bits higher."""
    floats, wide, narrow = f"float32x{lanes}", f"{_SUM}x{lanes}", f"int16x{2 * lanes}"

    @T.prim_func(s_tir=True)
    def paired(
        numbers: T.Buffer((2, lanes), "float32", offset_factor=1),  # type: ignore[valid-type]
        pairs: T.Buffer((lanes, 2), "int16", offset_factor=1),  # type: ignore[valid-type]
    ) -> None:
        with T.sblock("root"):
            T.reads(numbers[0:2, 0:lanes])
            T.writes(pairs[0:lanes, 0:2])
            pairs.vstore(
                [0, 0],
                T.reinterpret(
                    T.bitwise_or(
                        T.bitwise_and(
                            T.cast(numbers.vload([0, 0], floats), wide), T.broadcast(T.int32(_LOWER_BITS), lanes)
                        ),
                        T.shift_left(T.cast(numbers.vload([1, 0], floats), wide), T.broadcast(T.int32(_BITS), lanes)),
                    ),
                    dtype=narrow,
                ),
            )

    return paired


def register_named(trace: str) -> None:
    """Register the intrinsics if a trace, as text, names one of them."""
    if _PREFIX in trace:
        register_dot_intrinsics()


@cache
def register_dot_intrinsics() -> None:
    """TVM's parser takes a quarter of the time in which a child starts, and operators without integers need none."""
    with stacks_without_source():
        for lanes in (8, 16):
            TensorIntrin.register(pairing(lanes), _pairs_description(lanes), _pairs(lanes), override=True)
        for dot in chain(*DOT_PRODUCTS.values()):
            loops, instruction = _function(dot, as_loops=True), _function(dot, as_loops=False)
            TensorIntrin.register(dot.name, loops, instruction, override=True)


@contextlib.contextmanager
def stacks_without_source() -> Iterator[None]:
    """For each of 360 functions, TVM's parser requests the whole stack and takes the variables. The source of every
    frame, which it does not need here, is three quarters of the time.
    """
    whole = inspect.stack
    inspect.stack = _frames
    try:
        yield
    finally:
        inspect.stack = whole


def _frames(context: int = 1) -> list[inspect.FrameInfo]:
    """As `inspect.stack`, without any lines of source, however many `context` asks for."""
    del context
    found = []
    frame = inspect.currentframe()
    while frame is not None and (frame := frame.f_back) is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
    return found
