"""What the confined process gives to the contenders."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fractune.features.compete.child import open_child
from fractune.inference.comparing import beside_runtimes
from fractune_core.files.compared import Compared
from tests.support.encoders import WORDS
from tests.support.processes.forked import succeeds_in_child
from tests.support.real_bundle import ENCODER


def test_contenders_get_ids_of_the_tables_and_masks_of_ones(encoders: Path) -> None:
    asked: dict[str, Any] = {}

    def compare(_model: Any, requests: list[dict[str, Any]], *_: Any) -> tuple[Compared, dict[str, Any]]:
        asked.update(requests[0])
        return Compared({}), {}

    def ask() -> bool:  # in a process of its own, because it is confined
        beside_runtimes.time_beside_runtimes = compare  # type: ignore[assignment]
        methods = open_child(["cpu:1", str(min(os.sched_getaffinity(0)))])
        bundle, onnx = str(encoders / f"{ENCODER}-1x16.fractune"), str(encoders / f"{ENCODER}.onnx")
        methods["compare"](bundle=bundle, member=None, onnx=onnx, runtimes=[], repeats=6, exact=True)
        return bool(1 < asked["ids"].max() < WORDS and (asked["mask"] == 1).all())

    assert succeeds_in_child(ask)
