"""What devices can be divided into, and layouts as paths along an axis."""

from __future__ import annotations

import functools
import math

import pytest

from fractune_core.errors import BadRequest
from fractune_core.planning.devices import GPUS, DeviceType, Partitioning, cpu_type, gpu_type
from tests.support.mig_layouts import layouts

MIG = gpu_type("A100-80GB", Partitioning.MIG)
MPS = gpu_type("H100-80GB", Partitioning.MPS)
GREEN = gpu_type("H200-141GB", Partitioning.GREEN)


def paths(device: DeviceType) -> int:
    """How many ways there are along the axis, gaps included."""

    @functools.cache
    def from_place(place: int) -> int:
        if place == device.length:
            return 1
        over_parts = sum(from_place(place + part.length) for part in device.parts if place in part.places)
        return over_parts + from_place(place + 1)

    return from_place(0)


@pytest.mark.parametrize("gpu", [gpu.name for gpu in GPUS])
def test_paths_along_the_slices_of_memory_are_the_layouts(gpu: str) -> None:
    assert paths(gpu_type(gpu, Partitioning.MIG)) == len(layouts()) + 1  # and the GPU with nothing on it


@pytest.mark.parametrize("device", [MIG, MPS, GREEN, cpu_type(8)], ids=lambda each: each.partitioning.value)
def test_parts_lie_within_the_device_and_the_last_is_all_of_it(device: DeviceType) -> None:
    assert [part.units for part in device.parts] == sorted({part.units for part in device.parts})
    assert device.whole.units == device.units
    assert device.whole.places == (0,)
    for part in device.parts:
        assert part.places
        assert all(0 <= place <= device.length - part.length for place in part.places)
        assert part.memory_gib <= device.memory_gib


def test_any_parts_that_fit_are_a_path() -> None:
    """On a line the longest come first: 5 cores are 2 + 2 + 1 and 3 + 1 + 1 as well."""
    device = cpu_type(5)
    for lengths in ([2, 2, 1], [3, 1, 1], [4, 1], [5], [1] * 5, [3, 2]):
        at = 0
        for length in lengths:
            assert at in device.by_units[length].places
            at += length


def test_shares_have_units() -> None:
    assert [MIG.units_of(share) for share in ("3g", "mig:3g.40gb", "mig:7g.80gb")] == [3, 3, 7]
    assert [MPS.units_of(share) for share in ("mps:25", "mps:33", "full")] == [33, 43, 132]
    assert (MPS.units_of("mps:25..50"), cpu_type(4).units_of("cpu:2..4")) == (33, 2)
    assert [GREEN.units_of(share) for share in ("green:16", "full")] == [16, 132]
    assert cpu_type(4).units_of("cpu:3") == 3
    with pytest.raises(BadRequest, match="share 'cpu:1500m' is not a part of"):
        cpu_type(4).units_of("cpu:1500m")
    assert (MIG.whole.share, MPS.whole.share, GREEN.whole.share) == ("mig:7g.80gb", "mps:100", "full")


def test_a_share_of_another_device_is_refused() -> None:
    others = {MIG: ["mig:3g.71gb", "mps:25"], MPS: ["green:8", "3g"], GREEN: ["green:200"], cpu_type(2): ["cpu:3"]}
    for device, share in ((device, share) for device, shares in others.items() for share in shares):
        with pytest.raises(BadRequest, match=f"share '{share}'"):
            device.units_of(share)


def test_an_unknown_gpu_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BadRequest, match="gpu 'B300' is unknown; write A100-40GB, A100-80GB, H100-80GB, H200-141GB"):
        gpu_type("B300", Partitioning.MIG)
    with pytest.raises(BadRequest, match="partitioning 'cpu' is for CPUs"):
        gpu_type("A100-40GB", Partitioning.CPU)
    for cores in (0, -1, 100_000):
        with pytest.raises(BadRequest, match=f"cores is {cores}"):
            cpu_type(cores)


def test_what_a_gpu_has_is_known() -> None:
    assert [part.share for part in gpu_type("h200-141gb", Partitioning.MIG).parts] == [
        *("mig:1g.18gb", "mig:2g.35gb", "mig:3g.71gb", "mig:4g.71gb", "mig:7g.141gb")
    ]
    assert (MIG.isolates, MPS.isolates, cpu_type(1).kind, MIG.kind) == (True, False, "cpu", "cuda")
    assert math.isinf(cpu_type(1).memory_gib)
