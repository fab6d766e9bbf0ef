"""The variant and the threads by times of the whole model, for each goal."""

from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis.match import DEFAULT_POLICY, How
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.host.cpus import Quota
from fractune_core.served import ServiceGoal
from fractune_runtime.choosing import match_share
from fractune_runtime.cpu import ShareHere
from tests.support.client_samples import bundle_at, granted
from tests.support.samples import LIMITED

LOOP = {"variant": "cpu:2", "threads": 2, "loop_s": 2e-3, "p50_s": 5e-3, "p99_s": 9e-3}
REQUESTS = {"variant": "cpu:1", "threads": 1, "loop_s": 3e-3, "p50_s": 3.14e-3, "p99_s": None}
SERVED = {"cpu:2": {"latency": REQUESTS, "throughput": LOOP}}
TWO_CORES = ShareHere(2, (0, 1), "made up")


TIMES = {"cpu:2": {"cpu:2": 2e-3, "cpu:1": 2.5e-3}, "cpu:1": {"cpu:1": 3e-3}}


def a_bundle(served: Any = SERVED, measured: Any = TIMES) -> Bundle:
    return Bundle(bundle_at(1, 2, measured=measured, served=served))


def test_the_goal_decides_between_requests_and_a_loop() -> None:
    requests, share = match_share(a_bundle(), TWO_CORES, DEFAULT_POLICY, "latency")
    loop, _ = match_share(a_bundle(), TWO_CORES, DEFAULT_POLICY, "throughput")
    assert (requests.variant, requests.threads, share.units) == ("cpu:1", 1, 2)
    assert (requests.how, requests.regret) == (How.EXACT, 0.0)
    assert requests.reason == "no faster variant was timed at 2 cores: with 1 thread it takes p50 3.14 ms at 30 % load"
    assert (loop.variant, loop.threads) == ("cpu:2", 2)
    assert loop.reason.endswith("timed at 2 cores: with 2 threads it takes 2 ms in a loop")


def test_goals_of_later_versions_are_passed_over() -> None:
    later = {"cpu:2": {**SERVED["cpu:2"], "energy": {}}}
    assert match_share(a_bundle(later), TWO_CORES, DEFAULT_POLICY, "latency")[0].threads == 1


@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_without_such_times_the_operators_decide(goal: ServiceGoal) -> None:
    found, _ = match_share(a_bundle({}), TWO_CORES, DEFAULT_POLICY, goal)
    assert (found.variant, found.threads) == ("cpu:2", 2)


def test_they_do_not_hold_under_a_quota() -> None:
    limited = replace(TWO_CORES, units=1, cpus=(0, 1), quota=Quota(150_000, 100_000))
    assert match_share(a_bundle(), limited, DEFAULT_POLICY, "latency")[0].reason.startswith(
        "under a limit of 1500m, predicted best with 2 threads"
    )


def test_a_larger_share_that_was_not_tuned_runs_as_the_smaller_one() -> None:
    found, _ = match_share(a_bundle(measured={}), ShareHere(8, tuple(range(8)), "made up"), DEFAULT_POLICY, "latency")
    assert (found.variant, found.threads) == ("cpu:1", 1)
    assert "runs as on 2 cores, with 1 thread" in found.reason


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu:9": SERVED["cpu:2"]},
        {"cpu:2": {"latency": REQUESTS}},
        {"cpu:2": {"latency": REQUESTS | {"threads": 0}, "throughput": LOOP}},
        {"cpu:2": {"latency": REQUESTS | {"p99_s": "9 ms"}, "throughput": LOOP}},
        {"cpu:2": {"latency": REQUESTS | {"variant": "cpu:4"}, "throughput": LOOP}},
        [SERVED],
    ],
)
def test_a_manifest_with_wrong_times_is_refused(wrong: Any) -> None:
    with pytest.raises(BadBundle, match="'served'"):
        a_bundle(wrong)


SHARE = LIMITED.share
QUOTA = Quota(150_000, 100_000)
HERE = ShareHere(1, (0, 1), "made up", quota=QUOTA)
PACED = {"variant": "cpu:2", "threads": 2, "loop_s": 2e-3, "p50_s": 3.14e-3, "p99_s": 25e-3}
LIMITED_LOOP = {"variant": "cpu:1", "threads": 1, "loop_s": 1.5e-3, "p50_s": 4e-3, "p99_s": None}


def timed_bundle(**fields: Any) -> Bundle:
    measured = {"cpu:1": {"cpu:1": 3e-3}, "cpu:2": {"cpu:2": 2.9e-3}}
    served = {SHARE: {"latency": PACED, "throughput": LIMITED_LOOP}}
    given = {"measured": measured, "limits": {SHARE: LIMITED.to_json()}, "served": served}
    return Bundle(bundle_at(1, 2, **given | fields))


@pytest.mark.parametrize(
    ("goal", "threads", "times"),
    [("latency", 2, "p50 3.14 ms, p99 25 ms at 30 % load"), ("throughput", 1, "1.5 ms in a loop")],
)
def test_under_the_limit_of_the_timing_its_best_is_taken(goal: ServiceGoal, threads: int, times: str) -> None:
    found, share = match_share(timed_bundle(), HERE, DEFAULT_POLICY, goal)
    assert (found.variant, found.threads, share.units) == (f"cpu:{threads}", threads, threads)
    assert (found.how, found.regret) == (How.EXACT, 0.0)
    assert found.reason.startswith("no faster variant was timed under a limit of 1500m: with ")
    assert found.reason.endswith(f" it takes {times}")


@pytest.mark.parametrize(
    "here",
    [
        replace(HERE, quota=replace(QUOTA, quota_us=140_000)),
        replace(HERE, quota=replace(QUOTA, quota_us=15_000, period_us=10_000)),
        replace(HERE, quota=replace(QUOTA, burst_us=1)),
        replace(HERE, cpus=(0,)),
    ],
)
def test_under_another_limit_predictions_decide(here: ShareHere) -> None:
    assert "predicted" in match_share(timed_bundle(), here, DEFAULT_POLICY, "latency")[0].reason


def test_a_model_that_was_too_slow_for_the_timing_is_predicted() -> None:
    assert "predicted" in match_share(timed_bundle(served={}), HERE, DEFAULT_POLICY, "latency")[0].reason


@pytest.mark.parametrize(
    "limits",
    [[], {SHARE: {}}, {SHARE: granted("cpu:1", 1).to_json()}, {SHARE: LIMITED.to_json() | {"limit": {"quota_m": 0}}}],
)
def test_a_bundle_with_a_torn_limit_is_refused(limits: Any) -> None:
    with pytest.raises(BadBundle, match="'limits' is not grants with a limit by share"):
        timed_bundle(limits=limits)


def test_times_at_a_share_that_the_bundle_does_not_name_are_refused() -> None:
    with pytest.raises(BadBundle, match="'served' is not variants with threads and seconds by goal, for some of"):
        timed_bundle(limits={})
