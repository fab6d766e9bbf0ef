"""Numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from fractune_core.analysis.slowdown_ci import Estimate
from fractune_core.errors import one_line

_NOTICED_S = 0.05


def time_text(secs: float | None) -> str:
    """`8.10 ns`, `12.3 us`, `4.56 ms`, `1.20 s`; `-` if not known."""
    if secs is None or not math.isfinite(secs) or secs <= 0:
        return "-"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "us"), (1.0, 1e3, "ms")):
        if secs < limit:
            return f"{_three_digits(secs * factor)} {unit}"
    return f"{_three_digits(secs)} s"


def common_unit(longest_s: float) -> tuple[str, float]:
    """The unit for times up to `longest_s` that stand together, and the factor from seconds to it."""
    return ("us", 1e6) if longest_s < 1e-3 else ("ms", 1e3) if longest_s < 1 else ("s", 1.0)


def _three_digits(value: float) -> str:
    """`1.20`, `10.0`, `270`: three digits."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def gflops_text(gflops: float | None) -> str:
    """`80.1`, `1.20`; `-` if not known."""
    return "-" if gflops is None else _three_digits(gflops)


def span_text(secs: float) -> str:
    """A duration: `42 s`, `3 min 05 s`."""
    whole = max(round(secs), 0)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60:02d} s"


def moment_text(secs: float) -> str:
    """A time of day in seconds since 1970: `2026-01-31 13:05 UTC`."""
    return datetime.fromtimestamp(secs, UTC).strftime("%Y-%m-%d %H:%M UTC")


def spent_text(spent_s: Mapping[str, float]) -> str:
    """Seconds by name, without negligible ones: `starting 3.2 s, ingesting 9.1 s`."""
    return ", ".join(f"{name} {secs:.1f} s" for name, secs in spent_s.items() if secs >= _NOTICED_S)


def ratio_text(slower: float | None, faster: float | None) -> str:
    """`1.54x`; `-` if a time is not known."""
    if not slower or not faster or not math.isfinite(slower / faster):
        return "-"
    return factor_text(slower / faster)


def factor_text(factor: float) -> str:
    """`1.54x`, `99.05x`, `238x`"""
    return f"{factor:.2f}x" if factor < 99.995 else f"{factor:.0f}x"


def percent_text(fraction: float | None) -> str:
    """`1.2 %`; `-` if not known."""
    return "-" if fraction is None else f"{fraction * 100:.1f} %"


def score_text(score: float | None) -> str:
    """`0.98`; `-` if not known."""
    return "-" if score is None else f"{score:.2f}"


def counts_text(counts: dict[str, int]) -> str:
    """`bad_output 1, run_timeout 2`; `none`. The names come from workers and models."""
    return ", ".join(f"{one_line(name)} {count}" for name, count in sorted(counts.items())) or "none"


def estimate_text(each: Estimate | None) -> str:
    """`1.21 (1.18 .. 1.25)`; `-` for one that is not known."""
    return "-" if each is None else f"{each.median:.2f} ({each.low:.2f} .. {each.high:.2f})"
