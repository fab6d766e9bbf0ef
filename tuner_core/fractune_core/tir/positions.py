"""Names by position for the blocks and buffers of a TIR function.

TVM names blocks and buffers after the computation and its variables: `lv13_sum`. Equal operators of two models have
differently named blocks, and a trace, which looks blocks up by name, would fit only one model. Names by position follow
from the structure. Steps of a schedule name new blocks after blocks and buffers, so both get them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.tir.kernel_names import KERNELS

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
        tuple(zip(blocks, named, strict=True)),
        tuple((name, f"buffer_at_{at}") for at, name in enumerate(buffers)),
    )
