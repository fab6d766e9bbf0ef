"""Latencies that were measured under real CPU limits, and the error of predicting them."""

import json
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fractune_core.analysis.limit_prediction import Served, serve
from fractune_core.cpu_limits import CpuLimit, Service, capacity_per_s
from fractune_core.served import poisson
from tests.support.paths import REPOSITORY

MEASURED = REPOSITORY / "tests" / "assets" / "cpu_limits" / "measured.json"
_RUNS = 12
"""of a simulation: the phase of the periods is unknown"""
_MOST_CROWDED = 0.3
"""cores that other programs used meanwhile and the model's threads had use for"""
_MOST_LOAD = 0.95
"""beyond it latencies grow with the number of requests"""


@dataclass(frozen=True)
class Cell:
    """A service under a limit: the measured results, in seconds, and the predicted ones of the same requests."""

    threads: int
    replicas: int
    limit: CpuLimit
    rate_per_s: float | None
    measured: dict[str, Any]
    runs: list[Served]

    def errors(self) -> tuple[float, float]:
        """Of the predicted p50 and p99, as fractions."""
        latencies = sorted(each for run in self.runs for each in run.latencies_s)
        quantiles = statistics.quantiles(latencies, n=100, method="inclusive")
        return (
            1e3 * quantiles[49] / self.measured["p50_ms"] - 1,
            1e3 * quantiles[98] / self.measured["p99_ms"] - 1,
        )

    def throughput_error(self) -> float:
        predicted = statistics.fmean(len(run.latencies_s) / run.elapsed_s for run in self.runs)
        return predicted / float(self.measured["per_s"]) - 1


def cells(runs: Iterable[dict[str, Any]], threads: int, replicas: int, slower: float = 0.0) -> list[Cell]:
    """Of services with that many threads and replicas: all that were neither disturbed nor overloaded. They are
    predicted for inferences that take longer by `slower`, a fraction.
    """
    found = []
    for run in runs:
        if (run["threads"], run["replicas"]) == (threads, replicas):
            found += [
                cell
                for each in run["cells"]
                if (cell := _cell(service_of(run).slower(slower), replicas, run["cores"], each)) is not None
            ]
    return found


def measured_runs(path: Path = MEASURED) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["runs"]
    return runs


def service_of(run: dict[str, Any]) -> Service:
    """Without a limit: the medians, which other programs change least."""
    return Service(
        threads=run["threads"],
        wall_s=(run["free"]["p50_ms"] / 1e3,),
        cpu_s=run["free"]["cpu_ms"] / 1e3,
        paced_wall_s=(run["paced"]["p50_ms"] / 1e3,),
        spin_s=run["spin_ms"] / 1e3,
    )


def median_errors(found: Iterable[Cell]) -> tuple[float, float]:
    """Of p50 and p99, without their signs."""
    p50s, p99s = zip(*(cell.errors() for cell in found), strict=True)
    return statistics.median(map(abs, p50s)), statistics.median(map(abs, p99s))


def _cell(service: Service, replicas: int, cores: int, measured: dict[str, Any]) -> Cell | None:
    limit = CpuLimit(measured["quota_m"], measured["period_us"], measured["burst_us"])
    rate_per_s, requests = measured["rate_per_s"], measured["requests"]
    if service.threads * replicas + measured["other_cores"] - cores >= _MOST_CROWDED:
        return None
    if rate_per_s is not None and rate_per_s > _MOST_LOAD * capacity_per_s(service, limit, replicas):
        return None
    arrivals = None if rate_per_s is None else poisson(rate_per_s, requests, random.Random(1))
    runs = [serve(service, limit, replicas, requests, arrivals, seed) for seed in range(_RUNS)]
    return Cell(service.threads, replicas, limit, rate_per_s, measured, runs)
