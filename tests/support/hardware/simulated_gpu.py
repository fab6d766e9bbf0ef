"""GPUs that do not exist, with the MIG profiles, placements and SM counts of real ones: what the simulated NVML and the
simulated CUDA tell of.

SM counts and memory are those of NVIDIA's MIG user guide and of `nvidia-smi mig -lgip` on such GPUs; where these give
no memory, it is the nominal part of the whole.
"""

from dataclasses import dataclass, field

_SIZES = {"1g": (19, 1, 1, 7), "1g+me": (20, 1, 1, 1), "1g wide": (15, 1, 2, 4), "2g": (14, 2, 2, 3)}
_SIZES |= {"3g": (9, 3, 4, 2), "4g": (5, 4, 4, 1), "7g": (0, 7, 8, 1)}
"""By kind: id, slices of SMs, slices of memory, how many at most."""
_PLACES = {
    "1g": range(7),
    "1g+me": range(7),
    "1g wide": (0, 2, 4, 6),
    "2g": (0, 2, 4),
    "3g": (0, 4),
    "4g": (0,),
    "7g": (0,),
}


@dataclass(frozen=True)
class SimulatedProfile:
    kind: str
    name: str
    sms: int
    memory_mib: int

    @property
    def id(self) -> int:
        return _SIZES[self.kind][0]

    @property
    def compute(self) -> int:
        return _SIZES[self.kind][1]

    @property
    def memory(self) -> int:
        return _SIZES[self.kind][2]

    @property
    def at_most(self) -> int:
        return _SIZES[self.kind][3]


@dataclass(frozen=True)
class Model:
    name: str
    capability: tuple[int, int]
    sms: int
    cores_per_sm: int
    memory_mib: int
    profiles: tuple[SimulatedProfile, ...]


def _profiles(gb: tuple[int, ...], gib: tuple[float, ...], sms: tuple[int, ...]) -> tuple[SimulatedProfile, ...]:
    """`gb` in the name, `gib` and `sms` of 1g, 1g with double memory, 2g, 3g, 4g and 7g."""
    kinds = ("1g", "1g wide", "2g", "3g", "4g", "7g")
    rows = zip(kinds, gb, gib, sms, strict=True)
    made = [
        SimulatedProfile(kind, f"{kind[:2]}.{size}gb", count, round(memory * 1024))
        for kind, size, memory, count in rows
    ]
    media = SimulatedProfile("1g+me", f"1g.{gb[0]}gb+me", sms[0], round(gib[0] * 1024))
    return (*made, media)


_A100_SMS = (14, 14, 28, 42, 56, 98)
_HOPPER_SMS = (16, 26, 32, 60, 64, 132)
_EIGHTY_GB = (10, 20, 20, 40, 40, 80)
MODELS = {
    "A100-40": Model(
        *("NVIDIA A100-SXM4-40GB", (8, 0), 108, 64, 40_536),
        _profiles((5, 10, 10, 20, 20, 40), (4.75, 9.62, 9.62, 19.5, 19.5, 39.25), _A100_SMS),
    ),
    "A100-80": Model(
        *("NVIDIA A100-SXM4-80GB", (8, 0), 108, 64, 81_920),
        _profiles(_EIGHTY_GB, (9.5, 19.5, 19.5, 39.25, 39.25, 79), _A100_SMS),
    ),
    "H100": Model(
        *("NVIDIA H100 80GB HBM3", (9, 0), 132, 128, 81_559),
        _profiles(_EIGHTY_GB, (9.75, 19.62, 19.62, 39.5, 39.5, 79.25), _HOPPER_SMS),
    ),
    "H200": Model(
        *("NVIDIA H200", (9, 0), 132, 128, 143_771),
        _profiles((18, 35, 35, 71, 71, 141), (16.0, 35.1, 35.1, 69.75, 70.2, 140.4), _HOPPER_SMS),
    ),
}


@dataclass(frozen=True)
class SimulatedInstance:
    profile: SimulatedProfile
    place: int
    uuid: str

    @property
    def slices(self) -> set[int]:
        return set(range(self.place, self.place + self.profile.memory))


class InsufficientResources(Exception):
    """What the driver says of an instance that has no room."""


@dataclass
class SimulatedGpu:
    model: Model
    number: int = 0
    mig: bool = False
    exclusive: bool = False
    instances: list[SimulatedInstance | None] = field(default_factory=list)
    """None where one was removed"""
    sm_mhz: int = 1_980
    throttled_ns: dict[int, int] = field(default_factory=lambda: {74: 0, 269: 0, 270: 0, 271: 0})
    """by NVML's field"""

    @property
    def uuid(self) -> str:
        return f"GPU-0000000{self.number}-cdf7-e667-3644-bf5b4f46ed65"

    def profile(self, name: str) -> SimulatedProfile:
        """By its name (`1g.18gb`) or its kind (`1g`)."""
        return next(each for each in self.model.profiles if name in {each.name, each.kind})

    def make(self, profile: SimulatedProfile, place: int) -> SimulatedInstance:
        """As the driver makes a GPU instance with one compute instance. Raises InsufficientResources."""
        number, present = len(self.instances), [each for each in self.instances if each]
        made = SimulatedInstance(profile, place, f"MIG-{self.number:08x}-0000-5000-8000-{number:012x}")
        others = [*present, made]
        if (
            not self.mig
            or place not in _PLACES[profile.kind]
            or any(made.slices & each.slices for each in present)
            or sum(each.profile.compute for each in others) > 7
            or sum(each.profile is profile for each in others) > profile.at_most
            or (profile.kind == "3g" and any(each.profile.compute < 3 for each in present))
        ):
            raise InsufficientResources(f"{profile.name} at {place}")
        self.instances.append(made)
        return made


def gpu_in_mig_mode(model: str, *placed: tuple[str, int], number: int = 0) -> SimulatedGpu:
    """A GPU divided into `placed`: kinds or names of instances, and where each begins."""
    gpu = SimulatedGpu(MODELS[model], number=number, mig=True)
    for name, place in placed:
        gpu.make(gpu.profile(name), place)
    return gpu
