"""What the parts of the suite make of what their commands found, from reports as the commands write them. No GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import against_stock, checks, faults, matrix, noise, one_operator, quarter, shares, storm
from benchmarks.gpu.faulty import ADDRESS, CORRUPT, FAULTS, GOOD, HANG, spoilt
from benchmarks.gpu.part import Slice
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
    line = noise.line_of({"share": "mps:25", "settings": settings, "advice": {"measurers": 4}})
    assert line.startswith("4 measurers at mps:25 make 3.20x the measurements/s of one (bar 3), tau 0.950 (bar 0.9)")
    assert line.endswith("advice: 4 at the same time")
    few_ranked = [setting(1, 1.0), setting(4, 1.0, tau=None)]
    unsure = noise.line_of({"share": "green:32", "settings": few_ranked, "advice": {"measurers": 1}})
    assert "tau none" in unsure
    few = {"settings": [setting(1, 1.0)], "notes": ["4 measurers were not tried: too many"]}
    assert noise.line_of(few) == "4 measurers were not tried: too many"


def test_stock_is_given_fewer_trials_when_there_is_less_time() -> None:
    counts = [against_stock.trials_for(seconds) for seconds in (0.0, 60.0, 280.0, 1200.0, 1e6)]
    assert counts == sorted(counts)
    assert counts[0] == 16
    assert counts[-1] == 384
    assert all(count % 16 == 0 for count in counts)
    assert [against_stock.operators_for(count) for count in (16, 80, 128, 160, 384)] == [1, 1, 1, 2, 2]


def test_too_few_rounds_decide_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ratios = {"rate": 5.5, "time_to_quality": 0.1, "latency": 0.987}
    pair = {"ratios": ratios, "measurers_of_ours": 1, "stock": {"history": []}, "ours": {"history": []}}
    monkeypatch.setattr(against_stock, "_pair", lambda *_: {"pairs": [pair]})
    short, usual = (
        against_stock.run(Slice(seconds, 0.0, H200, tmp_path, tmp_path / str(seconds))) for seconds in (120.0, 450.0)
    )
    assert short.line.startswith("NOT DECIDED, 2 rounds of each operator are below 5: full, 1 measurer(s)")
    assert usual.line.startswith("full, 1 measurer(s)")
    assert (short.data["decided"], usual.data["decided"]) == (False, True)


def test_a_side_that_never_got_there_says_so() -> None:
    ratios = {"rate": 5.5, "time_to_quality": None, "latency": 0.987}
    line = against_stock.line_of("full", {"pairs": [{"ratios": ratios, "measurers_of_ours": 1}]})
    assert line == (
        "full, 1 measurer(s), over stock: trials/s 5.50x (bar 5), time to quality never (bar 0.1), "
        "final latency 0.99 (bar 0.6)"
    )


def test_shares_of_the_matrix_are_what_the_gpu_can_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "largest_green_share", lambda gpu: gpu.sms // 8 * 8 if gpu.sms > 108 else gpu.sms)
    assert matrix.mechanisms(H200) == {
        "mps": ("mps:25", "mps:50", "mps:100"),
        "green": ("green:32", "green:64", "green:128"),
    }
    ampere = replace(H200, capability=(8, 0), sms=108)
    assert matrix.mechanisms(ampere)["green"] == ("green:26", "green:54", "green:108")


def test_without_mps_a_quarter_is_a_green_context_and_its_reason_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarter, "refusal_of", lambda _share: "")
    assert quarter.quarter_of(H200) == quarter.Quarter("mps:25")
    assert quarter.quarter_of(H200).note == ""
    monkeypatch.setattr(quarter, "refusal_of", lambda _share: "no control program")
    assert quarter.quarter_of(H200).share == "green:32"
    assert quarter.quarter_of(H200).note == "; skipped: mps:25, green:32 in its place (no control program)"


def test_an_operator_that_is_hardly_longer_than_a_launch_is_marked() -> None:
    found = {"untuned_s": 9e-4, "tuned_s": 3e-4, "operator_s": 2.5e-4, "trials": {"full": 64}, "max_error": 1e-6}
    assert one_operator.line_of("full", {**found, "launch_s": 4e-6, "launch_bound": False}) == (
        "full: model 900 us untuned, 300 us tuned, operator 250 us by 64 trials, error 1.0e-06, launch floor 4.0 us"
    )
    assert "launch floor 200.0 us, LAUNCH-BOUND" in one_operator.line_of(
        "full", {**found, "launch_s": 2e-4, "launch_bound": True}
    )
    assert one_operator.is_wrong({"max_error": float("nan")})


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
        ({}, {"3": Outcome(Status.OK)}, "3 (corrupted memory) in the validation: ok"),
        ({}, {"untuned": Outcome(Status.CRASHED, "y")}, "untuned (good) in the validation: crashed y"),
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
