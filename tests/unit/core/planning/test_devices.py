"""What devices can be divided into, MIG's placement table, and plans that others published."""

import functools
import math

import pytest
from hypothesis import given, strategies as st

from benchmarks.support.published import PUBLISHED_GPUS, SETS, overlaps, parvagpu_deployments, parvagpu_request
from fractune_core.errors import BadRequest
from fractune_core.planning.devices import (
    BY_NAME,
    GPUS,
    PLAIN,
    PROFILES,
    DeviceType,
    Partitioning,
    Placed,
    Profile,
    cpu_type,
    gpu_type,
    placements,
)
from fractune_core.planning.planner import make_plan
from tests.support.mig_layouts import broken_rule, layouts, maximal

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


ALL = layouts()


def names(layout: frozenset[Placed]) -> tuple[str, ...]:
    return tuple(sorted(profile.name for profile, _ in layout))


def test_the_layouts_of_a_gpu_are_those_that_are_known() -> None:
    """297 layouts, 19 of them maximal, of 14 kinds: counted from NVIDIA's placements by hand."""
    found = ALL
    assert len(found) == 297
    assert len(maximal(found)) == 19
    kinds = {names(each) for each in maximal(found)}
    assert len(kinds) == 14
    assert ("1g", "1g", "2g", "3g") in kinds
    assert ("1g", "1g", "1g", "4g") in kinds


def test_every_layout_that_is_listed_is_valid() -> None:
    for each in layouts(PROFILES):
        assert not broken_rule(list(each))


@given(st.lists(st.tuples(st.sampled_from(PLAIN), st.integers(0, 7)), min_size=1, max_size=7))
def test_a_layout_is_valid_exactly_when_it_is_listed(drawn: list[tuple[Profile, int]]) -> None:
    is_listed = frozenset(drawn) in ALL and len(set(drawn)) == len(drawn)
    assert is_listed is not bool(broken_rule(drawn))


@given(st.lists(st.sampled_from(PROFILES), min_size=1, max_size=7))
def test_every_placement_is_a_valid_layout(profiles: list[Profile]) -> None:
    for each in placements(profiles):
        assert not broken_rule(each)


UNITS = {1: 10, 2: 20, 3: 30, 4: 44, 5: 82, 6: 105}
"""fewest, with the fewest GPUs"""


@pytest.mark.parametrize("number", SETS)
def test_a_published_set_needs_no_more_gpus_than_published(number: int) -> None:
    plan = make_plan(parvagpu_request(number))
    assert len(plan.devices) <= PUBLISHED_GPUS[number]
    assert plan.units_used == UNITS[number]
    assert plan.is_proved
    for parts in plan.devices:
        assert not broken_rule([(BY_NAME[f"{part.units}g"], part.place) for part in parts])
    assert all(model.utilisation is not None and model.utilisation <= 1 + 1e-5 for model in plan.models)


def test_published_placements_overlap_on_most_gpus_though_their_sizes_fit() -> None:
    found = parvagpu_deployments()
    assert {number: len(gpus) for number, gpus in found.items()} == PUBLISHED_GPUS
    gpus = [[each.placed for each in gpu] for deployed in found.values() for gpu in deployed]
    wrong = [gpu for gpu in gpus if overlaps(gpu)]
    assert len(wrong) == 32
    for gpu in wrong:
        assert broken_rule(gpu) == "overlap"
        assert next(placements(sorted((profile for profile, _ in gpu), key=PROFILES.index)), None) is not None
