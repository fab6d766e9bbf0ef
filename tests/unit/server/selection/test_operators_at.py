"""The whole cores that stand for a CPU limit where operators are matched, and which times of a model count."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.planning.devices import device_type
from fractune_core.shares import GrantedShare, Share
from fractune_server.selection.model_match import Matcher, ModelAnswer, _with_timing, operators_at, timed_secs


@pytest.mark.parametrize(
    ("run_secs", "share"),
    [
        ({"untuned": [3.0], "cpu:1": [1.0], "cpu:2": [2.0]}, "cpu:1"),
        ({"untuned": [3.0], "cpu:1": [2.0], "cpu:2": [1.0]}, "cpu:2"),
        ({"untuned": [3.0], "robust": [1.0]}, "cpu:2"),
        ({"untuned": [1.0], "cpu:1": [2.0], "cpu:2": [3.0]}, "cpu:2"),
    ],
)
def test_operators_under_a_limit_are_those_of_whole_cores(run_secs: dict[str, list[float]], share: str) -> None:
    assert operators_at({"run_secs": run_secs, "at_load": [], "others_cores": 0.0}, Share.parse("cpu:1500m")) == share


def test_a_model_that_no_job_has_timed_is_matched_by_the_log_alone() -> None:
    answer = ModelAnswer([], None)
    assert _with_timing(answer, None) == answer
    timed = _with_timing(answer, {"at_load": [], "others_cores": 0.5, "inside": None})
    assert (timed.others_cores, timed.inside) == (0.5, None)
    inside = Inside((CallTime("conv", 1, 0.9, "hash", "candidate"),), 1.0, 1.1)
    assert _with_timing(answer, {"at_load": [], "others_cores": 0.5, "inside": inside.to_json()}).inside == inside


def test_disturbed_times_of_a_job_are_apart() -> None:
    granted = {n: GrantedShare(f"cpu:{n}", n, 2, "core", 1 << 30, reserved=False).to_json() for n in (1, 2)}
    job: Any = SimpleNamespace(
        timings={
            f"cpu:{n}": {"granted": granted[n], "run_secs": {f"cpu:{n}": [1.0 / n]}, "others_cores": others_cores}
            for n, others_cores in ((1, 0.9), (2, 0.1))
        }
    )
    here = device_type("", 2, "cpu", 0.0)
    assert timed_secs(job, here, disturbed=False) == {2: 0.5}
    assert timed_secs(job, here, disturbed=True) == {1: 1.0}


def test_the_newest_quiet_timing_is_matched(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, busier, quiet = ({"others_cores": cores} for cores in (0.8, 0.9, 0.0))
    unused: Any = None
    matcher = Matcher(unused)

    def matched(*timings: dict[str, Any]) -> dict[str, Any] | None:
        done = [SimpleNamespace(timings={"cpu:1": timing} if timing else {}) for timing in timings]
        monkeypatch.setattr(matcher, "_done", lambda *_: iter(done))
        return matcher._timing(unused, unused, unused, Share.parse("cpu:1"))

    assert matched({}, busy, busier, quiet) is quiet
    assert matched({}, busy, busier) is busy
    assert matched({}) is None
