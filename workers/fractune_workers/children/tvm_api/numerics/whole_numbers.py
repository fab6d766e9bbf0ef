"""Arguments of an operator that are whole numbers in float32, as an annotation of its kernel describes them."""

from __future__ import annotations

from typing import Any

import tvm_ffi
from tvm import s_tir

from fractune_core.tir.kernel_names import WHOLE_NUMBERS


def whole_numbers(mod: Any) -> dict[int, list[int]]:
    """By the place of an argument: its smallest and its largest number, and a 1 behind them for weights that are
    computed. The data come before the weights.
    """
    function = mod["main"]
    blocks: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    kernel = next((block for block in blocks if WHOLE_NUMBERS in block.annotations), None)
    if kernel is None:
        return {}
    made = {block.writes[0].source: block for block in blocks if len(block.writes) == 1}
    params = list(function.params)
    numbers = [int(number) for number in kernel.annotations[WHOLE_NUMBERS]]
    found = {}
    for region, bounds in zip(kernel.reads, (numbers[:2], numbers[2:]), strict=True):
        source = region.source
        while source not in params:  # a padded image
            source = made[source].reads[0].source
        found[params.index(source)] = bounds
    return found
