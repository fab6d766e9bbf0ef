"""What the client reads from the messages of the contract."""

from __future__ import annotations

import pytest

from fractune.server.job_status import job_status
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script


def test_time_left_obeys_the_minutes() -> None:
    job = job_script()[1]
    assert job_status(job).time_left_s == 3.0
    job.spec.minutes = 0.05
    assert job_status(job).time_left_s == pytest.approx(1.0)
    assert job_status(job_script()[0]).time_left_s is None


def test_an_alternative_has_the_weight_0() -> None:
    job = job_script()[1]
    job.operators.append(pb.Operator(display_name="attention", workload_hash="a" * 16, weight=0))
    assert job_status(job).operators[-1].weight == 0
