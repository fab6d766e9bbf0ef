"""The calls of `pynvml` that fractune makes, answered for GPUs that do not exist."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import NoReturn

from tests.support.hardware.simulated_gpu import SimulatedGpu, SimulatedInstance

NOT_SUPPORTED = 3
NOT_FOUND = 6
LIBRARY_NOT_FOUND = 12
_WORDS = {NOT_SUPPORTED: "Not Supported", NOT_FOUND: "Not Found", LIBRARY_NOT_FOUND: "NVML Shared Library Not Found"}


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(_WORDS.get(value, f"NVML Error with code {value}"))
        self.value = value


class SimulatedNvml:
    """Stands in for the module `pynvml`. `broken` maps a call to the number of the error that it ends with."""

    NVMLError = NVMLError

    def __init__(self, *gpus: SimulatedGpu, broken: dict[str, int] | None = None) -> None:
        self.gpus = list(gpus)
        self.broken = broken or {}

    def __getattribute__(self, name: str) -> object:
        if name.startswith("nvml") and name in self.broken:
            return lambda *_: self._fail(self.broken[name])
        return super().__getattribute__(name)

    @staticmethod
    def _fail(value: int) -> NoReturn:
        raise NVMLError(value)

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.95.05"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return 13_000

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> SimulatedGpu:
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> SimulatedGpu:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None) or self._fail(NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: SimulatedGpu | SimulatedInstance) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: SimulatedGpu | SimulatedInstance) -> str:
        if isinstance(handle, SimulatedGpu):
            return handle.model.name
        owner = next(gpu for gpu in self.gpus if handle in gpu.instances)
        return f"{owner.model.name} MIG {handle.profile.name}"

    def nvmlDeviceGetCudaComputeCapability(self, gpu: SimulatedGpu) -> tuple[int, int]:
        return gpu.model.capability

    def nvmlDeviceGetNumGpuCores(self, gpu: SimulatedGpu) -> int:
        return gpu.model.sms * gpu.model.cores_per_sm

    def nvmlDeviceGetMemoryInfo(self, gpu: SimulatedGpu) -> SimpleNamespace:
        return SimpleNamespace(total=gpu.model.memory_mib << 20)

    def nvmlDeviceGetMigMode(self, gpu: SimulatedGpu) -> list[int]:
        return [int(gpu.mig)] * 2

    def nvmlDeviceGetComputeMode(self, gpu: SimulatedGpu) -> int:
        return 3 if gpu.exclusive else 0

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: SimulatedGpu) -> int:
        return 7 if gpu.mig else 0

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: SimulatedGpu, number: int) -> SimulatedInstance:
        """An instance that was removed leaves a hole in the numbers."""
        found = gpu.instances[number] if number < len(gpu.instances) else None
        return found or self._fail(NOT_FOUND)

    def nvmlDeviceGetAttributes(self, instance: SimulatedInstance) -> SimpleNamespace:
        return SimpleNamespace(multiprocessorCount=instance.profile.sms, memorySizeMB=instance.profile.memory_mib)

    def nvmlDeviceGetGpuInstanceProfileInfo(self, gpu: SimulatedGpu, number: int) -> SimpleNamespace:
        assert number == 4
        return SimpleNamespace(multiprocessorCount=gpu.profile("7g").sms)

    def nvmlDeviceGetClockInfo(self, gpu: SimulatedGpu, kind: int) -> int:
        assert kind == 1
        return gpu.sm_mhz

    def nvmlDeviceGetFieldValues(self, gpu: SimulatedGpu, fields: Sequence[int]) -> list[SimpleNamespace]:
        return [self._field(gpu, number) for number in fields]

    @staticmethod
    def _field(gpu: SimulatedGpu, number: int) -> SimpleNamespace:
        told = number in gpu.throttled_ns
        value = SimpleNamespace(ullVal=gpu.throttled_ns.get(number, 0))
        return SimpleNamespace(nvmlReturn=0 if told else NOT_SUPPORTED, value=value)
