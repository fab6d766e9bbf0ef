"""Sizes of an axis for a sample of lengths; the times in ONNX Runtime are made up."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from fractune.features.shapes import sample
from fractune.features.shapes.sample import buckets_for
from tests.support.encoders import write_encoder


def test_one_process_times_all_lengths_at_the_first_share_of_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str, list[dict[str, list[int]]]]] = []

    @contextlib.contextmanager
    def process(share: str, _env: Mapping[str, str]) -> Iterator[Callable[..., Any]]:
        def call(method: str, *, path: str, several: list[dict[str, list[int]]], repeats: int) -> dict[str, Any]:
            calls.append((method, f"{path} {share}", several))
            return {"run_secs": [[9.0] + [1e-3 * shapes["ids"][1]] * (repeats - 1) for shapes in several]}

        yield call

    monkeypatch.setattr(sample, "timing_process", process)
    said: list[str] = []
    model = write_encoder(tmp_path / "m")
    found = buckets_for(model, {}, {}, "ids:1", [8, 16, 64, 64], 2, ["full", "cpu:1", "cpu:2"], said.append)
    assert found == [16, 64]
    ((method, where, shapes),) = calls
    assert (method, where) == ("time_peer_at", f"{model} cpu:1")
    assert [each["ids"] for each in shapes] == [each["mask"] for each in shapes]
    assert [shapes[0]["ids"], shapes[-1]["ids"]] == [[1, 8], [1, 64]]
    assert said[0].startswith("buckets for ids:1: 16, 64; of 4 lengths a mean of")
