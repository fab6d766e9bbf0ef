"""How many candidates one piece of build work has. It is the piece that one measurer then times."""

from __future__ import annotations

import json

from fractune_core.targets import is_cuda

CPU_BATCH = 8
"""Several builders share a round, and the anchor is timed once for each piece."""
CUDA_BATCH = 2
"""A build by nvcc takes about a second, far longer than an anchor (H200): a first round of 8 waited for one builder."""


def build_batch(target_key: str) -> int:
    """The most candidates in a piece of build work for this target. It depends on nothing else: a search that is
    repeated must yield the same pieces.
    """
    return CUDA_BATCH if is_cuda(json.loads(target_key)) else CPU_BATCH
