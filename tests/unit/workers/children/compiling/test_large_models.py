"""Models above two limits are read otherwise, and their bundles are the same: above the first without the bytes of the
whole file in memory, above the second with their weights apart from protobuf.
"""

from __future__ import annotations

import gc
import zipfile
from pathlib import Path

import onnx
import pytest

from fractune_workers.children.importing import model_file
from fractune_workers.children.importing.onnx_models import onnx_model
from fractune_workers.children.tvm_api import scratch_tensors
from tests.support.decoders import compile_decoder, write_decoder


def entries(bundle: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(bundle) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_file, "APART_FROM_BYTES", 1)
    for module in (model_file, scratch_tensors):
        monkeypatch.setattr(module, "LEAST_BYTES", 4096)


def test_the_bundle_of_a_large_model_is_that_of_a_small_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    model = write_decoder(tmp_path / "decoder.onnx")
    whole = entries(compile_decoder(model, 8, 1))
    request.getfixturevalue("small_limit")
    parsed, to_array = list[int](), onnx.numpy_helper.to_array

    def noted(tensor: onnx.TensorProto) -> object:
        parsed.append(len(tensor.raw_data))
        return to_array(tensor)

    monkeypatch.setattr("onnx.numpy_helper.to_array", noted)
    (tmp_path / "other").mkdir()
    other = model.rename(tmp_path / "other" / model.name)
    apart = entries(compile_decoder(other, 8, 1))
    assert max(parsed) < 4096
    assert {name: each for name, each in apart.items() if name != "manifest.json"} == {
        name: each for name, each in whole.items() if name != "manifest.json"
    }


def test_the_bundle_of_a_model_that_is_not_small_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = write_decoder(tmp_path / "decoder.onnx")
    whole, model_size = entries(compile_decoder(model, 8, 1)), model.stat().st_size
    monkeypatch.setattr(model_file, "_OUTLINED_FROM_BYTES", 1)
    monkeypatch.setattr(model_file, "LEAST_BYTES", 4096)
    monkeypatch.setattr(onnx_model, "_IN_MEMORY_BYTES", 1)
    monkeypatch.setattr(onnx_model, "_ALONE_FROM_BYTES", 1)
    monkeypatch.setattr(onnx_model, "LEAST_BYTES", 4096)
    slimmed, slim = list[int](), onnx_model._slim

    def noted(model: onnx.ModelProto) -> onnx.ModelProto:
        slimmed.append(model.ByteSize())
        return slim(model)

    monkeypatch.setattr(onnx_model, "_slim", noted)
    kept = list[int]()

    def read(path: Path, size: int = model.stat().st_size) -> model_file.Contents:
        contents = read_file(path)
        kept.append(size - len(contents.data))
        return contents

    read_file = model_file._read
    monkeypatch.setattr(model_file, "_read", read)
    (tmp_path / "other").mkdir()
    other = model.rename(tmp_path / "other" / model.name)
    assert entries(compile_decoder(other, 8, 1)) == whole
    assert kept[0] > 4096, "most bytes of the file are not held beside protobuf's"
    assert slimmed[0] < model_size / 2, "weights of products are not copied by slimming"
    gc.collect()
    left = [each for each in gc.get_objects() if isinstance(each, onnx.TensorProto) and len(each.raw_data) > 4096]
    assert not left, "a part of a message holds its whole memory"
