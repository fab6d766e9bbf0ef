"""Cores and nodes as the kernel shows them on made-up machines, and pairs of CPUs that are kept busy."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from fractune_workers.confinement.limit_cgroups import LimitCgroups
from fractune_workers.inventory import cpu_pairs, cpus
from fractune_workers.inventory.cpu_pairs import PairBurn, burn_pairs, likely_pairs, slowdown
from fractune_workers.inventory.cpus import CpusHere, LimitsHere, cpus_here, limits_here
from tests.support.hardware.cgroup_tree import a_host
from tests.support.hardware.cpu_tree import cpus_of
from tests.support.hardware.made_up_cgroups import made_up_cgroups


def here(monkeypatch: pytest.MonkeyPatch, root: Path, *pairs: PairBurn) -> CpusHere:
    """Of a machine with four CPUs; kept busy, its pairs are like these."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    asked: list[tuple[int, int]] = []

    def burned(wanted: Iterable[tuple[int, int]]) -> list[PairBurn]:
        asked.extend(wanted)
        return list(pairs)

    found = cpus_here(prove=bool(pairs), root=root, burned=burned)
    assert asked == ([(0, 1), (0, 2), (1, 3), (2, 3)] if pairs else [])
    return found


def test_cores_and_nodes_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = here(monkeypatch, cpus_of(tmp_path, "0,2", "1,3", nodes=("0,2", "1,3")))
    assert (found.cores, found.nodes) == (((0, 2), (1, 3)), ((0, 2), (1, 3)))
    assert (found.pairs, found.physical_cores) == ((), 2)


@pytest.mark.parametrize(
    ("slowdowns", "physical"),
    [
        ({(0, 1): 1.02, (0, 2): 0.99, (1, 3): 1.1, (2, 3): 1.0}, 4),
        ({(0, 1): 1.62, (0, 2): 1.0, (1, 3): 1.0, (2, 3): 1.71}, 2),
        ({(0, 1): 1.9, (0, 2): 1.9, (1, 3): 1.9, (2, 3): 1.9}, 1),
        ({(0, 1): 1.62, (0, 2): None, (1, 3): 1.0, (2, 3): 1.71}, 0),
    ],
)
def test_pairs_that_slow_each_other_down_are_one_core(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, slowdowns: dict[tuple[int, int], float | None], physical: int
) -> None:
    """The hypervisor hides it: no file has it."""
    pairs = [PairBurn(pair, found) for pair, found in slowdowns.items()]
    assert here(monkeypatch, tmp_path, *pairs).physical_cores == physical


def test_what_the_kernel_shows_is_not_doubted_by_a_burn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pairs = [PairBurn(pair, 1.0) for pair in ((0, 1), (0, 2), (1, 3), (2, 3))]
    assert here(monkeypatch, cpus_of(tmp_path, "0,1", "2,3"), *pairs).physical_cores == 2


@pytest.mark.parametrize(
    ("usable", "host", "pairs"),
    [
        ([0], 2, []),
        ([0, 1], 2, [(0, 1)]),
        ([1, 2], 4, []),
        ([0, 1, 2, 3], 4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
        ([3, 4, 5, 7], 8, [(3, 7), (4, 5)]),
        ([0], 1, []),
    ],
)
def test_pairs_are_neighbours_or_half_of_the_host_apart(
    usable: list[int], host: int, pairs: list[tuple[int, int]]
) -> None:
    assert likely_pairs(usable, host) == pairs


def test_rounds_that_other_programs_disturbed_do_not_count() -> None:
    speeds: Iterator[list[float] | None] = iter(
        [[100.0], [100.0], [50.0, 60.0], None, [100.0], [60.0, 60.0], *([[90.0], [90.0], [60.0, 60.0]] * 2)]
    )
    asked: list[Sequence[int]] = []

    def work(busy: Sequence[int]) -> list[float] | None:
        asked.append(tuple(busy))
        return next(speeds)

    assert slowdown(work, (4, 5)) == pytest.approx(1.5)
    assert asked == [(4,), (5,), (4, 5)] * 4
    assert slowdown(lambda _: None, (0, 1)) is None


def test_busy_processes_find_a_pair_or_say_that_they_were_disturbed() -> None:
    """One CPU taken for two stands in for a pair that shares everything: each process waits for the other one."""
    cpu = min(os.sched_getaffinity(0))
    (found,) = burn_pairs([(cpu, cpu)])
    assert found.slowdown is None


def test_a_process_that_comes_after_its_round_counts_as_disturbed() -> None:
    command = [sys.executable, "-I", "-S", cpu_pairs.__file__, str(min(os.sched_getaffinity(0)))]
    late = f"{time.perf_counter() - 1}\n"
    _, found = subprocess.run(command, input=late, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(found)["cpu_s"] < 0.5 * json.loads(found)["s"]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_cpus_of_this_machine_are_kept_busy() -> None:
    found = cpus_here(prove=True)
    assert all(pair.slowdown is None or 0.5 < pair.slowdown < 3 for pair in found.pairs)
    assert found.physical_cores <= len(os.sched_getaffinity(0))
    assert cpus.CpusHere.from_json(found.to_json()) == found


def test_the_cgroup_that_limits_most_is_named_with_its_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    root = a_host(
        tmp_path,
        cgroup="0::/pod/box",
        pod__cpu_max="150000 100000",
        pod__box__cpu_max="200000 100000",
        **{"pod__cpu.stat": "nr_periods 90\nnr_throttled 12\nthrottled_usec 3500000"},
    )
    found = limits_here(LimitCgroups(root))
    assert found == LimitsHere(
        cgroup=str(root / "sys/fs/cgroup/pod"),
        quota_m=1500,
        period_us=100_000,
        throttled_periods=12,
        throttled_s=3.5,
        refusal="no cgroup for CPUs was found, and there is no systemd-run",
    )


def test_without_a_limit_the_way_to_make_one_is_all(tmp_path: Path) -> None:
    assert limits_here(made_up_cgroups(tmp_path)) == LimitsHere(made_by="cgroup")


def test_a_scope_of_systemd_is_the_second_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "systemd-run").write_text("#!/bin/sh\n")
    (tmp_path / "systemd-run").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert limits_here(LimitCgroups(a_host(tmp_path / "host"))) == LimitsHere(made_by="systemd-run")
