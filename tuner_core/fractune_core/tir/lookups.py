"""Names in a trace's lookups of blocks: names by position.

A trace of stock TVM has the names of the workload beside it.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

CONV, DEPTHWISE, MATMUL = "conv2d_blocked", "depthwise_blocked", "matmul_blocked"
"""the main computation of each kernel over blocked layouts"""

PADDED, IMAGE_COLUMNS, IMAGE = "pad_temp", "winograd_image_columns", "winograd_image"
GEMM = "winograd_gemm"
OUTPUT_COLUMNS, OUTPUT = "winograd_output_columns", "winograd_output"
"""the computations of Winograd's convolution, in their order"""

ROWS, COLUMNS, INTEGER_SUMS, SUMS = "integer_rows", "integer_columns", "integer_sums", "sums"
"""The computations of a product of whole numbers, in their order. Constant weights have no columns to compute."""

KERNELS = (
    frozenset({CONV}),
    frozenset({DEPTHWISE}),
    frozenset({MATMUL}),
    frozenset({PADDED, IMAGE_COLUMNS, IMAGE, GEMM, OUTPUT_COLUMNS, OUTPUT}),
    frozenset({ROWS, INTEGER_SUMS, SUMS}),
    frozenset({ROWS, COLUMNS, INTEGER_SUMS, SUMS}),
)
"""the names that one kernel has; each is only a kernel's where all of them are"""

WHOLE_NUMBERS = "fractune.whole_numbers"
"""The annotation of a float32 kernel whose two operands are whole numbers: the smallest and the largest of its data,
then of its weights. Where the weights are computed, a 1 follows."""

# Names by position for the blocks and buffers of a TIR function.
#
# TVM names blocks and buffers after the computation and its variables: `lv13_sum`. Equal operators of two models have
# differently named blocks, and a trace, which looks blocks up by name, would fit only one model. Names by position
# follow from the structure. Steps of a schedule name new blocks after blocks and buffers, so both get them.

ROOT = "root"
"""the outermost block: MetaSchedule looks it up by this name"""


@dataclass(frozen=True)
class Names:
    """Of one function's parts, in the order of their positions: `(the name that TVM gave, the name by position)`."""

    blocks: tuple[tuple[str, str], ...]
    """the root first, a block before those inside it"""
    buffers: tuple[tuple[str, str], ...]
    """arguments first"""


def names_by_position(blocks: Sequence[str], buffers: Sequence[str]) -> Names:
    """The names of a function's blocks and buffers, given TVM's names in the order of their positions.

    The root and the blocks of a kernel keep their names.
    """
    kept = {name for kernel in KERNELS if kernel.issubset(blocks) for name in kernel}
    seen: set[str] = set()
    named = []
    for at, name in enumerate(blocks):
        keeps = name in kept and name not in seen
        named.append(ROOT if at == 0 else name if keeps else f"block_at_{at}")
        seen.add(name)
    return Names(
        tuple(zip(blocks, named, strict=True)), tuple((name, f"buffer_at_{at}") for at, name in enumerate(buffers))
    )


Trace = list[Any]
"""MetaSchedule's JSON: [steps, decisions]; a step is [kind, inputs, attributes, outputs]"""

_LOOKUP = "GetSBlock"
_OF_BLOCK = re.compile(r"_(rf|init|update|o)(?![a-z0-9])")
_OF_BUFFER = re.compile(r"_(reindex|global|shared|local|warp|wmma|m16n8k8)(?![a-z0-9])")
"""what TVM appends to the name of a block, or of a buffer, for a block that a schedule adds"""


@dataclass(frozen=True)
class _Table:
    """New names by old ones."""

    blocks: Mapping[str, str]
    buffers: Mapping[str, str]

    def name(self, old: str) -> str | None:
        """The new name of a block of the function, or of one that a schedule adds; None for an unknown one."""
        if old in self.blocks:
            return self.blocks[old]
        for parts, appended in ((self.blocks, _OF_BLOCK), (self.buffers, _OF_BUFFER)):
            bases = [part for part in parts if old.startswith(part) and appended.match(old, len(part))]
            if bases:
                base = max(bases, key=len)
                return parts[base] + old[len(base) :]
        return None


def by_position(trace: Trace, names: Names) -> Trace:
    """The trace with lookups by position, for a function whose parts have these `names`. Unknown names stay."""
    table = _Table(dict(names.blocks), dict(names.buffers))
    steps, decisions = trace
    return [[_renamed_step(step, table) for step in steps], decisions]


def _renamed_step(step: Any, table: _Table) -> Any:
    kind, inputs, attributes, outputs = step
    if kind != _LOOKUP:
        return step
    name, *function = attributes
    return [kind, inputs, [table.name(name) or name, *function], outputs]
