"""What a CUDA target asks of Triton's kernels, and what it gives them."""

from __future__ import annotations

from typing import Any

from fractune_core.targets import TF32, capability
from fractune_workers.children.triton_kernels.boxes import has_boxes
from fractune_workers.children.triton_kernels.decisions import Problem
from fractune_workers.children.triton_kernels.sums import Sums
from fractune_workers.children.tvm_api.cuda_target import shared_bytes_at_launch

_ARCHS = (80, 86, 89, 90, 100, 103, 120)
_WITH_TMA = 90


def is_known(target: Any) -> bool:
    """Whether Triton compiles for the target. From 9.0 on, its code is for one capability (`sm_90a`)."""
    return target.kind.name == "cuda" and capability(str(target.attrs["arch"])) in _ARCHS


def precision_of(target: Any) -> str:
    """Of products in float32: Triton's `dot` would take TensorFloat-32 by itself."""
    return TF32 if TF32 in target.keys else "ieee"


def has_tensor_cores(dtype: str, target: Any) -> bool:
    """Whether products of the type are computed there."""
    return dtype != "float32" or precision_of(target) == TF32


def problem_of(sums: Sums, target: Any) -> Problem:
    return Problem(
        batch=sums.extent("batch"),
        row=sums.extent("row"),
        column=sums.extent("column"),
        depth=sums.extent("depth"),
        dtype=sums.dtype,
        tensor_cores=has_tensor_cores(sums.dtype, target),
        shared_bytes=shared_bytes_of(target),
        tma=(capability(str(target.attrs["arch"])) or 0) >= _WITH_TMA and has_boxes(sums),
    )


def shared_bytes_of(target: Any) -> int:
    """Shared memory that a block may request."""
    return shared_bytes_at_launch(str(target.attrs["arch"]), int(target.attrs["max_shared_memory_per_block"]))
