"""Parts of a device, and the places on an axis where each may lie.

A layout is a path along the axis, from one end to the other, over parts and gaps. For MIG the axis is the eight slices
of memory, and the placement table has the first slice of each instance. For MPS, green contexts and cores a part may
lie anywhere. There, only layouts with the longest parts first are listed, because the order makes no other layout.

Sizes of MIG instances in SMs and GiB: NVIDIA's tables and `nvidia-smi mig -lgip`. Not verified on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from fractune_core.cpu_limits import MILLICORES
from fractune_core.errors import BadRequest
from fractune_core.share_kinds import CPU, CUDA
from fractune_core.shares import Device, Share, units_text

# MIG's placement table: the instances that fit beside each other on one GPU, and their places.
#
# The rules of GPUs with 7 slices of SMs and 8 of memory: A100, H100, H200, B200. An instance of 3g takes half of the
# memory. At place 4 it leaves 4 slices of SMs to others, at place 0 only 3. NVML refuses a 3g after smaller instances
# ("Insufficient Resources"), so 3g instances are made first.

COMPUTE_SLICES = 7
MEMORY_SLICES = 8


@dataclass(frozen=True)
class Profile:
    """A kind of GPU instance."""

    name: str
    id: int
    """number in NVML and nvidia-smi"""
    compute: int
    """slices of SMs, of 7"""
    memory: int
    """slices of memory, of 8"""
    places: tuple[int, ...]
    """possible first memory slices, the least wasteful first"""
    at_most: int


PROFILES = (
    Profile("7g", 0, 7, 8, (0,), 1),
    Profile("3g", 9, 3, 4, (4, 0), 2),
    Profile("4g", 5, 4, 4, (0,), 1),
    Profile("2g", 14, 2, 2, (0, 2, 4), 3),
    Profile("1g with double memory", 15, 1, 2, (0, 2, 4, 6), 4),
    Profile("1g+me", 20, 1, 1, tuple(range(7)), 1),
    Profile("1g", 19, 1, 1, tuple(range(7)), 7),
)
"""in the order of creation"""
BY_NAME = {profile.name: profile for profile in PROFILES}
PLAIN = tuple(BY_NAME[name] for name in ("1g", "2g", "3g", "4g", "7g"))
"""profiles that plans use: one for each number of slices, without extra memory or a media engine"""

Placed = tuple[Profile, int]
"""an instance, and its first memory slice"""


def placements(profiles: Sequence[Profile]) -> Iterator[list[Placed]]:
    """Every way to place `profiles` in this order, the least wasteful first."""
    if sum(profile.compute for profile in profiles) > COMPUTE_SLICES:
        return
    if any(profiles.count(profile) > profile.at_most for profile in profiles):
        return
    yield from _place(list(profiles), frozenset())


def least_wasteful(units: Sequence[int]) -> dict[int, list[int]]:
    """First memory slices of plain instances with these numbers of slices, by slices: the layout that leaves most to
    others.

    The instances must fit onto a GPU.
    """
    profiles = sorted((BY_NAME[f"{each}g"] for each in units), key=PROFILES.index)
    places: dict[int, list[int]] = {}
    for profile, place in next(placements(profiles)):
        places.setdefault(profile.compute, []).append(place)
    return places


def slices(placed: Placed) -> frozenset[int]:
    """The memory slices of an instance."""
    profile, place = placed
    return frozenset(range(place, place + profile.memory))


def _place(profiles: list[Profile], taken: frozenset[int]) -> Iterator[list[Placed]]:
    if not profiles:
        yield []
        return
    first, *rest = profiles
    for place in first.places:
        own = slices((first, place))
        if not own & taken:
            for others in _place(rest, taken | own):
                yield [(first, place), *others]


MPS_STEP = 5
"""percent; MPS takes every whole number, but a plan needs no finer steps"""
MOST_CORES = 256
LIMIT_STEP_M = 250
"""millicores"""
_MEMORY_TOLERANCE = 0.1
"""80 GB of a product are 79.6 or 80 GiB as NVML counts them; no other product is as near"""


class Partitioning(StrEnum):
    MIG = "mig"
    MPS = "mps"
    GREEN = "green"
    CPU = "cpu"
    LIMIT = "limit"
    """CPU limits such as `cpu:1500m`"""


@dataclass(frozen=True)
class GpuModel:
    """A product, with the facts that a plan needs."""

    name: str
    isa: str
    sms: int
    memory_gib: float
    green_step: int
    """green contexts are multiples of this number of SMs"""
    green_fewest: int
    mig_gb: Mapping[str, int]
    """memory in the name of an instance, by profile"""
    mig_gib: Mapping[str, float]
    """real memory of an instance"""
    mig_sms: Mapping[str, int]


def _mig(
    gb: Sequence[int], gib: Sequence[float], sms: Sequence[int]
) -> tuple[dict[str, int], dict[str, float], dict[str, int]]:
    names = [profile.name for profile in PLAIN]
    return dict(zip(names, gb, strict=True)), dict(zip(names, gib, strict=True)), dict(zip(names, sms, strict=True))


_SMS_80, _SMS_90 = (14, 28, 42, 56, 98), (16, 32, 60, 64, 132)
GPUS = (
    GpuModel("A100-40GB", "sm_80", 108, 40, 2, 4, *_mig((5, 10, 20, 20, 40), (4.75, 9.62, 19.5, 19.5, 39.25), _SMS_80)),
    GpuModel(
        "A100-80GB", "sm_80", 108, 80, 2, 4, *_mig((10, 20, 40, 40, 80), (9.5, 19.5, 39.25, 39.25, 79.0), _SMS_80)
    ),
    GpuModel(
        "H100-80GB", "sm_90", 132, 80, 8, 8, *_mig((10, 20, 40, 40, 80), (9.75, 19.62, 39.5, 39.5, 79.25), _SMS_90)
    ),
    # Of the H200 1g and 3g are known; 2g and 7g are taken as twice that, and 4g has the half of the memory as 3g has.
    GpuModel(
        "H200-141GB", "sm_90", 132, 140, 8, 8, *_mig((18, 35, 71, 71, 141), (16.0, 32.0, 69.75, 69.75, 139.5), _SMS_90)
    ),
)


@dataclass(frozen=True)
class DevicePart:
    """A size of parts of a device."""

    share: str
    """the share's text: `mig:1g.10gb`, `mps:25`, `green:32`, `cpu:2`, `cpu:1500m`"""
    units: int
    """slices, SMs, cores or millicores, which decide speed"""
    granted: int
    """SMs, cores or millicores that a worker proves at this part"""
    length: int
    """on the axis"""
    places: tuple[int, ...]
    """possible beginnings on the axis"""
    memory_gib: float
    """memory limit of a model there; infinite where the device's memory is not known"""


@dataclass(frozen=True)
class DeviceType:
    """A kind of device with one way of dividing it."""

    name: str
    """the GPU's, or `8 cores`"""
    partitioning: Partitioning
    unit: str
    """`slice`, `SM`, `core` or `millicore`"""
    units: int
    """of the whole device"""
    length: int
    """of the axis"""
    parts: tuple[DevicePart, ...]
    """in ascending order of units; the last is the whole device"""
    isa: str = ""
    """empty = any"""
    sms: int = 0
    """0 for a CPU"""
    memory_gib: float = float("inf")

    @property
    def kind(self) -> str:
        """`cpu` or `cuda`"""
        return CPU if self.partitioning in (Partitioning.CPU, Partitioning.LIMIT) else CUDA

    @property
    def timed_by(self) -> DeviceType:
        """The device with the parts at which models are timed: under CPU limits they are whole cores."""
        return cpu_type(self.units // MILLICORES) if self.partitioning is Partitioning.LIMIT else self

    @property
    def isolates(self) -> bool:
        """Whether each part has its own cache and memory channels, so that neighbours have no effect."""
        return self.partitioning is Partitioning.MIG

    @property
    def whole(self) -> DevicePart:
        return self.parts[-1]

    @cached_property
    def by_units(self) -> dict[int, DevicePart]:
        return {part.units: part for part in self.parts}

    def units_of(self, share: str) -> int:
        """Units of a share of this device: `mig:3g.40gb` or `3g`, `mps:25`, `green:32`, `cpu:2`, `full`. A range
        counts as its guarantee, the only part of it that a plan can rely on.

        Raises BadRequest for a share of another device, or of another partitioning.
        """
        text = share.strip()
        if self.partitioning is Partitioning.MIG:
            found = [part for part in self.parts if text in (part.share, part.share.removeprefix("mig:").split(".")[0])]
            if found:
                return found[0].units
        elif text == "full" and self.kind == CUDA:
            return self.units
        elif text.startswith(f"{self.partitioning}:"):
            asked = Share.parse(text)
            part = asked.ends[0] if asked.ends else asked
            size = int(part.size) if part.mechanism == self.partitioning else 0
            units = size * self.sms // 100 if self.partitioning is Partitioning.MPS else size
            if 0 < units <= self.units:
                return units
        known = ", ".join(self._some_shares())
        raise BadRequest(f"share '{share}' is not a part of {self.name} by {self.partitioning}; it has {known}")

    def units_of_granted(self, granted: int) -> int | None:
        """Units of the part at which a worker proved `granted` SMs or cores; None without such a part."""
        if self.partitioning is Partitioning.MIG:
            return next((part.units for part in self.parts if part.granted == granted), None)
        return granted if 0 < granted <= self.units else None

    def difference(self, measured_on: Device) -> str:
        """The reason why times from that device do not apply to this one; empty when they do."""
        if measured_on.kind != self.kind:
            return f"a {measured_on.kind.upper().replace('CUDA', 'GPU')} and not {self.name}"
        same = measured_on.units == (self.sms or self.units) and self.isa in {"", measured_on.isa}
        near = math.isinf(self.memory_gib) or abs(measured_on.memory_gib / self.memory_gib - 1) <= _MEMORY_TOLERANCE
        if same and (near or self.kind == CPU):
            return ""
        unit = "cores" if self.kind == CPU else "SMs"
        return f"{measured_on.label or measured_on.isa} with {measured_on.units} {unit} and not {self.name}"

    def _some_shares(self) -> list[str]:
        shares = [part.share for part in self.parts]
        return shares if len(shares) <= 7 else [*shares[:3], "...", shares[-1]]


def gpu_type(name: str, partitioning: Partitioning) -> DeviceType:
    """The GPU of this name with this partitioning. Raises BadRequest for an unknown name."""
    gpu = next((each for each in GPUS if each.name.lower() == name.strip().lower()), None)
    if gpu is None:
        raise BadRequest(f"gpu '{name}' is unknown; write {', '.join(each.name for each in GPUS)}")
    if partitioning is Partitioning.MIG:
        parts = tuple(
            DevicePart(
                f"mig:{profile.name}.{gpu.mig_gb[profile.name]}gb",
                profile.compute,
                gpu.mig_sms[profile.name],
                profile.memory,
                tuple(sorted(profile.places)),
                gpu.mig_gib[profile.name],
            )
            for profile in PLAIN
        )
        return DeviceType(
            gpu.name, partitioning, "slice", COMPUTE_SLICES, MEMORY_SLICES, parts, gpu.isa, gpu.sms, gpu.memory_gib
        )
    if partitioning is Partitioning.MPS:
        sizes = {percent // MPS_STEP: percent * gpu.sms // 100 for percent in range(MPS_STEP, 101, MPS_STEP)}
        names = {length: f"mps:{length * MPS_STEP}" for length in sizes}
    elif partitioning is Partitioning.GREEN:
        fewest, groups = -(-gpu.green_fewest // gpu.green_step), gpu.sms // gpu.green_step
        sizes = {length: length * gpu.green_step for length in _sizes(groups) if length >= fewest} | {groups: gpu.sms}
        names = {length: f"green:{units}" for length, units in sizes.items()} | {groups: "full"}
    else:
        raise BadRequest(f"partitioning '{partitioning}' is for CPUs; a GPU has mig, mps and green")
    parts = _line(sizes, names, gpu.memory_gib)
    return DeviceType(gpu.name, partitioning, "SM", gpu.sms, max(sizes), parts, gpu.isa, gpu.sms, gpu.memory_gib)


def device_type(gpu: str, cores: int, partitioning: str, memory_gib: float) -> DeviceType:
    """The GPU of this name, or a host with `cores` cores: exactly one must be given.

    An empty `partitioning` means the usual one. `memory_gib` is 0 where a host's memory does not matter. Raises
    BadRequest.
    """
    if bool(gpu) == bool(cores):
        raise BadRequest("device: give either gpu or cores")
    try:
        wanted = Partitioning(partitioning or ("mig" if gpu else "cpu"))
    except ValueError:
        raise BadRequest(f"partitioning '{partitioning}': write {', '.join(Partitioning)}") from None
    if gpu:
        return gpu_type(gpu, wanted)
    if wanted is Partitioning.LIMIT:
        return limit_type(cores, memory_gib or math.inf)
    if wanted is not Partitioning.CPU:
        raise BadRequest(f"partitioning '{wanted}' is for GPUs; a host with cores has cpu and limit")
    return cpu_type(cores, memory_gib or math.inf)


def cpu_type(cores: int, memory_gib: float = float("inf")) -> DeviceType:
    """A host with `cores` cores. Raises BadRequest."""
    if not 1 <= cores <= MOST_CORES:
        raise BadRequest(f"cores is {cores}; it must be from 1 to {MOST_CORES}")
    sizes = {count: count for count in _sizes(cores)}
    parts = _line(sizes, {count: f"cpu:{count}" for count in sizes}, memory_gib)
    return DeviceType(units_text(cores, "core"), Partitioning.CPU, "core", cores, cores, parts, memory_gib=memory_gib)


def limit_type(cores: int, memory_gib: float = float("inf")) -> DeviceType:
    """A host with `cores` cores that is divided by CPU limits. Raises BadRequest."""
    whole, most = cpu_type(cores), cores * MILLICORES // LIMIT_STEP_M
    sizes = {steps: steps * LIMIT_STEP_M for steps in _sizes(most)}
    parts = _line(sizes, {steps: f"cpu:{limit_m}m" for steps, limit_m in sizes.items()}, memory_gib)
    unit, units = "millicore", cores * MILLICORES
    return DeviceType(whole.name, Partitioning.LIMIT, unit, units, most, parts, memory_gib=memory_gib)


def _sizes(most: int) -> list[int]:
    """Whole numbers up to `most`; large ones in steps of a sixteenth to an eighth of themselves: above 16 every second,
    above 32 every fourth, ... More sizes hardly improve a plan, and slow the solver.
    """
    return [size for size in range(1, most + 1) if size == most or size % 2 ** max(size.bit_length() - 4, 0) == 0]


def _line(units: Mapping[int, int], names: Mapping[int, str], memory_gib: float) -> tuple[DevicePart, ...]:
    """Parts that may lie anywhere, by their lengths, the longest first along the axis. Memory is not divided there, so
    each part may take the same fraction of it as of the units.
    """
    end, most = max(units), max(units.values())
    reached, places = {0}, {}
    for length in sorted(units, reverse=True):
        begins = set(reached)
        for begin in range(end):
            if begin in begins and begin + length <= end:
                begins.add(begin + length)
        places[length] = tuple(sorted(begin for begin in begins if begin + length <= end))
        reached = begins
    return tuple(
        DevicePart(
            names[length], units[length], units[length], length, places[length], memory_gib * units[length] / most
        )
        for length in sorted(units)
    )
