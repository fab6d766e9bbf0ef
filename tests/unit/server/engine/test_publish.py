"""What makes a bundle the same one."""

from __future__ import annotations

import pytest

from fractune_core.jobs import JobSpec
from fractune_server.engine import publish
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.publish import bundle_id
from fractune_server.store.stored_job import StoredJob
from tests.support.samples import DEVICE, granted


def a_job(model: str = "a", target: str = "llvm") -> ActiveJob:
    spec = JobSpec(model=model * 64, model_name="net.onnx", shares=("cpu:1",))
    return ActiveJob(StoredJob(model, spec, 1.0, DEVICE, {"cpu:1": granted(1)}, "llvm", target=target), [])


def test_a_bundle_is_made_again_for_another_model_target_schedule_or_version(monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle_id(a_job(), [{"name": "cpu:1", "traces": {"f": "t"}}])
    assert bundle_id(a_job(), [{"name": "cpu:1", "traces": {"f": "t"}}]) == made
    assert bundle_id(a_job("b"), [{"name": "cpu:1", "traces": {"f": "t"}}]) != made
    assert bundle_id(a_job(target="cuda"), [{"name": "cpu:1", "traces": {"f": "t"}}]) != made
    assert bundle_id(a_job(), [{"name": "cpu:1", "traces": {"f": "u"}}]) != made
    monkeypatch.setattr(publish, "__version__", "another")
    assert bundle_id(a_job(), [{"name": "cpu:1", "traces": {"f": "t"}}]) != made
