"""Pairs of models, and models in other runtimes, as a log keeps them."""

from typing import Any

from fractune_core.analysis.model_times import MeasuredPair, PairedModel, RuntimeTime
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


def runtime_time(time_id: str = "0123456789abcdef", **changes: Any) -> RuntimeTime:
    """ONNX Runtime takes half of the bundle's time in a loop, and as long as it when paced."""
    values: dict[str, Any] = {
        "time_id": time_id,
        "model": "ab" * 32,
        "inputs": {"ids": [1, 16]},
        "share": "cpu:1",
        "runtime": "onnxruntime",
        "version": "1.31.1",
        "loop_s": 1.5e-3,
        "paced_s": 4e-3,
        "bundle_loop_s": 3e-3,
        "bundle_paced_s": 4e-3,
        "loop_ratio": Estimate(2.0, 1.9, 2.1),
        "paced_ratio": Estimate(1.0, 0.9, 1.1),
        "host": "here",
        "measured_at": 1_700_000_000.0,
    }
    return RuntimeTime(**{**values, **changes})
