"""TVM launches on the confined stream, in this thread and nowhere else. Tried on the CPU: a stream is a number."""

from __future__ import annotations

import threading

import pytest
import tvm_ffi

from fractune_core.errors import ShareUnavailable
from fractune_workers.children.tvm_api import processor

CPU = "cpu:0"


def stream_here() -> int:
    return int(tvm_ffi.get_raw_stream(tvm_ffi.device(CPU)))


def test_within_the_block_this_thread_has_the_stream() -> None:
    before = stream_here()
    with processor.launching_on(0x2000, CPU):
        assert stream_here() == 0x2000
    assert stream_here() == before


def test_another_thread_has_not() -> None:
    seen: list[int] = []
    with processor.launching_on(0x2000, CPU):
        thread = threading.Thread(target=lambda: seen.append(stream_here()))
        thread.start()
        thread.join()
    assert seen == [0]


def test_a_stream_that_is_not_taken_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvm_ffi.get_raw_stream", lambda _device: 0)
    with (
        pytest.raises(ShareUnavailable, match="launches on stream 0x0, not on 0x2000"),
        processor.launching_on(0x2000, CPU),
    ):
        pass
