"""The line of ratios of `benchmarks.under_limit`."""

from __future__ import annotations

from benchmarks import under_limit
from benchmarks.under_limit import CHOSEN, DEFAULTS, POOL, ROUNDED, SETTINGS, THROUGHPUT, WAYS


def test_ratios_are_against_whole_cores_and_the_best_settings() -> None:
    p99_s = {CHOSEN: 0.02, ROUNDED: 0.04, DEFAULTS: 0.1, SETTINGS[0]: 0.025, SETTINGS[-1]: 0.025}
    rates = {THROUGHPUT: [10.0], POOL: [14.0, 16.0, 15.0], ROUNDED: [10.0]}
    ways = {
        way: {"p50_s": 0.01, "p99_s": p99_s.get(way, 1.0), "loop_per_s": rates.get(way, [1.0]), "chosen": ""}
        for way in WAYS
    }
    assert under_limit._line({"model": "m", "limit_m": 1500, "ways": ways}) == (
        "m at 1500m: rate 1.50x, p50 1.00x and p99 0.50x of whole cores; p99 0.20x of ONNX Runtime's defaults, "
        "0.80x of its best settings"
    )
