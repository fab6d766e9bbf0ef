"""The anchors of measurers side by side leave each other enough of the GPU's memory, by data sheets."""

from __future__ import annotations

import pytest

from fractune_workers.cuda.anchor import AnchorShape, anchor_shape
from fractune_workers.cuda.driver import GpuRates
from tests.support.hardware.simulated_cuda import Staged, simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu

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
