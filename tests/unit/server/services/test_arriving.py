"""Streams of requests that are slow, or silent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.errors import QuotaExceeded
from fractune_server.services import models as module
from fractune_server.services.models import arriving


@pytest.fixture
def cancelled() -> threading.Event:
    return threading.Event()


@pytest.fixture
def context(cancelled: threading.Event) -> Any:
    return SimpleNamespace(cancel=cancelled.set)


def test_what_comes_in_time_passes(context: Any, cancelled: threading.Event) -> None:
    assert list(arriving(iter("abc"), context, 3)) == ["a", "b", "c"]
    assert not cancelled.is_set()


def test_a_slow_sender_is_told(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "transfer_s", lambda size: -1.0 if size == 3 else 60.0)
    with pytest.raises(QuotaExceeded, match="3 bytes may take"):
        list(arriving(iter("abc"), context, 3))


def test_a_silent_sender_is_cut_off(context: Any, cancelled: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "transfer_s", lambda _: 0.0)
    monkeypatch.setattr(module, "_SILENCE_S", 0.01)

    def silent() -> Iterator[str]:
        if not cancelled.wait(20):
            yield "the call was not ended"

    assert list(arriving(silent(), context, 3)) == []
