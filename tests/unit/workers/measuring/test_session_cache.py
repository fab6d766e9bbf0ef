"""A session that was started for a cold cache asks its child for nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fractune_core.records import COLD, FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY, WARM, TimingPolicy, with_cache
from fractune_core.shares import Share
from fractune_workers.measuring import session as session_module
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession
from fractune_workers.measuring.validation import validate


class NotedChild:
    """Answers as a measurer's child does, and keeps what policies it was given."""

    asked: list[dict[str, Any]]

    def __init__(self, *_args: Any, **_options: Any) -> None:
        NotedChild.asked = []
        self.pid, self.generation = 1, 1

    def ensure(self) -> int:
        return self.generation

    def stop(self) -> None: ...

    def call(self, method: str, _timeout_s: float, **payload: Any) -> Any:
        if method == "race":
            self.asked += payload["policies"]
            return {"policy": payload["policies"][-1], "run_secs": [1e-3] * 3}
        if method == "time_interleaved":
            self.asked.append(payload["policy"])
            names = payload["names"]
            return {"policy": dict.fromkeys(names, payload["policy"]), "run_secs": dict.fromkeys(names, [1e-3] * 3)}
        return 0.0 if method == "check" else {}


@pytest.mark.parametrize("cache", [WARM, COLD])
def test_every_policy_is_for_the_cache_of_the_session(
    cache: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "Child", NotedChild)
    session = MeasurementSession(
        Share.parse("cpu:1"), sorted(os.sched_getaffinity(0))[:1], lock_dir=tmp_path, cache=cache
    )
    batch = ArtifactBatch([["TENSOR", "float32", [1]]], 0, {"a": b"a"})
    trial = session.trials(batch, 1.0)["a"]
    final = validate(session, batch, "a")["a"]
    asked = [TimingPolicy.from_json(each) for each in NotedChild.asked]
    assert asked == [with_cache(policy, cache) for policy in (FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY)]
    assert (trial.policy, final.policy) == (asked[1], asked[2])
