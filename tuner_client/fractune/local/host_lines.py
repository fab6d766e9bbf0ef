"""What people read of this machine's CPUs and CPU limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fractune_core.shares import units_text


def cpu_lines(cpus: Mapping[str, Any]) -> Iterator[str]:
    """Of a `fractune_workers.inventory.cpus.CpusHere` as JSON."""
    cores, nodes, pairs = cpus["cores"], cpus["nodes"], cpus["pairs"]
    shared = ", ".join(_cpus(core) for core in cores if len(core) > 1)
    yield (
        f"the kernel shows {units_text(sum(map(len, cores)), 'CPU')} of {units_text(len(cores), 'physical core')} in "
        f"{units_text(len(nodes), 'NUMA node')}{f'; of one core: {shared}' if shared else ''}"
    )
    unknown = [pair["cpus"] for pair in pairs if pair["slowdown"] is None]
    if unknown:
        yield (
            f"busy in pairs: other programs disturbed {', '.join(map(_cpus, unknown))}; end them, or try again on an "
            "idle machine"
        )
    elif pairs:
        slowest = max(pairs, key=lambda pair: float(pair["slowdown"]))
        yield (
            f"busy in pairs: {units_text(cpus['physical_cores'], 'physical core')}; together two CPUs take at most "
            f"{slowest['slowdown']:.2f} times as long as alone ({_cpus(slowest['cpus'])})"
        )


def limit_text(limits: Mapping[str, Any]) -> str:
    """The limit that holds, of a `fractune_workers.inventory.cpus.LimitsHere` as JSON."""
    if not limits["cgroup"]:
        return "none"
    stopped = "throttling is not counted"
    if limits["throttled_periods"] is not None:
        stopped = f"throttled in {limits['throttled_periods']} periods, {limits['throttled_s']:.1f} s of all CPUs"
    return f"{limits['quota_m']}m in {limits['period_us'] / 1000:g} ms, by {limits['cgroup']} ({stopped})"


def making_text(limits: Mapping[str, Any]) -> str:
    """How limits can be made, and the largest below the limit that holds; empty where they cannot."""
    ways = {"cgroup": "by a child cgroup", "systemd-run": "by a scope of systemd"}
    way = ways.get(limits["made_by"], "")
    return f"{way}, up to {limits['quota_m']}m" if way and limits["cgroup"] else way


def _cpus(cpus: Sequence[int]) -> str:
    *most, last = map(str, cpus)
    return f"{', '.join(most)} and {last}" if most else last
