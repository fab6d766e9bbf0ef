"""What a CPU target's vector unit has: both layouts and first candidates follow from it."""

from __future__ import annotations

from dataclasses import dataclass

import tvm

from fractune_workers.children.tvm_api.target import architecture, needed_features


@dataclass(frozen=True)
class VectorUnit:
    lanes: int
    """float32 in a register: 16 with AVX-512, 8 with AVX, 4 with SSE or NEON"""
    registers: int


def vector_unit(target: tvm.target.Target) -> VectorUnit:
    """Of a CPU target, from the features that LLVM may use for it."""
    features = needed_features(target)
    if "avx512f" in features:
        return VectorUnit(16, 32)
    if "avx" in features:
        return VectorUnit(8, 16)
    return VectorUnit(4, 32 if architecture(target) in ("aarch64", "arm64") else 16)
