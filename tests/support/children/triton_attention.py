"""Attention as ingest makes it for a GPU, computed by Triton's interpreter and by NumPy.

Run as a program with TRITON_INTERPRET=1. It writes, by case, the largest error relative to the largest output.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from fractune_workers.children.compiling.implementations import chains_of
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from tests.support.children.triton_operators import NUMPY_TYPES, TARGET, Tensor, repair_bfloat16

Array = Any
_INFINITY = float("inf")


@dataclass(frozen=True)
class Case:
    """Queries, keys and values, and a mask if there is one. Keys and values lie alike."""

    shapes: tuple[tuple[int, ...], ...]
    mask: Callable[[], Array] | None = None
    """booleans for `where`, numbers to add"""
    scale: float = 1.0
    heads_last: bool = False
    """whether the tensors are batch, length, heads, numbers: then they are transposed"""
    in_float32: bool = False
    """whether the softmax is computed in float32, as some exporters write"""
    behind: float = 1.0
    """factor of the output"""


def added_to_some_keys() -> Array:
    mask = np.zeros((2, 1, 1, 33), "float32")
    mask[0, ..., 20:] = -10000.0
    mask[1, ..., :7] = -_INFINITY
    return mask


def no_key_at_all() -> Array:
    """The second query sees no key: the separate operators give no number there."""
    mask = np.ones((11, 70), "bool")
    mask[1] = False
    mask[2, :64] = False
    return mask


def only_lowest() -> Array:
    mask = np.zeros((1, 1, 33, 33), "float32")
    mask[..., 4, :] = np.finfo("float32").min
    return mask


HEADS = ((2, 33, 3, 20), (2, 33, 3, 20), (2, 33, 3, 20))
CASES = {
    "plain": Case(((2, 19, 24), (2, 45, 24), (2, 45, 40)), scale=0.25),
    "heads": Case(HEADS, scale=0.25, heads_last=True),
    "one tile": Case(((3, 16, 32), (3, 16, 32), (3, 16, 32))),
    "keys masked for each batch": Case(HEADS, added_to_some_keys, 0.2, heads_last=True),
    "booleans": Case(HEADS, lambda: np.arange(66).reshape(2, 1, 1, 33) % 5 > 0, 0.2, heads_last=True),
    "causal": Case(HEADS, lambda: np.triu(np.full((1, 1, 33, 33), -_INFINITY, "float32"), 1), heads_last=True),
    "softmax in float32": Case(HEADS, lambda: np.tri(33, dtype="bool")[None, None], heads_last=True, in_float32=True),
    "no key at all": Case(((1, 11, 24), (1, 70, 24), (1, 70, 24)), no_key_at_all),
    "lowest numbers": Case(HEADS, only_lowest, heads_last=True),
    "grouped heads": Case(((2, 3, 4, 17, 16), (2, 3, 1, 21, 16), (2, 3, 1, 21, 16)), scale=0.5, behind=3.0),
}


def emit(case: Case, dtype: str) -> Any:
    """The model, of separate operators."""
    bb = relax.BlockBuilder()
    shapes = [*case.shapes, *([case.mask().shape] if case.mask else [])]
    dtypes = [dtype] * 3 + ([_mask_type(case, dtype)] if case.mask else [])
    inputs = [
        relax.Var(f"x{at}", relax.TensorType(shape, kind))
        for at, (shape, kind) in enumerate(zip(shapes, dtypes, strict=True))
    ]
    with bb.function("main", inputs):
        with bb.dataflow():
            parts = inputs[:3]
            if case.heads_last:
                orders = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
                parts = [bb.emit(relax.op.permute_dims(part, order)) for part, order in zip(parts, orders, strict=True)]
            else:
                rank = len(case.shapes[1])
                order = [*range(rank - 2), rank - 1, rank - 2]
                parts[1] = bb.emit(relax.op.permute_dims(parts[1], order))
            scores = bb.emit(relax.op.matmul(parts[0], parts[1]))
            if case.scale != 1:
                scores = bb.emit(relax.op.multiply(scores, relax.const(case.scale, dtype)))
            if case.mask:
                is_boolean = case.mask().dtype == bool
                lowest = relax.const(-_INFINITY, dtype)
                masked = relax.op.where(inputs[3], scores, lowest) if is_boolean else relax.op.add(scores, inputs[3])
                scores = bb.emit(masked)
            if case.in_float32 and dtype != "float32":
                scores = bb.emit(relax.op.astype(scores, "float32"))
            weights = bb.emit(relax.op.nn.softmax(scores, -1))
            if case.in_float32 and dtype != "float32":
                weights = bb.emit(relax.op.astype(weights, dtype))
            out = bb.emit(relax.op.matmul(weights, parts[2]))
            if case.behind != 1:
                out = bb.emit(relax.op.multiply(out, relax.const(case.behind, dtype)))
            if case.heads_last:
                out = bb.emit(relax.op.permute_dims(out, [0, 2, 1, 3]))
            out = bb.emit_output(out)
        bb.emit_func_output(out)
    return prepare(bb.get(), tvm.target.Target(TARGET))


def _mask_type(case: Case, dtype: str) -> str:
    return "bool" if case.mask is not None and case.mask().dtype == bool else dtype


def computed(case: Case, inputs: Sequence[Array]) -> Array:
    """With NumPy in float32."""
    parts = [np.asarray(each, "float32") for each in inputs[:3]]
    if case.heads_last:
        parts = [each.transpose(0, 2, 1, 3) for each in parts]
    scores = parts[0] @ parts[1].swapaxes(-1, -2) * np.float32(case.scale)
    if case.mask:
        mask = case.mask()
        scores = np.where(mask, scores, -_INFINITY) if mask.dtype == bool else scores + np.asarray(inputs[3], "float32")
    with np.errstate(invalid="ignore"):
        weights = np.exp(scores - np.maximum(scores.max(-1, keepdims=True), np.finfo("float32").min))
        out = weights / weights.sum(-1, keepdims=True) @ parts[2] * np.float32(case.behind)
    return out.transpose(0, 2, 1, 3) if case.heads_last else out


def function_of(case: Case, dtype: str) -> tuple[Any, list[int]]:
    """The one TIR function of the case, and which input is its argument, by place."""
    mod = emit(case, dtype)
    (chain,) = chains_of(mod)
    calls = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    given = [calls[at].args[1].fields[place] for at, place in chain.operands]
    names = [each.name for each in mod["main"].params]
    if len(chain.calls) != len(calls):
        raise AssertionError(f"{len(calls) - len(chain.calls)} calls are not in the chain")
    return chain.function, [names.index(each.name) if isinstance(each, relax.Var) else -1 for each in given]


def error_of(name: str, dtype: str, decisions: list[int]) -> float:
    from fractune_workers.children.triton_kernels.attention.kernel_operators import AttentionDecisions, attention_source
    from fractune_workers.children.triton_kernels.attention.recognition import attention_of
    from fractune_workers.children.triton_kernels.compiler import load_module

    case = CASES[name]
    function, places = function_of(case, dtype)
    draw = np.random.default_rng(0)
    inputs = [draw.standard_normal(shape).astype(NUMPY_TYPES[dtype]) for shape in case.shapes]
    if case.mask:
        inputs.append(np.maximum(case.mask(), np.finfo("float16").min) if _clipped(case, dtype) else case.mask())
        inputs[-1] = np.ascontiguousarray(inputs[-1]).astype(NUMPY_TYPES.get(_mask_type(case, dtype), bool))
    lowest = np.array(-_INFINITY, NUMPY_TYPES[dtype])
    out_type = function.params[-1].ty
    out = np.full([int(dim) for dim in out_type.shape], 77, NUMPY_TYPES[str(out_type.dtype)])
    source = attention_source(attention_of(function), AttentionDecisions(*decisions), "kernel", "ieee")
    arrays = [*(inputs[place] if place >= 0 else lowest for place in places), out]
    (launch,) = source.launches
    with tempfile.TemporaryDirectory() as folder:
        module = load_module(source.text, Path(folder))
        getattr(module, launch.kernel)[(launch.programs,)](*map(Tensor, arrays))
    expected = computed(case, inputs)
    found = out.astype(np.float64)
    if expected.shape != out.shape or not np.array_equal(np.isnan(expected), np.isnan(found)):
        return _INFINITY
    return float(np.nanmax(np.abs(found - expected)) / np.nanmax(np.abs(expected)))


def _clipped(case: Case, dtype: str) -> bool:
    """The lowest number of float32 would be infinity in float16."""
    return dtype == "float16" and case.mask is only_lowest


if __name__ == "__main__":
    stay_off_gpus()
    repair_bfloat16()
    sys.stdout.write(json.dumps([error_of(*each) for each in json.loads(sys.argv[1])]))
