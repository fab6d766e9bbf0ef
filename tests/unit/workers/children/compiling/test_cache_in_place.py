"""The entry for caches: the same numbers as `main`, in buffers of the caller, and no copy of a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm

from fractune_core.files.manifests import MAIN_CACHED
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_workers.children.compiling.variants import _lowered, compile_variants
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from fractune_workers.children.importing.passes import prepare
from tests.support.cached_decoders import HEAD, KEY_HEADS, shapes_of, write_decoder
from tests.unit.workers.children.layouts.networks import loaded

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
PAST, TOKENS, ROWS = 24, 3, 50
KEYS = str(PAST + TOKENS)


def test_new_rows_are_written_into_the_callers_buffers(tmp_path: Path) -> None:
    data = write_decoder(tmp_path / "decoder.onnx").read_bytes()
    mod = prepare(load_onnx(data, shapes_of(PAST, TOKENS), Limits(len(data))), TARGET)
    text = _lowered(mod, TARGET, {})[MAIN_CACHED].script()
    # Neither the cache nor its keys turned round or repeated have memory of their own.
    assert [line for line in text.splitlines() if "alloc_tensor" in line and f"{HEAD}" in line and KEYS in line] == []
    assert "attention1_cached(" in text
    (objects,) = compile_variants([mod], TARGET, [{}], {})
    code = loaded(objects)
    assert isinstance(code, Planned)
    assert code.cached is not None
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 60, (1, TOKENS)), np.ones((1, PAST + TOKENS), "int64")
    mask[:, :5] = 0
    buffers = [rng.normal(size=(1, KEY_HEADS, ROWS, HEAD)).astype("float32") for _ in range(2)]
    given = [tvm.runtime.tensor(each) for each in (ids, PAST + np.arange(TOKENS)[None], mask)]
    logits, *presents = code.held([*given, *(tvm.runtime.tensor(each[:, :, :PAST].copy()) for each in buffers)])
    held = [tvm.runtime.tensor(each.copy()) for each in buffers]
    (made,) = code.cached.held([*given, *held])
    np.testing.assert_array_equal(made, logits)
    for before, behind, present in zip(buffers, held, presents, strict=True):
        np.testing.assert_array_equal(behind.numpy()[:, :, : PAST + TOKENS], present)
        np.testing.assert_array_equal(behind.numpy()[:, :, PAST + TOKENS :], before[:, :, PAST + TOKENS :])
