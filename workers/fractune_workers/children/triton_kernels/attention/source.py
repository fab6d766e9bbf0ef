"""Writes the module of an attention operator, which calls the kernel."""

from __future__ import annotations

from fractune_workers.children.triton_kernels.attention.decisions import AttentionDecisions, padded
from fractune_workers.children.triton_kernels.attention.recognition import Attention
from fractune_workers.children.triton_kernels.sources import (
    Launch,
    Source,
    function_text,
    kernel_text,
    load_text,
    tuple_text,
)

_HEAD = """\
import triton
import triton.language as tl

from fractune_workers.children.triton_kernels.attention.kernel import attention
"""
_LOWEST = -3.4028234663852886e38
"""of float32, where TVM's softmax begins its search for the largest score"""


def attention_source(found: Attention, decisions: AttentionDecisions, name: str, precision: str) -> Source:
    """The module whose kernel is `name`. `precision` is of products in float32, as Triton calls it."""
    scores, outputs = found.scores, found.outputs
    pointers = [f"p{at}" for at in range(len(scores.function.params))]
    factors = [f"p{each.argument}" for each in (found.query, found.key, found.value)]
    depth, width = scores.extent("depth"), outputs.extent("column")
    constants = {
        "M": scores.extent("row"),
        "N": scores.extent("column"),
        "WIDTH": width,
        "ROWS": decisions.rows,
        "COLUMNS": decisions.columns,
        "DEPTH": padded(depth),
        "WIDE": padded(width),
        "LOWEST": _LOWEST,
        "PRECISION": repr(precision),
    }
    taken = ["sums", "batch", "row", "column", *pointers]
    given = [*factors, tuple_text(pointers), "load_q", "load_k", "load_v", "score", "finish"]
    parts = [
        _HEAD,
        load_text("load_q", scores, 0, None, padded(depth)),
        load_text("load_k", scores, 1, None, padded(depth)),
        load_text("load_v", outputs, 1, None, decisions.columns),
        function_text("score", taken, found.score_lines()),
        function_text("finish", taken, found.finish_lines()),
        kernel_text(name, pointers, "attention", given, constants),
    ]
    programs = -(-scores.extent("row") // decisions.rows) * scores.extent("batch")
    return Source("\n\n".join(parts), (Launch(name, programs, decisions.warps, decisions.stages),), ())
