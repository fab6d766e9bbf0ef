"""A running server seen from outside: its metrics, and the use of the machine by it and its Redis."""

import re
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import redis
from prometheus_client.parser import text_string_to_metric_families

from tests.support.processes.server_process import ServerProcess

METRICS = "127.0.0.1:0"
"""what the server is to be started with, as its option `metrics`"""
_PLACE = re.compile(r"metrics at (http://\S+/metrics)")


@dataclass(frozen=True)
class Figures:
    """At one moment, since the server's start."""

    at: float
    """monotonic seconds"""
    records: float
    lag: Mapping[float, float]
    """results by their lag: how many took at most so many seconds"""
    turns: Mapping[float, float]
    """turns of the engine, likewise"""
    requeued: float
    cpu_s: Mapping[str, float]
    """processor seconds of `server`, `redis` and of this process, `simulation`"""
    memory_bytes: Mapping[str, int]
    """resident set of the same"""
    keys: int
    """in Redis"""


class Watch:
    """Reads the figures of one server."""

    def __init__(self, server: ServerProcess, connection: redis.Redis) -> None:
        found = _PLACE.search(server.said())
        if found is None:
            raise SystemExit("benchmarks: the server says nothing of its metrics")
        self._place = found[1]
        self._redis = connection
        info = connection.info("server")
        pids = {"server": server.process.pid, "redis": info["process_id"], "simulation": psutil.Process().pid}
        self._processes = {name: psutil.Process(pid) for name, pid in pids.items()}

    def read(self) -> Figures:
        with urllib.request.urlopen(self._place, timeout=60) as answer:  # noqa: S310  our own server's
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [sample for family in families for sample in family.samples]
        return Figures(
            time.monotonic(),
            sum(sample.value for sample in samples if sample.name == "fractune_records_total"),
            _buckets(samples, "fractune_recorder_lag_seconds"),
            _buckets(samples, "fractune_engine_turn_seconds"),
            sum(sample.value for sample in samples if sample.name == "fractune_work_requeued_total"),
            {name: sum(process.cpu_times()[:2]) for name, process in self._processes.items()},
            {name: process.memory_info().rss for name, process in self._processes.items()},
            self._redis.dbsize(),
        )


def quantile(before: Mapping[float, float], after: Mapping[float, float], part: float) -> float:
    """Of what was counted between the two: at most so much, between the bounds of its bucket on a straight line; NaN
    when nothing was counted.
    """
    counted = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counted.values(), default=0.0)
    below, under = 0.0, 0.0
    for bound, upto in counted.items():
        if total and upto >= part * total:
            return below if bound == float("inf") else below + (bound - below) * (part * total - under) / (upto - under)
        below, under = bound, upto
    return float("nan")


def _buckets(samples: list[Any], name: str) -> dict[float, float]:
    return {float(sample.labels["le"]): sample.value for sample in samples if sample.name == f"{name}_bucket"}
