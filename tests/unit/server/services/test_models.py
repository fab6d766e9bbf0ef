"""A token's quota of uploads holds for those that arrive at the same time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fractune_core.access.tokens import Quotas, Scope
from fractune_core.errors import QuotaExceeded
from fractune_core.names import DEFAULT_TENANT
from fractune_server.access.authenticator import Caller
from fractune_server.services import models as module
from fractune_server.services.models import ModelService, arriving
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.database.sight import Sight
from fractune_server.store.models import StoredModel
from fractune_server.store.store import Store
from fractune_server.transport.context import TenantView

unused: Any = None
SENDER = Caller("t", Scope.SUBMIT, Quotas(stored_bytes=100))


def test_uploads_at_the_same_time_count_together(store: Store, tmp_path: Path) -> None:
    service, view = ModelService(unused), TenantView(store, BlobStore(tmp_path), Sight(DEFAULT_TENANT))
    with service._room_for(view, "a", 60, SENDER):
        with (
            pytest.raises(QuotaExceeded, match="has 41 bytes, and token t has 40 of 100 left, with 60 in incomplete"),
            service._room_for(view, "b", 41, SENDER),
        ):
            pass
        with service._room_for(view, "b", 1000, Caller("other")), service._room_for(view, "b", 40, SENDER):
            pass
        with service._room_for(view, "a", 60, SENDER):  # the same one, which comes back after a cut
            pass
    store.models.add(StoredModel("a", "net.onnx", 60, "t"))
    with pytest.raises(QuotaExceeded), service._room_for(view, "b", 41, SENDER):
        pass
    with service._room_for(view, "b", 40, SENDER):
        pass
    assert not service._under_way


def test_a_call_that_was_cut_off_counts_no_more_once_a_later_one_has_brought_the_model(
    store: Store, tmp_path: Path
) -> None:
    service, view = ModelService(unused), TenantView(store, BlobStore(tmp_path), Sight(DEFAULT_TENANT))
    with service._room_for(view, "a", 60, SENDER):  # the network has lost it, and the server does not know
        with service._room_for(view, "a", 60, SENDER):
            store.models.add(StoredModel("a", "net.onnx", 60, "t"))
        with service._room_for(view, "b", 40, SENDER):
            pass
        with pytest.raises(QuotaExceeded, match="has 40 of 100 left; ask"), service._room_for(view, "b", 41, SENDER):
            pass


def test_what_is_kept_of_a_cut_upload_counts_but_not_against_itself(store: Store, tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    with files.parts.open("t", "a", offset=0, size=60) as part:
        part.write(b"x" * 30)
    service, view = ModelService(unused), TenantView(store, files, Sight(DEFAULT_TENANT))
    with (
        pytest.raises(QuotaExceeded, match="has 70 of 100 left, with 30 in incomplete uploads"),
        service._room_for(view, "b", 71, SENDER),
    ):
        pass
    with service._room_for(view, "a", 100, SENDER):
        pass


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
