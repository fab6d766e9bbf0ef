"""What a search learns from a log before it proposes for a pack."""

from __future__ import annotations

from dataclasses import replace

from fractune.features.packs import past_trials
from fractune_core.fleet.messages import PastTrial
from fractune_core.records import TRIAL_POLICY, Status, TuningRecord
from tests.support.samples import validation


def trial(name: str, share: str, status: Status = Status.OK, secs: float = 1.0, isa: str = "znver4") -> TuningRecord:
    made = validation("", 1, 1.0)
    device = replace(made.device, isa=isa)
    run_secs = (secs,) * 3 if status is Status.OK else ()
    return replace(
        made,
        candidate_id=name,
        trace=f"[{name}]",
        share=share,
        status=status,
        run_secs=run_secs,
        device=device,
        policy=TRIAL_POLICY,
    )


def test_trials_at_all_shares_of_the_device_with_most_of_them_count() -> None:
    records = [
        trial("1", "cpu:1", secs=2.0),
        trial("1", "cpu:2", secs=1.0),
        trial("2", "cpu:1", Status.CRASHED),
        trial("2", "cpu:2", Status.CRASHED),
        trial("3", "cpu:1"),  # not measured at cpu:2
        trial("4", "cpu:1", Status.BUILD_FAILED),
        trial("5", "cpu:4", isa="haswell"),
    ]
    assert past_trials(records) == [
        PastTrial("1", "[1]", {"cpu:1": 2.0, "cpu:2": 1.0}),
        PastTrial("2", "[2]", {"cpu:1": 0.0, "cpu:2": 0.0}),
    ]
    assert past_trials([]) == []
