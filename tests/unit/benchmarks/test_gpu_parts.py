"""What the parts of the suite make of what their commands found, from reports as the commands write them. No GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import against_stock, checks, faults, matrix, noise, shares, storm
from benchmarks.gpu.faulty import ADDRESS, CORRUPT, FAULTS, GOOD, HANG, spoilt
from benchmarks.gpu.storm import judged
from fractune_core.records import Status
from fractune_workers.measuring.session import Outcome
from tests.support.hardware.simulated_mps import H200
from tests.support.paths import REPOSITORY

TESTS = REPOSITORY / "tests"
SOURCE = """
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out);
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ a, float* __restrict__ b, float* out) {
  out[threadIdx.x] = a[threadIdx.x] * b[threadIdx.x];
}
"""


def test_tests_for_a_gpu_are_found_by_their_marker() -> None:
    found = checks.marked_files(TESTS)
    assert TESTS / "unit" / "workers" / "gpu" / "test_on_a_gpu.py" in found
    assert TESTS / "unit" / "workers" / "confinement" / "test_contract.py" in found
    assert TESTS / "unit" / "core" not in {path.parent for path in found}


def test_a_report_of_pytest_is_read(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="a" name="one"/>'
        '<testcase classname="a" name="two"><failure message="assert 1 == 2&#10;more">trace</failure></testcase>'
        '<testcase classname="a" name="three"><skipped message="no MIG"/></testcase>'
        '<testcase classname="a" name="four"><error message="no fixture"/></testcase></testsuite></testsuites>'
    )
    assert checks.read_report(path) == {
        "one": ("passed", ""),
        "two": ("failed", "assert 1 == 2 more"),
        "three": ("skipped", "no MIG"),
        "four": ("failed", "no fixture"),
    }


def offer(share: str, units: int | None, proof: str, refusal: str = "") -> dict[str, Any]:
    return {"share": share, "units": units, "proof": proof, "refusal": refusal}


def test_shares_are_counted_by_how_their_proof_went() -> None:
    proved = offer("mps:25", 32, "SM count, %smid")
    absent = offer("mig", None, "not proved", "not in MIG mode")
    found = shares.judged([proved, absent], {"label": "a GPU"})
    assert found.line == ("1 of 1 shares that can be had are proved, SMs granted: mps:25 32; not to be had here: mig")
    assert found.faults == ()
    leaking = offer("green:8", None, "proof failed", "a kernel ran on 132 SMs")
    assert shares.judged([proved, leaking], {}).faults == ("green:8: a kernel ran on 132 SMs",)
    assert shares.judged([absent], {}).faults == ("nothing was proved",)


def setting(measurers: int, secs: float, **changes: Any) -> dict[str, Any]:
    usual = {"policy": "trial", "builds": False, "tau": 0.95, "regret": 0.004, "spread_p90": 0.01}
    return {**usual, "measurers": measurers, "secs_per_candidate": secs, **changes}


def test_noise_sets_four_measurers_against_one() -> None:
    settings = [setting(1, 9.0, policy="validation"), setting(1, 1.6), setting(4, 0.5), setting(4, 9.0, builds=True)]
    line = noise.line_of({"settings": settings, "advice": {"measurers": 4}})
    assert line.startswith("4 measurers at mps:25 make 3.20x the measurements/s of one (bar 3), tau 0.950 (bar 0.9)")
    assert line.endswith("advice: 4 at the same time")
    unsure = noise.line_of({"settings": [setting(1, 1.0), setting(4, 1.0, tau=None)], "advice": {"measurers": 1}})
    assert "tau none" in unsure
    few = {"settings": [setting(1, 1.0)], "notes": ["4 measurers were not tried: too many"]}
    assert noise.line_of(few) == "4 measurers were not tried: too many"


def test_stock_is_given_fewer_trials_when_there_is_less_time() -> None:
    counts = [against_stock.trials_for(seconds) for seconds in (0.0, 60.0, 280.0, 1200.0, 1e6)]
    assert counts == sorted(counts)
    assert counts[0] == 32
    assert counts[-1] == 384
    assert all(count % 32 == 0 for count in counts)


def test_a_side_that_never_got_there_says_so() -> None:
    ratios = {"rate": 5.5, "time_to_quality": None, "latency": 0.987}
    line = against_stock.line_of("full", {"pairs": [{"ratios": ratios, "measurers_of_ours": 1}]})
    assert line == (
        "full, 1 measurer(s), over stock: trials/s 5.50x (bar 5), time to quality never (bar 0.1), "
        "final latency 0.99 (bar 0.6)"
    )


def test_shares_of_the_matrix_are_what_the_gpu_can_give() -> None:
    assert matrix.mechanisms(H200) == {
        "mps": ("mps:25", "mps:50", "mps:100"),
        "green": ("green:32", "green:64", "green:128"),
    }
    ampere = replace(H200, capability=(8, 0), sms=108)
    assert matrix.mechanisms(ampere)["green"] == ("green:26", "green:54", "green:108")


def cell(tuned_at: str, run_at: str, loss: float, *, tie: bool = False) -> dict[str, Any]:
    return {"tuned_at": tuned_at, "run_at": run_at, "loss": loss, "tie": tie}


def test_what_a_schedule_loses_elsewhere_counts_only_beyond_the_noise() -> None:
    own, untuned = cell("mps:25", "mps:25", 0.0), cell("untuned", "mps:25", 9.0)
    noisy, real = cell("mps:50", "mps:25", 0.3, tie=True), cell("mps:100", "mps:25", 0.12)
    assert matrix.worst({"cells": [own, untuned, noisy, real]}) == "tuned at mps:100, run at mps:25 loses 12.0%"
    assert matrix.worst({"cells": [own, untuned, noisy]}) == "no schedule loses at another share, beyond the noise"


# ---- the storm -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "guilty"), [(20, 3), (60, 3), (120, 6), (240, 12)])
def test_one_in_twenty_has_a_fault_and_each_fault_is_there(count: int, guilty: int) -> None:
    kinds = storm.storm(count, seed=1)
    assert len(kinds) == count
    assert sum(kind != GOOD for kind in kinds.values()) == guilty
    assert set(kinds.values()) == {GOOD, *FAULTS}


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


KINDS = {"0": GOOD, "1": ADDRESS, "2": HANG, "3": CORRUPT, "4": GOOD}
TRIALS = {
    "0": [Outcome(Status.OK)],
    "1": [Outcome(Status.CRASHED, "illegal memory access; it was alone on the device")],
    "2": [Outcome(Status.RUN_TIMEOUT, "no answer within 30 s")],
    "3": [Outcome(Status.OK)],
    "4": [Outcome(Status.OK)],
}
FINALS = {"untuned": Outcome(Status.OK), "4": Outcome(Status.OK), "3": Outcome(Status.WRONG_OUTPUT, "differs by 9e+02")}


def test_a_storm_that_was_weathered() -> None:
    verdict = judged(KINDS, TRIALS, FINALS)
    assert verdict.is_good
    assert (verdict.accounted, verdict.guilty_named, verdict.guilty, verdict.innocent_blamed) == (5, 3, 3, 0)
    assert faults.line_of(vars(verdict)) == (
        "100% of 5 candidates accounted for (bar 100%), 3 of 3 guilty ones named, 0 of the others blamed"
    )


@pytest.mark.parametrize(
    ("trials", "finals", "says"),
    [
        ({"0": []}, {}, "0 (good): no outcome"),
        ({"0": [Outcome(Status.OK)] * 2}, {}, "0 (good): ok, ok"),
        ({"4": [Outcome(Status.CRASHED, "a neighbour did it")]}, {}, "4 (good): crashed a neighbour did it"),
        ({"1": [Outcome(Status.OK)]}, {}, "1 (illegal address): ok"),
        ({"2": [Outcome(Status.CRASHED, "x")]}, {}, "2 (hang): crashed x"),
        ({}, {"3": Outcome(Status.OK)}, "3 (corrupted memory) in the final: ok"),
        ({}, {"untuned": Outcome(Status.CRASHED, "y")}, "untuned (good) in the final: crashed y"),
    ],
)
def test_a_candidate_that_ends_in_another_way_than_it_has_to_is_told(
    trials: dict[str, list[Outcome]], finals: dict[str, Outcome], says: str
) -> None:
    verdict = judged(KINDS, TRIALS | trials, FINALS | finals)
    assert verdict.wrong == (says,)
    assert not verdict.is_good


def test_an_innocent_that_is_blamed_is_counted() -> None:
    assert judged(KINDS, TRIALS | {"4": [Outcome(Status.CRASHED, "why")]}, FINALS).innocent_blamed == 1
