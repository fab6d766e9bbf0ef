"""CUDA's driver over a simulated binding: what it reads, in which order, and how its errors are told."""

import itertools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fractune_core.cuda import UNKNOWN
from fractune_core.errors import ShareUnavailable
from fractune_workers.children.measuring import roof, setup
from fractune_workers.children.measuring.setup import AnchorShape, GpuAnchor, anchor_shape
from fractune_workers.cuda import driver
from fractune_workers.cuda.driver import CudaDriver, DriverFailed, GpuRates, GreenContext, open_driver
from tests.support.hardware.simulated_cuda import SimulatedCuda, Staged, simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu


@pytest.fixture
def h200() -> SimulatedGpu:
    return SimulatedGpu(MODELS["H200"])


@pytest.fixture(autouse=True)
def every_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_SM_PARTITION"):
        monkeypatch.delenv(name, raising=False)


def test_it_tells_what_cuda_shows(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200)
    assert not driver.is_mps_client()
    assert driver.sm_count() == 132
    assert driver.memory_bytes() == 143_771 << 20
    assert driver.device_uuid() == h200.uuid
    assert driver.l2_bytes() == 60 << 20


def test_a_kernel_meets_every_sm_and_its_memory_is_given_back(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200)
    assert [driver.count_sms() for _ in range(2)] == [132, 132]
    calls: list[str] = driver.cuda.calls
    assert calls.count("cuMemAlloc") == calls.count("cuMemFree") == 2
    assert calls.count("cuModuleLoadData") == 1


def test_a_green_context_is_rounded_up_and_its_kernels_stay_on_it(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200)
    for asked, granted in ((1, 8), (8, 8), (9, 16), (30, 32), (128, 128)):
        context = GreenContext(driver, asked)
        assert (context.sm_count(), context.step) == (granted, 8)
        assert context.owns_its_stream()
        assert driver.count_sms(context.stream) == granted
        assert driver.count_sms() == 132
        context.close()


def test_a_kernel_is_waited_for_before_its_memory_is_read(h200: SimulatedGpu) -> None:
    """The copy alone would not: the stream of a green context and the NULL stream do not wait for each other."""
    driver = simulated_driver(h200)
    context = GreenContext(driver, 16)
    unwaited = SimulatedCuda(h200)
    unwaited.cuStreamSynchronize = lambda _stream: (0,)  # type: ignore[method-assign, assignment]  # the wait that is left out
    assert driver.count_sms(context.stream) == 16
    driver.cuda.cuStreamSynchronize = unwaited.cuStreamSynchronize
    assert driver.count_sms(context.stream) == 1  # zeros: memory that no kernel has written to


def test_the_primary_context_comes_before_a_green_one(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200)
    GreenContext(driver, 8)
    calls: list[str] = driver.cuda.calls
    assert calls.index("cuDevicePrimaryCtxRetain") < calls.index("cuCtxSetCurrent") < calls.index("cuGreenCtxCreate")


def test_more_sms_than_can_be_split_off_say_what_to_do(h200: SimulatedGpu) -> None:
    with pytest.raises(ShareUnavailable, match="CUDA cannot split 129 of 132 SMs off; ask for 128 at most"):
        GreenContext(simulated_driver(h200), 129)


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        (805, "CUDA_ERROR_MPS_CONNECTION_FAILED", "control daemon runs as this user"),
        (807, "CUDA_ERROR_MPS_SERVER_NOT_READY", "until every affected client has ended"),
        (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION", "CUDA_MPS_SM_PARTITION has to name one"),
        (999, "CUDA_ERROR_UNKNOWN", "Xid"),
        (100, "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES"),
        (1, "CUDA_ERROR_INVALID_VALUE", "nvidia-smi"),
    ],
)
def test_an_error_has_its_number_its_name_and_what_to_do(h200: SimulatedGpu, code: int, name: str, says: str) -> None:
    with pytest.raises(DriverFailed, match=rf"cuInit: CUDA error {code} \({name}\); .*{says}") as failure:
        simulated_driver(h200, Staged(errors={"cuInit": code}))
    assert failure.value.code == code
    assert isinstance(failure.value, ShareUnavailable)


def test_every_error_of_mps_has_its_own_advice() -> None:
    advice = [DriverFailed.of("cuInit", code, "NAME") for code in range(805, 811)]
    assert len({str(error).partition(";")[2] for error in advice}) == 6
    assert not any(UNKNOWN in str(error) for error in advice)


def test_memory_is_given_back_after_a_failed_launch(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200, Staged(errors={"cuLaunchKernel": 999}))
    with pytest.raises(DriverFailed, match="cuLaunchKernel"):
        driver.count_sms()
    assert driver.cuda.calls[-1] == "cuMemFree"


def test_a_driver_that_tvm_cannot_use_is_named_before_cuda_starts(h200: SimulatedGpu) -> None:
    older = SimulatedCuda(h200, Staged(version=12_080))
    with pytest.raises(DriverFailed, match="serves CUDA 12 only, and TVM needs CUDA 13; install driver 580 or newer"):
        CudaDriver(older)
    assert "cuInit" not in older.calls


def test_no_libcuda_is_told_as_such() -> None:
    class WithoutLibrary:
        def cuDriverGetVersion(self) -> Any:  # noqa: N802  CUDA's name
            raise RuntimeError('"cuda" is an NVIDIA driver library')

    with pytest.raises(DriverFailed, match=r"cannot be called .*install driver 580"):
        CudaDriver(WithoutLibrary())


def test_no_driver_on_this_machine_is_told_as_such() -> None:
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(DriverFailed, match=r"driver 580 or newer|install 'fractune"):
        open_driver()


def test_the_binding_has_every_name_that_is_used(h200: SimulatedGpu) -> None:
    """The simulated binding is only worth something as long as it has the real one's names."""
    from cuda.bindings import driver as binding

    driver = simulated_driver(h200)
    for read in (driver.is_mps_client, driver.memory_bytes, driver.device_uuid, driver.l2_bytes, driver.wait):
        read()
    context = GreenContext(driver, 8)
    assert context.owns_its_stream()
    driver.count_sms(context.stream)
    GpuAnchor(driver, context.stream, 132).seconds()
    context.close()
    missing = {name for name in driver.cuda.calls if not hasattr(binding, name)}
    assert missing == set()
    for enum in ("CUdevice_attribute", "CUdevResourceType", "CUgreenCtxCreate_flags", "CUstream_flags", "CUresult"):
        ours = getattr(driver.cuda, enum, None) or getattr(
            __import__("tests.support.hardware.simulated_cuda", fromlist=[enum]), enum
        )
        assert {each.name: int(each) for each in ours} == {
            each.name: int(getattr(getattr(binding, enum), each.name)) for each in ours
        }


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("module", [driver, setup, roof])
def test_the_kernels_assemble(arch: str, module: Any, tmp_path: Path) -> None:
    ptxas = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if ptxas is None:
        pytest.skip("no ptxas: it comes with the CUDA toolkit")
    source, cubin = tmp_path / "kernel.ptx", tmp_path / "kernel.cubin"
    source.write_bytes(module.PTX.rstrip(b"\0"))
    subprocess.run([ptxas, f"-arch={arch}", str(source), "-o", str(cubin)], check=True)
    assert module.KERNEL.encode() in cubin.read_bytes()


def test_the_anchor_runs_on_the_confined_stream_and_its_time_is_that_of_one_run(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200, Staged(anchor_ms=0.1))
    context = GreenContext(driver, 32)
    assert GpuAnchor(driver, 0, 132).seconds() == pytest.approx(1e-4)
    confined = GpuAnchor(driver, context.stream, 132)
    assert confined.seconds() == pytest.approx(1e-4), "less work for fewer SMs"
    assert confined.seconds() == pytest.approx(1e-4)


def test_a_gpu_that_wakes_up_is_timed_once_it_is_awake(h200: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = GpuAnchor(simulated_driver(h200), 0, 132)
    waking_ms = itertools.chain([8.0] * 3, (each / 10 for each in range(40, 8, -1)), itertools.repeat(0.8))
    monkeypatch.setattr(asleep, "_repeat_ms", lambda: next(waking_ms))
    assert asleep.seconds() == pytest.approx(1e-4)


def test_a_gpu_that_never_keeps_still_is_timed_all_the_same(
    h200: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    restless = GpuAnchor(simulated_driver(h200), 0, 132)
    times_ms = list(itertools.islice(itertools.cycle([0.8, 1.6, 2.4]), 12))  # and no more: co-runners do not end soon
    monkeypatch.setattr(restless, "_repeat_ms", times_ms.pop)
    assert restless.seconds() == pytest.approx(2e-4, rel=0.5)


def test_a_fault_that_sticks_is_told_by_whatever_is_asked_next(h200: SimulatedGpu) -> None:
    driver = simulated_driver(h200, Staged(errors={"cuCtxSynchronize": 700}))
    with pytest.raises(
        DriverFailed, match=r"CUDA error 700 \(CUDA_ERROR_ILLEGAL_ADDRESS\); the process is lost to CUDA"
    ):
        driver.wait()


CACHES_MIB = {"T4": 4, "A100": 40, "L40S": 96, "H100": 50, "H200": 50, "B200": 126}
GPUS = {
    "T4": GpuRates(40, 64 * 1.59e9, 320e9),
    "A100": GpuRates(108, 64 * 1.41e9, 1.555e12),
    "L40S": GpuRates(142, 128 * 2.52e9, 864e9),
    "H100": GpuRates(132, 128 * 1.98e9, 3.35e12),
    "H200": GpuRates(132, 128 * 1.98e9, 4.8e12),
    "B200": GpuRates(148, 128 * 1.965e9, 8e12),
}


def launch_s(shape: AnchorShape, sms: int, gpu: GpuRates) -> float:
    """Seconds of the multiply-adds alone: 16 in each round of a thread, 256 threads a block."""
    return shape.blocks * 256 * 16 * shape.rounds / (gpu.multiply_adds_per_s * sms)


def bytes_per_s(shape: AnchorShape, sms: int, gpu: GpuRates) -> float:
    """At most, read and written."""
    return 2 * shape.bytes / launch_s(shape, sms, gpu)


@pytest.mark.parametrize("name", GPUS)
def test_the_anchors_of_a_full_gpu_ask_for_half_of_its_bandwidth(name: str) -> None:
    gpu = GPUS[name]
    for side_by_side in (1, 2, 3, 4, 7):
        sms = gpu.sms // side_by_side
        together = side_by_side * bytes_per_s(anchor_shape(sms, gpu), sms, gpu)
        assert 0.4 < together / gpu.memory_bytes_per_s <= 0.501


@pytest.mark.parametrize("name", GPUS)
def test_a_launch_takes_as_long_on_every_share_and_walks_through_more_than_the_cache_holds(name: str) -> None:
    gpu = GPUS[name]
    for percent in (10, 25, 50, 100):
        sms = gpu.sms * percent // 100
        shape = anchor_shape(sms, gpu)
        assert 100e-6 < launch_s(shape, sms, gpu) < 140e-6
        assert shape.places * shape.bytes > CACHES_MIB[name] << 20


def test_the_rates_are_those_that_cuda_tells() -> None:
    driver = simulated_driver(SimulatedGpu(MODELS["H100"]))
    rates = driver.rates(132)
    assert rates.sms == 132
    assert rates.multiply_adds_per_s == pytest.approx(128 * 1.98e9)
    assert rates.memory_bytes_per_s == pytest.approx(3.35e12, rel=0.01)


def test_a_gpu_that_does_not_tell_its_rates_counts_as_an_h100() -> None:
    unknown = simulated_driver(SimulatedGpu(MODELS["H100"]), Staged(memory_khz=0)).rates(132)
    assert unknown.memory_bytes_per_s == 0
    assert anchor_shape(33, unknown) == anchor_shape(33, GPUS["H100"])
