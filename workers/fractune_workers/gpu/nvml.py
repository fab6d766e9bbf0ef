"""The machine's GPUs by NVML. A call of NVML does not make a process a client of a GPU, nor of MPS."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from fractune_core.cuda import VISIBLE_DEVICES
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Device

_MIB = 1 << 20
_ON = 1
_EXCLUSIVE_PROCESS = 3
_CLOCK_SM = 1
_SEVEN_SLICES = 4
"""NVML's number for the profile of an instance that is the whole GPU"""
_NOT_FOUND = 6
_UNSUPPORTED = (3, 13)
"""NVML's numbers for: not supported by this device; by this library"""
_UNINITIALISED = (9, 12)
"""NVML's numbers for: no driver is loaded; there is no library"""
_CORES_PER_SM_BEFORE_86 = 64
_CORES_PER_SM = 128
_PROFILE = re.compile(r"MIG (\S+)$")
_THROTTLE_FIELDS = {"sw_power_cap": 74, "sw_thermal": 269, "hw_thermal": 270, "hw_power_brake": 271}
"""NVML's cumulative counters, in ns: a short event between two samples of the present reasons would be missed"""


class NvmlFailed(ShareUnavailable):
    """NVML could not be asked."""


class NoNvidiaDriver(NvmlFailed):
    """There is no NVIDIA driver on this machine, or no package to ask it with."""


@dataclass(frozen=True)
class MigInstance:
    """A compute instance of a GPU in MIG mode: a device of its own for CUDA."""

    uuid: str
    """`MIG-...`"""
    profile: str
    """`1g.18gb`; `1c.3g.71gb` when it is only a part of its GPU instance; empty when NVML does not know"""
    sms: int
    memory_bytes: int


@dataclass(frozen=True)
class Gpu:
    """A whole GPU."""

    index: int
    """number among NVML's, which is nvidia-smi's and need not be CUDA's"""
    uuid: str
    """`GPU-...`"""
    name: str
    capability: tuple[int, int]
    sms: int
    """all that CUDA can use while MIG is off; 0 when NVML does not know"""
    memory_bytes: int
    driver: str
    """version"""
    cuda: str
    """newest CUDA version that the driver runs: `13.0`"""
    exclusive: bool
    """only one process (which may be an MPS server) can use it at a time"""
    mig: bool
    mig_instances_at_most: int
    """7 on the GPUs that divide in sevenths; 0 while MIG is off"""
    instances: tuple[MigInstance, ...] = ()

    @property
    def arch(self) -> str:
        """`sm_90`"""
        return "sm_{}{}".format(*self.capability)


@dataclass(frozen=True)
class Clocks:
    """The GPU's clock now, and for how long something has held it down since the driver was loaded."""

    sm_mhz: int
    """0 when NVML does not know"""
    throttled_ns: dict[str, int]
    """by reason; a reason that NVML does not count is absent"""

    def throttled_since(self, earlier: Clocks) -> dict[str, int]:
        """Reasons that held the clock down after `earlier`, with the time in ns."""
        since = {name: ns - earlier.throttled_ns.get(name, ns) for name, ns in self.throttled_ns.items()}
        return {name: ns for name, ns in since.items() if ns > 0}


class Nvml(Protocol):
    """Every method raises NvmlFailed."""

    def gpus(self) -> list[Gpu]: ...

    def clocks(self, uuid: str) -> Clocks:
        """Of the whole GPU `uuid`: clock and power are one for all of its shares."""
        ...


class NvidiaMl:
    """NVML by `library`, which is the module `pynvml` (package nvidia-ml-py). Raises NoNvidiaDriver."""

    def __init__(self, library: Any) -> None:
        self._library = library
        try:
            library.nvmlInit()
        except library.NVMLError as error:
            if error.value in _UNINITIALISED:
                raise NoNvidiaDriver(
                    f"no NVIDIA driver on this machine (NVML: {error}); install driver 580 or newer, or give the "
                    "container its GPUs (--gpus all, or --device nvidia.com/gpu=all)"
                ) from error
            raise _failed("nvmlInit", error) from error

    def gpus(self) -> list[Gpu]:
        return [self._gpu(index) for index in range(self._ask("nvmlDeviceGetCount"))]

    def clocks(self, uuid: str) -> Clocks:
        handle = self._ask("nvmlDeviceGetHandleByUUID", uuid)
        fields = self._ask("nvmlDeviceGetFieldValues", handle, list(_THROTTLE_FIELDS.values()))
        by_name = zip(_THROTTLE_FIELDS, fields, strict=True)
        return Clocks(
            sm_mhz=self._ask_optional("nvmlDeviceGetClockInfo", handle, _CLOCK_SM, otherwise=0),
            throttled_ns={name: int(field.value.ullVal) for name, field in by_name if field.nvmlReturn == 0},
        )

    def _gpu(self, index: int) -> Gpu:
        handle = self._ask("nvmlDeviceGetHandleByIndex", index)
        capability = self._ask("nvmlDeviceGetCudaComputeCapability", handle)
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        mig, _pending = self._ask_optional("nvmlDeviceGetMigMode", handle, otherwise=(0, 0))
        mode = self._ask_optional("nvmlDeviceGetComputeMode", handle, otherwise=0)
        at_most = self._ask_optional("nvmlDeviceGetMaxMigDeviceCount", handle, otherwise=0) if mig == _ON else 0
        return Gpu(
            index=index,
            uuid=self._ask("nvmlDeviceGetUUID", handle),
            name=self._ask("nvmlDeviceGetName", handle),
            capability=capability,
            sms=self._sms(handle, capability, mig=mig == _ON),
            memory_bytes=int(self._ask("nvmlDeviceGetMemoryInfo", handle).total),
            driver=self._ask("nvmlSystemGetDriverVersion"),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}",
            exclusive=mode == _EXCLUSIVE_PROCESS,
            mig=mig == _ON,
            mig_instances_at_most=at_most,
            instances=tuple(found for number in range(at_most) if (found := self._instance(handle, number))),
        )

    def _sms(self, gpu: Any, capability: tuple[int, int], *, mig: bool) -> int:
        cores: int = self._ask_optional("nvmlDeviceGetNumGpuCores", gpu, otherwise=0)
        if cores or not mig:
            return cores // _cores_per_sm(capability)
        # All that instances can have, which on some GPUs is less than the whole.
        widest = self._ask_optional("nvmlDeviceGetGpuInstanceProfileInfo", gpu, _SEVEN_SLICES, otherwise=None)
        return widest.multiprocessorCount if widest else 0

    def _instance(self, gpu: Any, number: int) -> MigInstance | None:
        """None where an instance was removed: the numbers have holes."""
        handle = self._ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, number, tolerated=(_NOT_FOUND,))
        if handle is None:
            return None
        attributes = self._ask("nvmlDeviceGetAttributes", handle)
        profile = _PROFILE.search(self._ask("nvmlDeviceGetName", handle))
        return MigInstance(
            uuid=self._ask("nvmlDeviceGetUUID", handle),
            profile=profile[1] if profile else "",
            sms=attributes.multiprocessorCount,
            memory_bytes=attributes.memorySizeMB * _MIB,
        )

    def _ask(self, call: str, *args: Any, tolerated: Collection[int] = (), otherwise: Any = None) -> Any:
        """The answer of `call`; `otherwise` for NVML's error numbers in `tolerated`."""
        try:
            return getattr(self._library, call)(*args)
        except self._library.NVMLError as error:
            if error.value in tolerated:
                return otherwise
            raise _failed(call, error) from error

    def _ask_optional(self, call: str, *args: Any, otherwise: Any) -> Any:
        """As `_ask`; `otherwise` for what this device or this library does not support."""
        return self._ask(call, *args, tolerated=_UNSUPPORTED, otherwise=otherwise)


def open_nvml() -> Nvml:
    """NVML of this machine. Raises NoNvidiaDriver."""
    try:
        import pynvml
    except ImportError as error:
        raise NoNvidiaDriver(
            f"NVIDIA GPUs cannot be looked for: the package nvidia-ml-py cannot be imported ({error}); install "
            "'fractune[cuda]'"
        ) from error
    return NvidiaMl(pynvml)


def _failed(call: str, error: Exception) -> NvmlFailed:
    return NvmlFailed(f"{call}: NVML says '{error}'; see what `nvidia-smi` says")


def _cores_per_sm(capability: tuple[int, int]) -> int:
    """NVML counts the cores of the whole GPU, whatever share this process is under; it does not count SMs."""
    return _CORES_PER_SM_BEFORE_86 if capability < (8, 6) else _CORES_PER_SM


# Which GPU a worker works on (the first that CUDA_VISIBLE_DEVICES names, else the first of all), and its device in
# the log.


def visible_gpu(gpus: Sequence[Gpu]) -> Gpu:
    """The GPU of this process. A number counts as nvidia-smi counts; a MIG instance means the GPU that it is part of.

    Raises ShareUnavailable when there is none, or none of that name.
    """
    named = os.environ.get(VISIBLE_DEVICES)
    return _named_gpu(gpus, None if named is None else named.partition(",")[0].strip())


def visible_gpus(gpus: Sequence[Gpu]) -> list[Gpu]:
    """All GPUs that this process may use, each once. Raises ShareUnavailable as `visible_gpu`."""
    named = os.environ.get(VISIBLE_DEVICES)
    if named is None:
        return [_named_gpu(gpus, None), *gpus[1:]]
    found = [_named_gpu(gpus, name.strip()) for name in named.split(",")]
    return list({gpu.uuid: gpu for gpu in found}.values())


def _named_gpu(gpus: Sequence[Gpu], name: str | None) -> Gpu:
    """The GPU of that name; the first for None."""
    if not gpus:
        raise ShareUnavailable("the NVIDIA driver sees no GPU; see what `nvidia-smi -L` says")
    if name is None:
        return gpus[0]
    found = [gpu for gpu in gpus if _is_named(gpu, name)]
    if len(found) != 1:
        there = ", ".join(gpu.uuid for gpu in gpus)
        raise ShareUnavailable(
            f"{VISIBLE_DEVICES}='{os.environ.get(VISIBLE_DEVICES)}' does not name one GPU; give its number or its UUID "
            f"(here: {there})"
        )
    return found[0]


def _is_named(gpu: Gpu, name: str) -> bool:
    """Whether `name` is the GPU's number, its UUID or the beginning of it, or the UUID of one of its instances."""
    if name.isdecimal():
        return gpu.index == int(name)
    if any(instance.uuid == name for instance in gpu.instances):
        return True
    return name.startswith("GPU-") and gpu.uuid.startswith(name)


def gpu_device(gpu: Gpu, l2_bytes: int) -> Device:
    """The whole GPU; `l2_bytes` is its second-level cache as CUDA shows it.

    In MIG mode CUDA shows only an instance's part of the cache, and not the whole. So the cache counts as not known,
    and the GPU as another device than outside of that mode.
    """
    return Device(
        kind="cuda",
        isa=gpu.arch,
        units=gpu.sms,
        memory_gib=round(gpu.memory_bytes / 2**30),
        l2_kib=0 if gpu.mig else l2_bytes // 1024,
        label=gpu.name,
    )


UNKNOWN_CLOCKS = Clocks(sm_mhz=0, throttled_ns={})

_log = logging.getLogger(__name__)


class GpuClock:
    def __init__(self, nvml: Callable[[], Nvml] = open_nvml) -> None:
        self._open_nvml = nvml
        self._has_complained = False

    def read(self) -> Clocks:
        """Of the whole GPU; UNKNOWN_CLOCKS where NVML fails: the measurement is as good without."""
        try:
            return self._nvml.clocks(self._uuid)
        except ShareUnavailable as error:
            if not self._has_complained:
                _log.warning("records will lack the clock of the GPU: %s", error)
            self._has_complained = True
            return UNKNOWN_CLOCKS

    @cached_property
    def _nvml(self) -> Nvml:
        return self._open_nvml()

    @cached_property
    def _uuid(self) -> str:
        return visible_gpu(self._nvml.gpus()).uuid
