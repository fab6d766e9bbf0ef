"""What a CPU target's vector unit has: both layouts and first candidates follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from fractune_workers.children.tvm_api.target import architecture

_FLOAT_BITS = 32


@dataclass(frozen=True)
class VectorUnit:
    lanes: int
    """float32 in a register: 16 with AVX-512, 8 with AVX2, 4 with NEON"""
    registers: int


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """Of a CPU target, from the features that LLVM may use for it."""
    lanes = int(tvm.get_global_func("target.llvm_get_vector_width")(target)) // _FLOAT_BITS
    many = lanes >= 16 or architecture(target).startswith(("aarch64", "arm64"))
    return VectorUnit(lanes, 32 if many else 16)
