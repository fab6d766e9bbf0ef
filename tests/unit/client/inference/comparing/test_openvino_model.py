"""A model in OpenVINO, where it is installed: fractune does not depend on it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from fractune.inference.comparing.openvino_model import OpenVinoModel, stream_settings
from fractune_core.errors import BadModel, BadRequest, FractuneError
from tests.support.processes.cli_process import write_model

needs_openvino = pytest.mark.skipif(importlib.util.find_spec("openvino") is None, reason="needs the package openvino")


def test_several_streams_have_their_threads_each() -> None:
    assert stream_settings(2, 3) == {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "NUM_STREAMS": "3",
        "INFERENCE_NUM_THREADS": "6",
    }
    assert stream_settings(4, 1)["PERFORMANCE_HINT"] == "LATENCY"


def test_without_openvino_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(FractuneError, match=r"^OpenVINO is not installed here; install the package 'openvino'$"):
        OpenVinoModel(tmp_path / "m.onnx", 1)


@needs_openvino
def test_each_stream_has_a_call(tmp_path: Path) -> None:
    model = OpenVinoModel(write_model(tmp_path / "small.onnx"), 1, streams=2)
    assert model.version[:3].isdigit()
    calls = model.calls()
    assert len(calls) == 2
    assert all(len(call()) == 1 for call in calls)


@needs_openvino
def test_a_file_that_it_cannot_run_is_a_bad_model(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(BadModel, match=r"broken\.onnx: OpenVINO cannot load it"):
        OpenVinoModel(path, 1)


@needs_openvino
def test_a_constant_must_fit(tmp_path: Path) -> None:
    model = OpenVinoModel(write_model(tmp_path / "small.onnx"), 1, constants={"x": "1,2,3"})
    with pytest.raises(BadRequest, match="input 'x'"):
        model.calls()
