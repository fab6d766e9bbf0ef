"""The calls of `libcuda.so.1` that inference makes through `ctypes`, answered for a GPU that does not exist."""

import os
from typing import Any

from fractune_runtime.gpu import Attribute
from tests.support.hardware.simulated_cuda import CUdevice_attribute, SimulatedCuda, Staged
from tests.support.hardware.simulated_gpu import SimulatedGpu

_SHOWN = {
    Attribute.MULTIPROCESSOR_COUNT: CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
    Attribute.MPS_ENABLED: CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MPS_ENABLED,
}
_NOTHING_STAGED = Staged()


class SimulatedLibcuda:
    """Stands in for the loaded library in one process. An argument by reference is filled in as C would do it."""

    def __init__(self, gpu: SimulatedGpu, staged: Staged = _NOTHING_STAGED, *, version: int = 13_000) -> None:
        self._gpu = gpu
        self._staged = staged
        self._version = version
        self._cuda: SimulatedCuda | None = None

    def cuDriverGetVersion(self, version: Any) -> int:
        return _told(version, self._version)

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        self._cuda = SimulatedCuda(self._gpu, self._staged)  # what the environment says is settled now
        return self._staged.errors.get("cuInit", 0)

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        assert ordinal == 0
        return _told(device, 7)

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        assert (size, device.value) == (len(name), 7)
        instance = self._instance()
        name.value = f"{self._gpu.model.name}{f' MIG {instance.profile.name}' if instance else ''}".encode()
        return 0

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:
        assert device.value == 7
        instance = self._instance()
        return _told(memory, (instance.profile.memory_mib if instance else self._gpu.model.memory_mib) << 20)

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: Any) -> int:
        assert device.value == 7
        assert self._cuda is not None, "before cuInit"
        major, minor = self._gpu.model.capability
        if attribute == Attribute.COMPUTE_CAPABILITY_MAJOR:
            return _told(value, major)
        if attribute == Attribute.COMPUTE_CAPABILITY_MINOR:
            return _told(value, minor)
        return _told(value, self._cuda.cuDeviceGetAttribute(_SHOWN[Attribute(attribute)], "device")[1])

    def _instance(self) -> Any:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        return next((each for each in self._gpu.instances if each is not None and each.uuid == visible), None)


def _told(reference: Any, value: int) -> int:
    """What `ctypes.byref` refers to becomes `value`; success."""
    reference._obj.value = value
    return 0
