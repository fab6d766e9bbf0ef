"""NVML over a simulated library with the profiles of real GPUs: devices, instances, clocks, and what it cannot tell."""

import pytest

from fractune_core.errors import ShareUnavailable
from fractune_workers.gpu.nvml import NoNvidiaDriver, NvidiaMl, NvmlFailed, gpu_device, visible_gpu
from tests.support.hardware.simulated_cuda import simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu, gpu_in_mig_mode
from tests.support.hardware.simulated_nvml import LIBRARY_NOT_FOUND, NOT_SUPPORTED, SimulatedNvml

PAIR = [SimulatedGpu(MODELS["H100"]), gpu_in_mig_mode("H200", ("3g", 4), ("1g", 0), number=1)]


@pytest.mark.parametrize(
    ("model", "arch", "sms", "gib"),
    [
        ("A100-40", "sm_80", 108, 40),
        ("A100-80", "sm_80", 108, 80),
        ("H100", "sm_90", 132, 80),
        ("H200", "sm_90", 132, 140),
    ],
)
def test_a_gpu_is_described(model: str, arch: str, sms: int, gib: int) -> None:
    (gpu,) = NvidiaMl(SimulatedNvml(SimulatedGpu(MODELS[model]))).gpus()
    assert (gpu.arch, gpu.sms, round(gpu.memory_bytes / 2**30)) == (arch, sms, gib)
    assert (gpu.driver, gpu.cuda) == ("580.95.05", "13.0")
    assert not gpu.mig
    assert gpu.instances == ()


def test_instances_are_listed_with_what_they_have() -> None:
    simulated = gpu_in_mig_mode("H100", ("3g", 4), ("1g wide", 0), ("1g", 2))
    simulated.instances[1] = None  # removed
    (gpu,) = NvidiaMl(SimulatedNvml(simulated)).gpus()
    assert [(each.profile, each.sms, each.memory_bytes >> 20) for each in gpu.instances] == [
        ("3g.40gb", 60, 40_448),
        ("1g.10gb", 16, 9_984),
    ]
    assert gpu.mig
    assert gpu.mig_instances_at_most == 7


def test_what_a_device_cannot_tell_is_left_open() -> None:
    calls = ("nvmlDeviceGetMigMode", "nvmlDeviceGetComputeMode", "nvmlDeviceGetNumGpuCores", "nvmlDeviceGetClockInfo")
    nvml = NvidiaMl(SimulatedNvml(SimulatedGpu(MODELS["H100"]), broken=dict.fromkeys(calls, NOT_SUPPORTED)))
    (gpu,) = nvml.gpus()
    assert (gpu.mig, gpu.exclusive, gpu.sms) == (False, False, 0)
    assert nvml.clocks(gpu.uuid).sm_mhz == 0


def test_in_mig_mode_the_widest_profile_tells_the_sms_that_cores_do_not() -> None:
    simulated = gpu_in_mig_mode("A100-80")
    (gpu,) = NvidiaMl(SimulatedNvml(simulated, broken={"nvmlDeviceGetNumGpuCores": NOT_SUPPORTED})).gpus()
    assert gpu.sms == 98


def test_throttling_between_two_looks_is_seen() -> None:
    simulated = SimulatedGpu(MODELS["H100"])
    del simulated.throttled_ns[269]
    nvml = NvidiaMl(SimulatedNvml(simulated))
    before = nvml.clocks(simulated.uuid)
    assert before.sm_mhz == 1_980
    assert set(before.throttled_ns) == {"sw_power_cap", "hw_thermal", "hw_power_brake"}
    assert nvml.clocks(simulated.uuid).throttled_since(before) == {}
    simulated.throttled_ns[74] += 1_500
    assert nvml.clocks(simulated.uuid).throttled_since(before) == {"sw_power_cap": 1_500}


def test_no_driver_is_an_error_of_its_own() -> None:
    with pytest.raises(NoNvidiaDriver, match=r"no NVIDIA driver on this machine .*install driver 580"):
        NvidiaMl(SimulatedNvml(broken={"nvmlInit": LIBRARY_NOT_FOUND}))


def test_any_other_error_names_the_call() -> None:
    with pytest.raises(NvmlFailed, match=r"nvmlDeviceGetUUID: NVML says 'NVML Error with code 15'"):
        NvidiaMl(SimulatedNvml(SimulatedGpu(MODELS["H100"]), broken={"nvmlDeviceGetUUID": 15})).gpus()
    with pytest.raises(NvmlFailed, match="nvmlInit"):
        NvidiaMl(SimulatedNvml(broken={"nvmlInit": 999}))
    nvml = NvidiaMl(SimulatedNvml(gpu_in_mig_mode("H100"), broken={"nvmlDeviceGetMigDeviceHandleByIndex": 15}))
    with pytest.raises(NvmlFailed, match="nvmlDeviceGetMigDeviceHandleByIndex"):
        nvml.gpus()


def test_the_library_has_every_name_that_is_used() -> None:
    """The simulated library is only worth something as long as it has the real one's names."""
    import pynvml

    used = [name for name in dir(SimulatedNvml) if name.startswith("nvml")]
    assert [name for name in used if not hasattr(pynvml, name)] == []
    assert (pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND) == (3, 13)
    assert (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND) == (9, 12)
    assert (pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_CLOCK_SM, pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS) == (6, 1, 3)
    assert pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE == 4
    reasons = ("SW_POWER_CAP", "SW_THERM_SLOWDOWN", "HW_THERM_SLOWDOWN", "HW_POWER_BRAKE_SLOWDOWN")
    fields = [getattr(pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{reason}") for reason in reasons]
    assert fields == [74, 269, 270, 271]


@pytest.mark.parametrize(
    ("visible", "index"),
    [
        (None, 0),
        ("1", 1),
        ("1,0", 1),
        (PAIR[1].uuid, 1),
        ("GPU-00000001", 1),
        ("MIG-00000001-0000-5000-8000-000000000001", 1),
    ],
)
def test_the_worker_has_the_first_gpu_that_is_named(
    visible: str | None, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpu(NvidiaMl(SimulatedNvml(*PAIR)).gpus()).index == index


@pytest.mark.parametrize("visible", ["", "-1", "2", "GPU-0000000", "GPU-77", "MIG-00000001", "H200"])
def test_a_name_that_means_no_one_gpu_is_refused(visible: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(ShareUnavailable, match=f"CUDA_VISIBLE_DEVICES='{visible}' does not name one GPU"):
        visible_gpu(NvidiaMl(SimulatedNvml(*PAIR)).gpus())


def test_a_driver_without_a_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(ShareUnavailable, match="sees no GPU"):
        visible_gpu(NvidiaMl(SimulatedNvml()).gpus())


def test_the_device_is_known_by_what_decides_its_speed() -> None:
    simulated = SimulatedGpu(MODELS["H200"])
    (gpu,) = NvidiaMl(SimulatedNvml(simulated)).gpus()
    device = gpu_device(gpu, simulated_driver(simulated).l2_bytes())
    assert device.key == "cuda-sm_90-132u-140gib-l2.61440kib"
    assert device.label == "NVIDIA H200"


def test_in_mig_mode_it_is_another_device_whose_cache_nobody_tells() -> None:
    (gpu,) = NvidiaMl(SimulatedNvml(gpu_in_mig_mode("H200", ("1g", 0)))).gpus()
    assert gpu_device(gpu, 7 << 20).key == "cuda-sm_90-132u-140gib-l2.0kib"
