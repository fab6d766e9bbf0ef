"""The encoder that benchmarks write: it means what ONNX says, and all its parts have kernels of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm

from benchmarks.support.reference import expected_outputs
from benchmarks.support.transformer import Encoder
from fractune_workers.children.importing.model_file import load_variants
from fractune_workers.children.importing.passes import extract, prepare
from tests.support.unoptimized import outputs_of

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
SMALL = Encoder(layers=2, width=16, heads=2, inner=32, length=8, vocabulary=10)


def test_it_computes_what_onnx_says_by_few_operators(tmp_path: Path) -> None:
    path = tmp_path / "encoder.onnx"
    SMALL.save(path)
    rng = np.random.default_rng(0)
    inputs = {"ids": rng.integers(0, SMALL.vocabulary, (1, SMALL.length)), "mask": np.ones((1, SMALL.length), "int64")}
    inputs["mask"][0, -2:] = 0

    (module,) = load_variants(path, {}).modules
    prepared = prepare(module, TARGET)
    (found,) = outputs_of(prepared, TARGET, *inputs.values())
    (expected,) = expected_outputs(path, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

    names = [operator.name for operator in extract(prepared, TARGET)]
    assert sum("matmul" in name for name in names) == 6  # two products of computed values, four forms of others
    assert not [name for name in names if "mean" in name or "erf" in name]
    assert [name for name in names if "softmax" in name] == ["softmax"]
