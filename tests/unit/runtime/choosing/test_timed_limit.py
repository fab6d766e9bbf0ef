"""The variant and the threads under a limit under which the model was timed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis.match import DEFAULT_POLICY, How
from fractune_core.errors import BadBundle
from fractune_core.files.bundles import Bundle
from fractune_core.host.cgroups import Quota
from fractune_core.served import ServiceGoal
from fractune_runtime.choosing import match_share
from fractune_runtime.cpu import ShareHere
from tests.support.client_samples import bundle_bytes, granted
from tests.support.samples import LIMITED

SHARE = LIMITED.share
QUOTA = Quota(150_000, 100_000)
HERE = ShareHere(1, (0, 1), "made up", quota=QUOTA)
PACED = {"variant": "cpu:2", "threads": 2, "loop_s": 2e-3, "p50_s": 3.14e-3, "p99_s": 25e-3}
LOOP = {"variant": "cpu:1", "threads": 1, "loop_s": 1.5e-3, "p50_s": 4e-3, "p99_s": None}


def a_bundle(**fields: Any) -> Bundle:
    names = ("cpu:1", "cpu:2")
    given = {
        "variants": [{"name": name, "objects": ["lib0.o"], "weights": []} for name in ("untuned", *names)],
        "shares": {name: granted(name, int(name[-1])).to_json() for name in names},
        "measured": {"cpu:1": {"cpu:1": 3e-3}, "cpu:2": {"cpu:2": 2.9e-3}},
        "limits": {SHARE: LIMITED.to_json()},
        "served": {SHARE: {"latency": PACED, "throughput": LOOP}},
    }
    return Bundle(bundle_bytes(**given | fields))


@pytest.mark.parametrize(
    ("goal", "threads", "times"),
    [("latency", 2, "p50 3.14 ms, p99 25 ms at 30 % load"), ("throughput", 1, "1.5 ms in a loop")],
)
def test_under_the_limit_of_the_timing_its_best_is_taken(goal: ServiceGoal, threads: int, times: str) -> None:
    found, share = match_share(a_bundle(), HERE, DEFAULT_POLICY, goal)
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
    assert "predicted" in match_share(a_bundle(), here, DEFAULT_POLICY, "latency")[0].reason


def test_a_model_that_was_too_slow_for_the_timing_is_predicted() -> None:
    assert "predicted" in match_share(a_bundle(served={}), HERE, DEFAULT_POLICY, "latency")[0].reason


@pytest.mark.parametrize(
    "limits",
    [[], {SHARE: {}}, {SHARE: granted("cpu:1", 1).to_json()}, {SHARE: LIMITED.to_json() | {"limit": {"quota_m": 0}}}],
)
def test_a_bundle_with_a_torn_limit_is_refused(limits: Any) -> None:
    with pytest.raises(BadBundle, match="'limits' is not grants with a limit by share"):
        a_bundle(limits=limits)


def test_times_at_a_share_that_the_bundle_does_not_name_are_refused() -> None:
    with pytest.raises(BadBundle, match="'served' is not variants with threads and seconds by goal, for some of"):
        a_bundle(limits={})
