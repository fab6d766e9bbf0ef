"""Latency of a model under CPU limits, predicted from its times at whole cores: nothing runs under a limit."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fractune.text.rendering import Column, Table
from fractune.text.text import time_text
from fractune_core.analysis.cpu_limits.limits import CpuLimit, Service, service_of_time
from fractune_core.analysis.cpu_limits.prediction import by_latency, by_rate, paced_rate_per_s, predictable
from fractune_core.cpu_limits import LimitSize
from fractune_core.errors import BadRequest
from fractune_core.served import LOAD_TEXT
from fractune_core.shares import Share

_LIMIT = "cpu-limit"


@dataclass(frozen=True)
class LimitLatency:
    """A model under a limit, with the number of threads that is best for latency there."""

    share: str
    threads: int
    rate_per_s: float
    """of Poisson arrivals: 30 % of what the model can answer under the limit"""
    p50_s: float
    p99_s: float
    loop_per_s: float
    """inferences a second in a loop, with the number of threads that is best for that"""


def split_limits(shares: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """The shares at which a model is timed, and the CPU limits. Raises BadRequest for a limit that no named number of
    cores allows to predict.
    """
    named = shares.split(",") if isinstance(shares, str) else shares
    parsed = list(map(Share.parse, named))
    limits = [share for share in parsed if share.mechanism == _LIMIT]
    stand_ins = [Service(share.cores, (1.0,), 1.0) for share in parsed if share.mechanism == "cpu"]
    for limit in limits:
        if not _fitting(stand_ins, LimitSize.parse(limit.size)):
            raise BadRequest(f"share '{limit}' is predicted from times at whole cores: name cpu:1 and cpu:2 too")
    return [str(share) for share in parsed if share.mechanism != _LIMIT], list(map(str, limits))


def limit_latencies(run_secs: Mapping[int, Sequence[float]], limits: Sequence[str]) -> tuple[LimitLatency, ...]:
    """By limit, the smallest first; `run_secs` are seconds of single inferences by cores."""
    services = [service_of_time(cores, statistics.median(secs)) for cores, secs in run_secs.items()]
    sizes = {text: LimitSize.parse(Share.parse(text).size) for text in limits}
    return tuple(
        _latency(text, size, _fitting(services, size))
        for text, size in sorted(sizes.items(), key=lambda each: each[1].limit_m)
    )


def limits_table(name: str, found: Sequence[LimitLatency]) -> Table:
    """A row for each limit."""
    return Table(
        title=f"{name}: under CPU limits, predicted at {LOAD_TEXT}",
        columns=(
            *(Column("limit"), Column("threads", numbers=True), Column("requests/s", numbers=True)),
            *(Column(f"predicted {which}", numbers=True) for which in ("p50", "p99")),
            Column("in a loop", numbers=True),
        ),
        cells=tuple(
            (
                *(each.share, str(each.threads), f"{each.rate_per_s:.3g}"),
                *(time_text(each.p50_s), time_text(each.p99_s), f"{each.loop_per_s:.3g}/s"),
            )
            for each in found
        ),
        rows=tuple(map(limit_json, found)),
        notes=(
            "nothing ran under a limit: latencies are simulated from the times at whole cores (docs/cpu-limits.md)",
        ),
    )


def limit_json(found: LimitLatency) -> dict[str, Any]:
    """Times in seconds."""
    return asdict(found)


def _fitting(services: Sequence[Service], size: LimitSize) -> list[Service]:
    """Those for which predictions hold under the limit."""
    limit = _limit(size)
    return [each for each in services if predictable(each, limit) and each.threads <= (size.span or each.threads)]


def _latency(share: str, size: LimitSize, services: Sequence[Service]) -> LimitLatency:
    limit = _limit(size)
    best = by_latency(services, limit)[0]
    loop_per_s = by_rate(services, limit)[0][1]
    return LimitLatency(share, best.threads, paced_rate_per_s(services, limit), best.p50_s, best.p99_s, loop_per_s)


def _limit(size: LimitSize) -> CpuLimit:
    return CpuLimit(size.limit_m, size.period_us)
