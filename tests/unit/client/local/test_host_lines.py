"""What people read of CPUs and limits."""

from __future__ import annotations

from typing import Any

import pytest

from fractune.local.doctor import cpu_lines, limit_text, making_text
from fractune_workers.inventory.cpu_pairs import PairBurn
from fractune_workers.inventory.cpus import CpusHere, LimitsHere


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (CpusHere(((0,),), ((0,),)), ["the kernel shows 1 CPU of 1 physical core in 1 NUMA node"]),
        (
            CpusHere(((0, 1), (2, 3)), ((0, 1), (2, 3))),
            ["the kernel shows 4 CPUs of 2 physical cores in 2 NUMA nodes; of one core: 0 and 1, 2 and 3"],
        ),
        (
            CpusHere(((0,), (1,)), ((0, 1),), (PairBurn((0, 1), 1.618),), 1),
            [
                "the kernel shows 2 CPUs of 2 physical cores in 1 NUMA node",
                "busy in pairs: 1 physical core; together two CPUs take at most 1.62 times as long as alone (0 and 1)",
            ],
        ),
        (
            CpusHere(((0,), (1,)), ((0, 1),), (PairBurn((0, 1), None),)),
            [
                "the kernel shows 2 CPUs of 2 physical cores in 1 NUMA node",
                "busy in pairs: other programs disturbed 0 and 1; end them, or try again on an idle machine",
            ],
        ),
    ],
)
def test_cpus(found: CpusHere, lines: list[str]) -> None:
    assert list(cpu_lines(found.to_json())) == lines


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "none"),
        ({"cgroup": "/c", "quota_m": 500, "period_us": 100_000}, "500m in 100 ms, by /c (throttling is not counted)"),
        (
            {"cgroup": "/c", "quota_m": 50, "period_us": 10_000, "throttled_periods": 12, "throttled_s": 3.42},
            "50m in 10 ms, by /c (throttled in 12 periods, 3.4 s of all CPUs)",
        ),
    ],
)
def test_the_limit_that_holds(found: dict[str, Any], text: str) -> None:
    assert limit_text(LimitsHere(**found).to_json()) == text


def test_the_way_to_make_a_limit() -> None:
    ways = [making_text(LimitsHere(made_by=way).to_json()) for way in ("cgroup", "systemd-run", "")]
    assert ways == ["by a child cgroup", "by a scope of systemd", ""]
    under = LimitsHere("/sys/fs/cgroup/pod", 500, 100_000, made_by="cgroup")
    assert making_text(under.to_json()) == "by a child cgroup, up to 500m"
