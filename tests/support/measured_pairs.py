"""Pairs of models as a log keeps them."""

from __future__ import annotations

from typing import Any

from fractune_core.analysis.pairs import MeasuredPair, PairedModel
from fractune_core.analysis.slowdown_ci import Estimate


def measured_pair(
    pair_id: str = "0123456789abcdef", first: str = "a", second: str = "b", **changes: Any
) -> MeasuredPair:
    """`first` takes 1.4 of its time beside `second`, which takes 1.02."""
    slow, same = Estimate(1.4, 1.35, 1.5), Estimate(1.02, 1.0, 1.04)
    values: dict[str, Any] = {
        "pair_id": pair_id,
        "models": (
            PairedModel(first, "cpu:1", "cpu:1", slow, slow),
            PairedModel(second, "cpu:1", "cpu:1", same, same),
        ),
        "arrangement": "cpu:1 + cpu:1, each on its own, of cpu:2",
        "how": "own units",
        "host": "here",
        "rounds": 9,
        "measured_at": 1_700_000_000.0,
        "stp": Estimate(1.69, 1.6, 1.8),
        "verdict": "together",
    }
    return MeasuredPair(**{**values, **changes})
