"""Which threads of which runtime a fit times, and in which process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fractune.errors import BadBundle, BadModel, BadRequest
from fractune.features.fit import measuring
from fractune.features.fit.measuring import FRACTUNE, ONNX_RUNTIME, OPENVINO, measure
from fractune_core.analysis.cpu_limits.limits import Service
from tests.support.client_samples import DEVICE, bundle_at

TIMES = {"loop_secs": [0.01], "loop_cpu_s": 0.01, "paced_secs": [0.02], "pause_cpu_s": 0.0}


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The share of each process, and what was called in it. Eight cores."""
    seen: list[Any] = []

    @contextmanager
    def timing_process(share: str, _env: object, **_: object) -> Iterator[Callable[..., Any]]:
        def call(method: str, **arguments: Any) -> dict[str, Any]:
            seen.append((share, method, arguments))
            return {
                "version": "1.31",
                "times": [{"threads": n, **TIMES} for n in arguments["threads"]],
                "others_cores": 0.3,
            }

        yield call

    monkeypatch.setattr(measuring, "timing_process", timing_process)
    monkeypatch.setattr(measuring, "usable_cores", lambda: 8)
    return seen


def write_bundle(folder: Path, kind: str = "cpu", *cores: int) -> Path:
    path = folder / "m.fractune"
    path.write_bytes(bundle_at(*cores, device={**DEVICE.to_json(), "kind": kind}))
    return path


def test_an_onnx_file_runs_with_1_2_4_and_8_threads(calls: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"onnx")
    lines: list[str] = []
    found = measure(path, {"x": [1, 4]}, lines.append)
    ((share, method, arguments),) = calls
    assert (share, method, arguments["runtime"]) == ("cpu:8", "time_services", "onnxruntime")
    assert arguments["threads"] == [1, 2, 4, 8]
    assert arguments["shapes"] == {"x": [1, 4]}
    assert (found.runtime, found.version) == (ONNX_RUNTIME, "1.31")
    assert found.others_cores == {1: 0.3, 2: 0.3, 4: 0.3, 8: 0.3}
    assert found.services[1] == Service(2, (0.01,), 0.01, (0.02,))
    assert lines == ["timing m.onnx in ONNX Runtime without a limit, with 1, 2, 4, 8 threads"]


def test_an_onnx_file_runs_in_openvino_where_that_is_requested(calls: list[Any], tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"onnx")
    found = measure(path, {}, lambda _: None, OPENVINO)
    ((_, _, arguments),) = calls
    assert (arguments["runtime"], found.runtime) == ("openvino", OPENVINO)


def test_a_bundle_runs_with_its_variants_as_far_as_there_are_cores(calls: list[Any], tmp_path: Path) -> None:
    found = measure(write_bundle(tmp_path, "cpu", 4, 1, 16), {}, lambda _: None)
    ((share, _, arguments),) = calls
    assert (share, arguments["runtime"]) == ("cpu:4", "fractune")
    assert arguments["threads"] == [1, 4]
    assert found.runtime == FRACTUNE


@pytest.mark.usefixtures("calls")
def test_models_that_cannot_be_timed_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadBundle, match=r"m\.fractune has no variant for 8 cores or fewer; tune it at cpu:1"):
        measure(write_bundle(tmp_path, "cpu", 16), {}, lambda _: None)
    with pytest.raises(BadBundle, match="is for a device of kind 'cuda'; a CPU limit needs a bundle for the CPU"):
        measure(write_bundle(tmp_path, "cuda", 1), {}, lambda _: None)
    with pytest.raises(BadRequest, match=r"^inputs: the shapes of m\.fractune were fixed"):
        measure(write_bundle(tmp_path, "cpu", 1), {"x": [1]}, lambda _: None)
    with pytest.raises(BadRequest, match=r"^--runtime is for ONNX files, and m\.fractune is a bundle; leave it out"):
        measure(write_bundle(tmp_path, "cpu", 1), {}, lambda _: None, OPENVINO)
    with pytest.raises(BadBundle, match=r"none\.fractune: no such file; fractune tune MODEL makes a bundle"):
        measure(tmp_path / "none.fractune", {}, lambda _: None)
    with pytest.raises(BadModel, match="no such model file"):
        measure(tmp_path / "none.onnx", {}, lambda _: None)
