"""How much longer operators take inside a model than alone, as earlier jobs have seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.jobs import JobSpec
from fractune_server.engine.active_job import inside_ratios
from fractune_server.scheduler.allocation import OperatorPlan
from fractune_server.store.stored_job import StoredJob
from tests.support.samples import DEVICE, granted

SHARES = ("cpu:1", "cpu:2")


def job(**timings: Any) -> StoredJob:
    spec = JobSpec(model="a" * 64, model_name="net.onnx", shares=SHARES)
    held = {share: granted(number) for number, share in enumerate(SHARES, 1)}
    return StoredJob("job", spec, 1.0, DEVICE, held, "llvm", target_key="llvm", timings=timings)


def timing(secs: float, *, calls: int = 2, candidate: str = "best", workload_hash: str = "conv") -> dict[str, Any]:
    call = CallTime("kernel", calls, secs, workload_hash, candidate)
    return {"inside": Inside((call, CallTime("other calls", 9, 5.0)), 6.0, 6.1).to_json()}


def ratios(*done: StoredJob) -> dict[str, float]:
    plan = OperatorPlan("conv", 2, tuple(each.key for each in job().tuned_at.values()))
    for share in plan.shares:
        plan.add_trial("best", share, 1e-3)
    return inside_ratios(job(), done, {"conv": plan})


def test_the_newest_job_at_each_share_says_it() -> None:
    first, second = job(**{"cpu:1": timing(8e-3)}), job(**{"cpu:1": timing(2e-3), "cpu:2": timing(2e-3)})
    assert ratios(first) == {"conv": pytest.approx(4.0)}
    assert ratios(first, second) == {"conv": pytest.approx(2.0)}, "the geometric mean of 4 and 1"
    assert ratios(second, first) == {"conv": pytest.approx(1.0)}


@pytest.mark.parametrize(
    "done",
    [
        job(),
        job(**{"cpu:1": {"inside": None}}),
        job(**{"cpu:1": timing(8e-3, candidate="")}),
        job(**{"cpu:1": timing(8e-3, calls=0)}),
        job(**{"cpu:1": timing(0.0)}),
        job(**{"cpu:1": timing(8e-3, workload_hash="gone")}),
        replace(job(**{"cpu:1": timing(8e-3)}), target_key="other"),
    ],
)
def test_nothing_is_known_without_a_time_of_the_same_candidate(done: StoredJob) -> None:
    assert ratios(done) == {}
