"""The experiment without a machine: who measures where, what follows what, and what the report says."""

import contextlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.errors import FractuneError, ShareUnavailable
from fractune_core.operators import DIRECT
from fractune_core.records import FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY, Disturbance, Status, TimingPolicy
from fractune_core.shares import Share
from fractune_workers.calibration import experiment as pool_module
from fractune_workers.calibration.candidates import Candidates, SampleOperator
from fractune_workers.calibration.experiment import Experiment, assign_cores, settings, start_pool
from fractune_workers.calibration.report import Pass, Setting, report
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.locks.gpu_slots import ALONE
from fractune_workers.measuring.session import Outcome
from tests.support.hardware.simulated_session import TARGET, SimulatedGpuMachine


@pytest.mark.parametrize(
    ("share", "count", "available", "where"),
    [
        ("cpu:1", 2, [0, 1], [[0], [1]]),
        ("cpu:2", 2, [4, 5, 6, 7], [[4, 5], [6, 7]]),
        ("cpu:2", 3, [0, 1, 2, 3], [[0, 1], [2, 3], [0, 1]]),
        ("cpu:2", 2, [0, 1, 2], [[0, 1], [2, 0]]),
        ("cpu:9", 1, [0, 1], [[0, 1]]),  # the confinement refuses it, and says why
        ("mps:25", 3, [4, 5], [[4], [5], [4]]),  # where its kernels are launched
    ],
)
def test_measurers_have_cores_of_their_own_while_there_are_any(
    share: str, count: int, available: list[int], where: list[list[int]]
) -> None:
    assert assign_cores(Share.parse(share), count, available) == where


def test_every_number_of_measurers_is_timed_without_and_with_builds() -> None:
    assert settings([1, 4]) == [
        Setting(VALIDATION_POLICY.undivided()),
        Setting(FIRST_POLICY),
        Setting(None),
        *(Setting(TRIAL_POLICY, count, builds) for count in (1, 4) for builds in (False, True)),
    ]


def timed(secs: Mapping[str, float], failed: str = "") -> Pass:
    outcomes = {name: Outcome(Status.OK, run_secs=(each,)) for name, each in secs.items()}
    return Pass(outcomes | ({failed: Outcome(Status.CRASHED, "it crashed")} if failed else {}), wall_s=len(outcomes))


TRUE = {f"c{number}": 1e-3 * (number + 1) for number in range(10)}
MIXED_UP = {name: 1 / secs for name, secs in TRUE.items()}
NEARLY = {name: secs * 1.01 for name, secs in TRUE.items()}


def experiment(**odd: Mapping[str, float]) -> dict[Setting, list[Pass]]:
    return {each: [timed(odd.get(str(each), TRUE)), timed(NEARLY)] for each in settings([1, 2])}


def test_a_quiet_machine_is_advised_to_do_more_at_once() -> None:
    told = report(experiment(), {1: True, 2: True})
    assert told["advice"]["measurers"] == 2
    assert told["advice"]["builds_beside"] is True
    assert told["advice"]["margin"] == 1.10
    assert told["advice"]["tau"] == 1.0
    assert told["race_keeps_winner"] is True
    assert told["notes"] == []
    assert told["tie_width"] == pytest.approx(0.01, rel=0.1)
    assert {each["secs_per_candidate"] for each in told["settings"]} == {1.0}
    json.dumps(told, allow_nan=False)


def test_what_ranks_badly_is_not_advised() -> None:
    odd = {"trial, 2 measurers": MIXED_UP, "trial, alone, builds beside": MIXED_UP, "race, alone": MIXED_UP}
    told = report(experiment(**odd), {1: True, 2: False})
    assert told["advice"]["measurers"] == 1
    assert told["advice"]["builds_beside"] is False
    assert told["race_keeps_winner"] is False
    assert [each["own_cores"] for each in told["settings"]] == [True] * 5 + [False] * 2
    assert told["notes"] == ["2 measurers share cores: this machine has too few for each to have its own"]


def test_a_noisy_reference_agrees_with_nothing_and_says_so() -> None:
    told = report(experiment(**{"validation, alone": MIXED_UP}), {1: True, 2: True})
    assert told["tie_width"] == 0.05
    assert told["settings"][0]["tau"] == pytest.approx(-1.0)
    assert told["advice"]["measurers"] == 1
    assert told["advice"]["builds_beside"] is False
    assert told["advice"]["margin"] >= DEFAULT_MARGIN
    assert "does not agree with itself" in told["notes"][0]


def test_ties_are_nothing_to_judge_by() -> None:
    same = dict.fromkeys(TRUE, 1e-3)
    told = report({each: [timed(same)] * 2 for each in settings([1, 2])}, {1: True, 2: True})
    assert told["settings"][0]["tau"] is None
    assert told["advice"]["measurers"] == 1
    assert "ties" in told["notes"][0]


def test_a_failure_is_counted_and_left_out() -> None:
    passes = experiment()
    passes[Setting(TRIAL_POLICY)] = [timed(TRUE, failed="c10"), timed(NEARLY, failed="c10")]
    passes[Setting(VALIDATION_POLICY.undivided())] = [timed(TRUE, failed="c10"), timed({**NEARLY, "c10": 1e-9})]
    told = report({each: [timed({**TRUE, "c10": 1.0})] * 2 for each in passes} | passes, {1: True, 2: True})
    (alone,) = [each for each in told["settings"] if each["name"] == "trial, alone"]
    assert alone["failures"] == 2
    assert alone["median_s"]["c10"] == [None, None]
    assert alone["regret"] == 0.0


def watched(secs: Mapping[str, float], stolen: Mapping[str, float], anchor: float = 1.0) -> Pass:
    """A pass in which so much of each candidate's time was stolen, which nothing else shows."""
    outcomes = {
        name: replace(outcome, disturbance=of_steal(stolen[name])) for name, outcome in timed(secs).outcomes.items()
    }
    return Pass(outcomes, 1.0, dict.fromkeys(outcomes, anchor))


def of_steal(part: float) -> Disturbance:
    return Disturbance(1.0, 0.0, part, 0.0, 0.0, preemptions=0, throttles=0, throttled_s=0.0)


def test_what_explains_the_spread_is_told_of_all_that_was_timed_alone() -> None:
    stolen = {name: number / 100 for number, name in enumerate(TRUE)}
    slower = {name: secs * (1 + stolen[name]) for name, secs in TRUE.items()}
    passes = {
        each: [watched(TRUE, dict.fromkeys(TRUE, 0.0)), watched(slower, stolen, anchor=1.1)]
        for each in settings([1, 2])
    }
    told = report(passes, {1: True, 2: True})
    assert told["explanation"]["causes"] == ["steal"]
    assert told["explanation"]["pairs"] == 4 * len(TRUE)  # validation, first, race, trial
    assert told["explanation"]["anchor_spread"] == pytest.approx(0.095, abs=0.001)
    assert told["explanation"]["spread"] < told["explanation"]["anchored_spread"]
    for setting in told["settings"]:
        assert setting["cause_taus"]["steal"] == pytest.approx(1.0)
        assert setting["causes"]["steal"] == pytest.approx(0.0225)
        assert setting["lost"] == pytest.approx(0.0225)
    json.dumps(told, allow_nan=False)


def test_two_timings_under_different_policies_are_no_pair() -> None:
    """A race goes on with contenders only, and who is one may differ from pass to pass."""
    calm = dict.fromkeys(TRUE, 0.0)
    first, second = watched(TRUE, calm), watched(NEARLY, calm)
    longer = {name: replace(each, policy=TRIAL_POLICY) for name, each in second.outcomes.items() if name != "c0"}
    passes = {each: [first, Pass({**second.outcomes, **longer}, 1.0)] for each in settings([1])}
    assert report(passes, {1: True})["explanation"] is None  # c0 is the only pair of each setting


def test_where_nothing_is_counted_nothing_is_explained() -> None:
    told = report(experiment(), {1: True, 2: True})
    assert told["explanation"] is None
    assert {each["lost"] for each in told["settings"]} == {None}
    assert all(each["causes"] == each["cause_taus"] == {} for each in told["settings"])


def test_nothing_to_time_is_an_error_with_the_cause() -> None:
    passes = {each: [timed({}, failed="c0")] * 2 for each in settings([1])}
    with pytest.raises(FractuneError, match="it crashed"):
        report(passes, {1: True})


def test_settings_have_names_of_their_own() -> None:
    names = [str(each) for each in settings([1, 2, 3])]
    assert len(set(names)) == len(names)
    assert (
        str(Setting(TimingPolicy("validation", 1, 7, 10.0), 3, builds=True)) == "validation, 3 measurers, builds beside"
    )


def test_the_largest_number_that_ranks_well_is_advised() -> None:
    counts = [1, 2, 4, 8]
    odd = {"trial, 4 measurers": MIXED_UP}
    passes = {each: [timed(odd.get(str(each), TRUE)), timed(NEARLY)] for each in settings(counts)}
    told = report(passes, dict.fromkeys(counts, True), ["a note of before"])
    assert told["advice"]["measurers"] == 8
    assert told["notes"] == ["a note of before"]
    passes |= {each: [timed(TRUE), timed(MIXED_UP)] for each in passes if each.measurers == 8}
    assert report(passes, dict.fromkeys(counts, True))["advice"]["measurers"] == 2


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpuMachine:
    machine = SimulatedGpuMachine()
    monkeypatch.setattr(pool_module, "MeasurementSession", machine.session)
    return machine


@pytest.mark.parametrize(
    ("share", "instances", "counts", "says"),
    [
        ("mps:25", 0, [1, 2, 4], ["8 measurers were not tried: 32 of 132 SMs each are too many"]),
        ("mps:34", 0, [1, 2], ["4 measurers were not tried: 44 of", "8 measurers were not tried: 44 of"]),
        (
            "green:32",
            0,
            [1],
            [f"{count} measurers were not tried: at green:32 measurements do not run" for count in (2, 4, 8)],
        ),
        ("full", 0, [1], [f"{count} measurers were not tried: at full measurements do not run" for count in (2, 4, 8)]),
        ("mig:1g.10gb", 7, [1, 2, 4], ["8 measurers were not tried: share 'mig:1g.10gb': other workers hold every"]),
        ("mig:1g.10gb", 3, [1, 2], ["4 measurers were not tried: share", "8 measurers were not tried: share"]),
    ],
)
def test_only_numbers_that_may_measure_at_the_same_time_are_tried(
    machine: SimulatedGpuMachine, share: str, instances: int, counts: list[int], says: list[str]
) -> None:
    machine.instances = instances
    with contextlib.ExitStack() as held:
        pool = start_pool(Share.parse(share), [1, 2, 4, 8], range(16), held)
        assert pool.counts == counts
        assert len(pool.notes) == len(says)
        assert all(note.startswith(start) for note, start in zip(pool.notes, says, strict=True))
        assert [each.cores for each in pool.measurers] == [[core] for core in range(len(pool.measurers))]
        assert len(pool.measurers) >= counts[-1]
        assert pool.device_info["target"] == TARGET
    assert machine.stopped == machine.sessions


def test_where_not_even_one_can_be_had_it_is_a_refusal(machine: SimulatedGpuMachine) -> None:
    with contextlib.ExitStack() as held, pytest.raises(ShareUnavailable, match="every instance"):
        start_pool(Share.parse("mig:1g.10gb"), [1, 2], range(16), held)
    assert machine.stopped == machine.sessions == 0


def test_measurers_of_a_gpu_share_the_candidates_and_nothing_else_measures_there(
    machine: SimulatedGpuMachine, tmp_path: Path
) -> None:
    machine.lock_dir = tmp_path
    codes = {f"c{number}": bytes([number]) for number in range(12)}
    traces = ["packed1x16:[]", *["[[],[]]"] * 11]
    candidates = Candidates(SampleOperator("conv2d", "0" * 16, "{}", TARGET), [], traces, codes)
    assert [candidates.batch(["c0", "c1"]).implementation(name) for name in ("c0", "c1")] == ["packed1x16", DIRECT]
    wanted = [each for each in settings([1, 2, 4]) if not each.builds]
    with contextlib.ExitStack() as held:
        measurers = start_pool(Share.parse("mps:25"), [1, 2, 4], range(8), held).measurers
        passes = Experiment(CoreLocks(tmp_path, 8), range(8), measurers, [], candidates).run(wanted, lambda _: None)
    assert list(passes) == wanted
    assert all(each.outcomes.keys() == codes.keys() for timed in passes.values() for each in timed)
    assert Counter(name for _, name in machine.timed) == dict.fromkeys(codes, 2 * len(wanted))
    assert {number for number, _ in machine.timed} == set(range(4))
    assert machine.claims == [[asdict(ALONE)]] * len(machine.timed)
    told = report(passes | dict.fromkeys(settings([1, 2, 4]), passes[wanted[0]]), dict.fromkeys([1, 2, 4], True))
    assert told["advice"]["measurers"] == 4
