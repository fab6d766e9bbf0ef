"""What a bundle is made of, without its compiler."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fractune_core.bundles import object_entry
from fractune_workers.children.compiling import child
from fractune_workers.children.tvm_api.target import host_cpu
from tests.support.processes.cli_process import write_model


def test_variants_of_the_same_schedules_are_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []

    def numbered(work: Sequence[Callable[[], Any]]) -> list[dict[str, bytes]]:
        compiled.append(len(work))
        return [{"lib.o": bytes([number])} for number in range(len(work))]

    monkeypatch.setattr(child, "side_by_side", numbered)
    model, out = str(write_model(tmp_path / "m.onnx")), tmp_path / "m.fractune"
    operator, *_ = child.ingest(model, {}, "", host_cpu())["operators"]
    traces = {"cpu:1": "[]", "cpu:2": "[]", "robust": "another"}
    variants = [{"name": name, "traces": {operator["workload_hash"]: trace}} for name, trace in traces.items()]
    variants.append({"name": "untuned", "traces": {}})
    child.compile_bundle(model, {}, "", variants, {}, [], str(out))
    assert compiled == [3]
    with zipfile.ZipFile(out) as archive:
        code = [archive.read(object_entry(index, "lib.o")) for index in range(len(variants))]
    assert code == [b"\0", b"\0", b"\1", b"\2"]
