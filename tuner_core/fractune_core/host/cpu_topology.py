"""The CPUs that are threads of one physical core, and the CPUs of each NUMA node, as the kernel shows them in `/sys`.

A hypervisor may hide both: then each CPU looks like a core of its own, and all are in one node.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from fractune_core.host.cgroups import ROOT

Each = TypeVar("Each")


@dataclass(frozen=True)
class CpuTopology:
    """CPUs that are not named here are a core each, and in one node."""

    siblings: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """by CPU all CPUs of its core"""
    node: Mapping[int, int] = field(default_factory=dict)
    """by CPU the number of its NUMA node"""

    @classmethod
    def read(cls, root: Path = ROOT) -> CpuTopology:
        """Of this machine, from `/sys` below `root`."""
        devices = root / "sys/devices/system"
        siblings = _cpus_by_folder(devices / "cpu", "cpu", "topology/thread_siblings_list")
        # A made-up `/sys` of a container may list others only. A measurement must own its CPU in any case.
        siblings = {cpu: core for cpu, core in siblings.items() if cpu in core}
        nodes = _cpus_by_folder(devices / "node", "node", "cpulist")
        return cls(siblings, {cpu: number for number, cpus in nodes.items() for cpu in cpus})

    def core_of(self, cpu: int) -> tuple[int, ...]:
        """All CPUs of the core."""
        return self.siblings.get(cpu, (cpu,))

    def cores(self, cpus: Iterable[int]) -> list[list[int]]:
        """These CPUs by core."""
        return _grouped(cpus, self.core_of)

    def nodes(self, cpus: Iterable[int]) -> list[list[int]]:
        """These CPUs by NUMA node."""
        return _grouped(cpus, lambda cpu: self.node.get(cpu, 0))

    def with_siblings(self, cpus: Iterable[int]) -> set[int]:
        """These CPUs, and those that share a core with them."""
        return {sibling for cpu in cpus for sibling in self.core_of(cpu)}

    def choose(self, free: Sequence[int], count: int) -> list[int]:
        """`count` of the free CPUs, or all if there are fewer.

        They are of different cores if there are enough, best of cores that are free as a whole. They are in one node if
        a node has enough such cores.
        """
        cores = self.cores(free)
        whole = [core for core in cores if set(self.core_of(core[0])) <= set(core)]
        choices = [near for among in (whole, cores) for near in (*self._by_node(among), among) if len(near) >= count]
        dealt = itertools.zip_longest(*(choices[0] if choices else cores))
        chosen = set(itertools.islice((cpu for cpus in dealt for cpu in cpus if cpu is not None), count))
        return [cpu for cpu in free if cpu in chosen]

    def _by_node(self, cores: Iterable[list[int]]) -> list[list[list[int]]]:
        return _grouped(cores, lambda core: self.node.get(core[0], 0))


EACH_A_CORE = CpuTopology()


def cpu_list(text: str) -> Iterator[int]:
    """CPUs in the kernel's notation: `0-3,8`. Raises ValueError."""
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _grouped(each: Iterable[Each], key: Callable[[Each], Hashable]) -> list[list[Each]]:
    groups: dict[Hashable, list[Each]] = {}
    for one in each:
        groups.setdefault(key(one), []).append(one)
    return list(groups.values())


def _cpus_by_folder(parent: Path, name: str, file: str) -> dict[int, tuple[int, ...]]:
    """The CPUs that `file` lists in each folder with this name and a number."""
    found = {}
    for folder in parent.glob(f"{name}[0-9]*"):
        try:
            found[int(folder.name.removeprefix(name))] = tuple(cpu_list((folder / file).read_text()))
        except (OSError, ValueError):
            continue
    return found
