"""The roofline model: what a share can attain, and how much of it a time reaches."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from fractune_core.analysis.roofline import (
    DOUBTFUL,
    LAUNCH_BOUND,
    Arithmetic,
    Roof,
    attainable_s,
    gflops,
    is_launch_bound,
    is_memory_bound,
    raised,
    reached,
    roof_part,
)

ROOF = Roof(gflops=100.0, gb_per_s=10.0, cache_bytes=32 << 20)
CONVOLUTION = Arithmetic(flops=2e9, io_bytes=4 << 20)
"""20 ms of arithmetic, 0.4 ms of traffic"""
STREAM = Arithmetic(flops=1e8, io_bytes=400_000_000)
"""1 ms of arithmetic, 40 ms of traffic"""

amounts = st.floats(1.0, 1e13)
rates = st.floats(0.1, 1e5)
roofs = st.builds(Roof, rates, rates, st.integers(0, 1 << 32), read_gb_per_s=rates)
works = st.builds(Arithmetic, amounts, st.integers(1, 1 << 40), st.integers(0, 1 << 40))


def test_the_slower_of_arithmetic_and_traffic_decides() -> None:
    assert attainable_s(CONVOLUTION, ROOF) == pytest.approx(0.02)
    assert attainable_s(STREAM, ROOF) == pytest.approx(0.04)


@pytest.mark.parametrize(("written_bytes", "secs"), [(0, 0.02), (60_000_000, 0.029), (400_000_000 // 3, 0.04)])
def test_the_bandwidth_goes_from_that_of_reads_to_that_of_the_triad(written_bytes: int, secs: float) -> None:
    reading = replace(ROOF, read_gb_per_s=20.0)
    work = replace(STREAM, written_bytes=written_bytes)
    assert attainable_s(work, reading) == pytest.approx(secs)
    assert attainable_s(replace(STREAM, written_bytes=400_000_000), reading) == pytest.approx(0.04)
    assert reached(work, raised(work, reading, secs / 1.2), secs / 1.2) == pytest.approx(1.0)


def test_the_limit_is_arithmetic_or_memory_and_may_not_be_known() -> None:
    weights = replace(STREAM, flops=0.0)
    works = (CONVOLUTION, STREAM, weights, Arithmetic(flops=1e5, io_bytes=4 << 20), None)
    assert [is_memory_bound(work, ROOF, 0.05) for work in works] == [False, True, True, None, None]
    assert is_memory_bound(STREAM, ROOF, 0.01) is None, "in doubt"
    assert attainable_s(weights, ROOF) == pytest.approx(0.04)
    assert raised(weights, ROOF, 0.035) == ROOF, "its operations are not known"


def test_traffic_that_may_stay_in_the_cache_has_no_known_limit() -> None:
    in_cache = Arithmetic(flops=1e5, io_bytes=4 << 20)
    assert attainable_s(in_cache, ROOF) is None
    assert reached(in_cache, ROOF, 1e-3) is None


@pytest.mark.parametrize("work", [Arithmetic(0.0, 100), Arithmetic(1e9, 0)])
def test_an_estimate_that_is_missing_concludes_nothing(work: Arithmetic) -> None:
    assert attainable_s(work, ROOF) is None


def test_what_is_not_known_is_no_limit() -> None:
    assert reached(None, ROOF, 1.0) is None
    assert reached(CONVOLUTION, None, 1.0) is None
    assert reached(CONVOLUTION, ROOF, None) is None
    assert reached(CONVOLUTION, ROOF, math.inf) is None
    assert roof_part(None, 0.02) is None
    assert roof_part(0.02, None) is None


def test_a_time_far_below_the_limit_says_that_the_estimate_is_wrong() -> None:
    assert roof_part(0.02, 0.02 / 1.29) == pytest.approx(1.29)
    assert roof_part(0.02, 0.02 / 1.31) is None


@pytest.mark.parametrize("work", [CONVOLUTION, STREAM])
def test_a_run_that_is_faster_than_its_roof_raises_it(work: Arithmetic) -> None:
    measured_s = (attainable_s(work, ROOF) or 0.0) / 1.2
    higher = raised(work, ROOF, measured_s)
    assert reached(work, ROOF, measured_s) == pytest.approx(1.2)
    assert reached(work, higher, measured_s) == pytest.approx(1.0)
    assert (higher.gflops > ROOF.gflops, higher.gb_per_s > ROOF.gb_per_s) == (work is CONVOLUTION, work is STREAM)
    assert higher.cache_bytes == ROOF.cache_bytes


@pytest.mark.parametrize("measured_s", [0.021, 0.02 / 1.31, math.inf])
def test_a_run_that_is_slower_or_in_doubt_leaves_its_roof(measured_s: float) -> None:
    assert raised(CONVOLUTION, ROOF, measured_s) == ROOF


def test_operations_a_second() -> None:
    assert gflops(CONVOLUTION, 0.04) == pytest.approx(50.0)
    assert gflops(CONVOLUTION, math.inf) is None
    assert gflops(Arithmetic(0.0, 10), 1.0) is None
    assert gflops(None, 1.0) is None


def test_a_gpu_has_a_launch_floor_and_no_attainable_time() -> None:
    floor = Roof(0.0, 0.0, 0, launch_s=3e-6)
    assert attainable_s(CONVOLUTION, floor) is None
    assert raised(CONVOLUTION, floor, 1e-3) == floor
    assert (floor.has_rates, ROOF.has_rates) == (False, True)


def test_of_two_launch_floors_the_smaller_known_one_is_kept() -> None:
    low, high = replace(ROOF, launch_s=3e-6), replace(ROOF, launch_s=5e-6)
    assert high.raised_to(low) == low.raised_to(high) == low.raised_to(ROOF) == ROOF.raised_to(low) == low
    assert ROOF.raised_to(ROOF).launch_s == 0.0


def test_a_time_near_its_launches_is_called_so_and_what_is_not_known_is_not() -> None:
    assert is_launch_bound(LAUNCH_BOUND * 3e-6, 3e-6) is True
    assert is_launch_bound(LAUNCH_BOUND * 3.1e-6, 3e-6) is False
    assert is_launch_bound(1e-6, 3e-6) is True, "below the floor"
    unknown = ((None, 3e-6), (math.inf, 3e-6), (3e-6, None), (3e-6, 0.0))
    assert [is_launch_bound(*each) for each in unknown] == [None] * 4


@given(works, roofs, st.floats(1e-9, 1e4))
def test_no_unit_does_more_than_its_peak_at_the_attainable_time(work: Arithmetic, roof: Roof, secs: float) -> None:
    least_s = attainable_s(work, roof)
    if least_s is None:
        assert work.io_bytes <= roof.cache_bytes
        return
    assert work.flops / least_s <= roof.gflops * 1e9 * (1 + 1e-9)
    assert work.io_bytes / least_s <= max(roof.gb_per_s, roof.read_gb_per_s) * 1e9 * (1 + 1e-9)
    part = reached(work, roof, secs)
    assert (part is None) == (least_s / secs > DOUBTFUL)
