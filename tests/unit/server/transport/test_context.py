"""Errors that workers report."""

from __future__ import annotations

import pytest

from fractune_core.errors import BadModel, FractuneError, JobFailed
from fractune_core.fleet.messages import WorkFailed
from fractune_server.transport.context import reported_error


@pytest.mark.parametrize(
    ("name", "kind"), [("BadModel", BadModel), ("StateUnusable", JobFailed), ("QuotaExceeded", JobFailed)]
)
def test_a_worker_without_space_on_its_disk_fails_its_job_and_not_the_server(
    name: str, kind: type[FractuneError]
) -> None:
    """The engine ends after StateUnusable, which means its own state."""
    event = WorkFailed(job="j", task="compile", error=name, message="disk full")
    error = reported_error(event)
    assert (type(error), str(error)) == (kind, "disk full")
