"""A GPU's device key: the same at every share, but for MIG mode."""

from __future__ import annotations

from fractune_workers.gpu.nvml import NvidiaMl, gpu_device
from tests.support.hardware.simulated_cuda import simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_nvml import SimulatedNvml


def test_the_device_is_known_by_what_decides_its_speed() -> None:
    simulated = SimulatedGpu(MODELS["H200"])
    (gpu,) = NvidiaMl(SimulatedNvml(simulated)).gpus()
    device = gpu_device(gpu, simulated_driver(simulated).l2_bytes())
    assert device.key == "cuda-sm_90-132u-140gib-l2.61440kib"
    assert device.label == "NVIDIA H200"


def test_in_mig_mode_it_is_another_device_whose_cache_nobody_tells() -> None:
    (gpu,) = NvidiaMl(SimulatedNvml(gpu_in_mig_mode("H200", ("1g", 0)))).gpus()
    assert gpu_device(gpu, 7 << 20).key == "cuda-sm_90-132u-140gib-l2.0kib"
