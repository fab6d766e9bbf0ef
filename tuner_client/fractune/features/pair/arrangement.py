"""The placement of two co-runners on a processor: the part of each, and the whole that either would have alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from fractune_core.analysis.model_times import INTERLEAVED, OWN_UNITS, SAME_UNITS
from fractune_core.errors import BadRequest, ShareUnavailable
from fractune_core.host.cpus import CpuTopology
from fractune_core.share_kinds import CPU
from fractune_core.shares import Share

_HALVES = "mps:50,mps:50"


@dataclass(frozen=True)
class Placement:
    """The share and cores of a process."""

    share: Share
    cores: tuple[int, ...] = ()
    """for a CPU share"""


@dataclass(frozen=True)
class Arrangement:
    """The placements of two co-runners on one processor."""

    kind: str
    """OWN_UNITS, SAME_UNITS or INTERLEAVED"""
    placements: tuple[Placement, Placement]
    whole: Placement | None
    """the units of both together; None where the whole cannot exist beside its parts"""

    @property
    def interleaved(self) -> bool:
        """Whether one waits while the other computes."""
        return self.kind == INTERLEAVED

    @property
    def is_verified(self) -> bool:
        """Whether this was ever tried on a device of this kind."""
        return self.placements[0].share.device_kind == CPU

    def __str__(self) -> str:
        if self.kind != OWN_UNITS:
            return f"both at {self.placements[0].share}, {'alternately' if self.interleaved else 'at the same time'}"
        shares = " + ".join(str(placement.share) for placement in self.placements)
        whole = f", of {self.whole.share}" if self.whole else ""
        return f"{shares}, each on its own{whole}"


def arrange(
    device_kind: str, *, shares: str | None, overlap: str | None, interleaved: bool, cores: Sequence[int]
) -> Arrangement:
    """The requested arrangement, by default half of the device for each; `cores` of the host may be used.

    `device_kind` is the device of the models: `cpu` or `cuda`. Raises BadRequest, and ShareUnavailable if both shares
    together exceed the machine.
    """
    if shares is not None and (overlap is not None or interleaved):
        raise BadRequest(
            "--shares names a share for each model, --overlap and --interleaved one for both; give one of them"
        )
    if shares is None and overlap is None and not interleaved and (device_kind != "cpu" or len(cores) > 1):
        shares = f"cpu:{len(cores) // 2},cpu:{len(cores) // 2}" if device_kind == "cpu" else _HALVES
    if shares is None:
        whole = f"cpu:{len(cores)}" if device_kind == "cpu" else "full"
        share = _served(overlap or whole, device_kind)
        placement = Placement(share, _taken([share], cores, str(share)))
        return Arrangement(INTERLEAVED if interleaved else SAME_UNITS, (placement, placement), placement)
    one, other = _two(shares, device_kind)
    taken = _taken([one, other], cores, shares)
    whole = one.kind.whole
    if whole and int(one.size) + int(other.size) > int(whole):
        raise ShareUnavailable(
            f"--shares {shares} exceed the whole GPU; request smaller shares, or one for both by --overlap"
        )
    first = Placement(one, taken[: one.host_cores])
    second = Placement(other, taken[len(first.cores) :])
    return Arrangement(OWN_UNITS, (first, second), _whole_of(first, second))


def usable_cores() -> list[int]:
    """The cores that this process may use, in order."""
    return sorted(os.sched_getaffinity(0))


def _two(text: str, device_kind: str) -> tuple[Share, Share]:
    named = [_served(part, device_kind) for part in text.split(",")]
    if len(named) != 2:
        raise BadRequest(f"--shares '{text}': name two, one for each, such as cpu:1,cpu:1")
    if named[0].mechanism != named[1].mechanism or not named[0].size:
        raise BadRequest(f"--shares '{text}': two parts of one device by one mechanism, such as mps:50,mps:50")
    return named[0], named[1]


def _served(text: str, device_kind: str) -> Share:
    share = Share.parse(text)
    if share.mechanism == "cpu-limit":
        raise BadRequest(
            f"share '{share}': a CPU limit reserves no cores, so a pair would measure the limits and not its models; "
            "measure them on cores (cpu:1,cpu:1, or --overlap cpu:2), and find each limit by fractune fit"
        )
    share.check_serves(device_kind)
    return share


def _taken(shares: Sequence[Share], cores: Sequence[int], requested: str) -> tuple[int, ...]:
    """Free cores, as many as CPU shares need (`CpuTopology.choose`); none for shares of a GPU."""
    if shares[0].device_kind != CPU:
        return ()
    count = sum(share.cores for share in shares)
    if count > len(cores):
        raise ShareUnavailable(
            f"{requested} takes {count} cores, and {len(cores)} may be used here; request smaller shares, or the same "
            "cores for both by --overlap"
        )
    return tuple(CpuTopology.read().choose(cores, count))


def _whole_of(first: Placement, second: Placement) -> Placement | None:
    """The units of both. A GPU has no whole while its instances or static partitions exist."""
    cores, kind = first.cores + second.cores, first.share.kind
    if cores:
        return Placement(Share("cpu", str(len(cores))), cores)
    return Placement(Share(kind.mechanism, kind.whole)) if kind.whole else None
