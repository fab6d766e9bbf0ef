"""Requests at given times."""

from __future__ import annotations

import threading

import pytest

from fractune.comparing.interleaved import serve


def test_each_request_counts_from_its_arrival_and_replicas_work_side_by_side() -> None:
    """Two requests arrive at once, and each replica ends only when the other one has begun."""
    meet = threading.Barrier(2, timeout=30)
    found = serve([meet.wait, meet.wait], [0.0, 0.0])
    assert len(found["latencies_s"]) == 2
    assert found["elapsed_s"] >= max(found["latencies_s"])


def test_a_request_is_not_answered_before_it_arrives() -> None:
    found = serve([lambda: None], [0.0, 0.02])
    assert found["elapsed_s"] >= 0.02
    assert min(found["latencies_s"]) >= 0


def test_a_loop_has_no_arrivals() -> None:
    calls: list[None] = []
    found = serve([lambda: calls.append(None)], [None] * 5)
    assert len(calls) == len(found["latencies_s"]) == 5
    assert found["cpu_s"] == pytest.approx(0, abs=0.1)
