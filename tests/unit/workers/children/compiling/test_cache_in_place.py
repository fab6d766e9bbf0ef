"""The entry for caches: the same numbers as `main`, in buffers of the caller, and no copy of a cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

from fractune_core.files.plans import ARENA
from fractune_runtime.tvm_runtime.arena import Planned
from fractune_runtime.tvm_runtime.tensors import CacheRows, TensorSpec
from fractune_workers.children.compiling.variants import compile_variants
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from fractune_workers.children.importing.passes import prepare
from tests.support.decoders import HEAD, KEY_HEADS, shapes_of, write_decoder
from tests.unit.workers.children.layouts.networks import loaded

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
PAST, TOKENS, ROWS = 24, 3, 50
KEYS = PAST + TOKENS
CACHE = (1, KEY_HEADS, PAST, HEAD)
AXIS = 2


def test_new_rows_are_written_into_the_callers_buffers(tmp_path: Path) -> None:
    data = write_decoder(tmp_path / "decoder.onnx").read_bytes()
    mod = prepare(load_onnx(data, shapes_of(PAST, TOKENS), Limits(len(data))), TARGET)
    (objects,) = compile_variants([mod], TARGET, [{}], {})
    code = loaded(objects)
    assert isinstance(code, Planned)
    assert isinstance(code.cached, Planned)
    plan = code.cached.plan
    assert "attention1_cached" in {call.kernel for call in plan.calls}
    # Neither the cache nor its keys turned round or repeated have memory of their own.
    assert [each for each in plan.tensors if {HEAD, KEYS} <= {*each.shape} and each.place == ARENA] == []
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 60, (1, TOKENS)), np.ones((1, PAST + TOKENS), "int64")
    mask[:, :5] = 0
    given = [tvm.runtime.tensor(each) for each in (ids, PAST + np.arange(TOKENS)[None], mask)]
    buffers = [CacheRows(TensorSpec(name, "float32", CACHE), AXIS, ROWS, before=PAST) for name in ("key", "value")]
    (result,) = [tvm.runtime.empty(each.shape, each.dtype) for each in plan.outputs]
    run = code.cached.bound([*given, *buffers], [result])
    for first in (-4, 0, ROWS - KEYS):
        held = [np.from_dlpack(each.at(first)) for each in buffers]
        for each in held:
            each[...] = rng.normal(size=each.shape)
        before = [each.copy() for each in held]
        logits, *presents = code.held([*given, *(tvm.runtime.tensor(each[:, :, :PAST].copy()) for each in held)])
        run(first)
        np.testing.assert_array_equal(result.numpy(), logits)
        for old, new, present in zip(before, held, presents, strict=True):
            np.testing.assert_array_equal(new[:, :, :KEYS], present)
            np.testing.assert_array_equal(new[:, :, KEYS:], old[:, :, KEYS:])
    for rows, dtype in ((KEYS - 1, "float32"), (KEYS, "float16")):
        wrong = CacheRows(TensorSpec("key", dtype, CACHE), AXIS, rows, before=0)
        with pytest.raises(ValueError, match=rf"its cache is float32\[1, {KEY_HEADS}, {KEYS}, {HEAD}\], not {dtype}"):
            code.cached.bound([*given, wrong, wrong], [result])
