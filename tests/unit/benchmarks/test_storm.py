"""The storm of faults: the kernels that have one, and the verdict on how all candidates have ended."""

from __future__ import annotations

import pytest

from benchmarks.gpu.faulty import ADDRESS, CORRUPT, GOOD, HANG, spoilt
from benchmarks.gpu.storm import judged
from fractune_core.records import Status
from fractune_workers.measuring.session import Outcome

SOURCE = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out) {
  out[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}
"""


@pytest.mark.parametrize(
    ("kind", "has"), [(ADDRESS, "(464ull) = 1;"), (HANG, "clock64() != 7ll"), (CORRUPT, "return;")]
)
def test_a_fault_is_written_into_the_kernel_and_not_into_its_declaration(kind: str, has: str) -> None:
    changed = spoilt(SOURCE, kind, 7)
    declaration, definition = changed.split(";\n", 1)
    assert changed.startswith(declaration)
    assert SOURCE.startswith(declaration)
    assert definition.index("{") < definition.index(has) < definition.index("out[threadIdx.x] = a")
    assert spoilt(SOURCE, kind, 8) != changed


def test_what_corrupts_memory_writes_beyond_each_tensor_and_into_it() -> None:
    changed = spoilt(SOURCE, CORRUPT, 7)
    for name in ("a", "b", "out"):
        assert f"((volatile float*){name})[threadIdx.x] = 7.0f;" in changed
        assert f"((volatile float*){name})[65536 + threadIdx.x % 32] = 7.0f;" in changed


def test_a_good_candidate_is_left_as_it_is() -> None:
    assert spoilt(SOURCE, GOOD, 7) == SOURCE
    with pytest.raises(ValueError, match="no kernel"):
        spoilt("int x;", HANG, 7)


KINDS = {"0": GOOD, "1": ADDRESS, "2": GOOD}
TRIALS = {
    "0": [Outcome(Status.OK)],
    "1": [Outcome(Status.CRASHED, "illegal memory access; it was alone on the device")],
    "2": [Outcome(Status.OK)],
}


def test_a_storm_that_was_weathered() -> None:
    verdict = judged(KINDS, TRIALS)
    assert not verdict.wrong
    assert (verdict.accounted, verdict.guilty_named, verdict.innocent_blamed) == (3, 1, 0)


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        ({"0": []}, "0 (good): no outcome"),
        ({"0": [Outcome(Status.OK)] * 2}, "0 (good): ok, ok"),
        ({"2": [Outcome(Status.CRASHED, "a neighbour did it")]}, "2 (good): crashed a neighbour did it"),
        ({"1": [Outcome(Status.OK)]}, "1 (illegal address): ok"),
    ],
)
def test_a_candidate_that_ends_in_another_way_than_it_has_to_is_named(
    trials: dict[str, list[Outcome]], says: str
) -> None:
    assert judged(KINDS, TRIALS | trials).wrong == (says,)


def test_an_innocent_that_is_blamed_is_counted() -> None:
    assert judged(KINDS, TRIALS | {"2": [Outcome(Status.CRASHED, "why")]}).innocent_blamed == 1
