"""DynamicQuantizeLSTM: the numbers of ONNX Runtime, with weights that stay in 8 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from onnx import helper

from fractune_core.errors import BadModel
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.weights import LiftedWeights
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported

Array = npt.NDArray[Any]
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
NAMES = ("X", "W", "R", "B", "", "initial_h", "initial_c", "", "W_scale", "W_zero", "R_scale", "R_zero")
INPUTS = ("X", "initial_h", "initial_c")


def operands(
    units: int, directions: int = 1, dtype: str = "int8", zero: int = 0, *, columns: bool = False
) -> dict[str, Array]:
    """Weights by one scale each, or with `columns` by one for each column."""
    rng = np.random.default_rng(0)
    scales = (directions, 4 * units) if columns else (directions,)
    info = np.iinfo(dtype)
    made: dict[str, Array] = {"X": rng.standard_normal((4, 1, 7)).astype(np.float32)}
    for name, read in (("W", 7), ("R", units)):
        made[name] = rng.integers(info.min, info.max + 1, (directions, read, 4 * units)).astype(dtype)
        made[f"{name}_scale"] = rng.uniform(0, 0.01, scales).astype(np.float32)
        made[f"{name}_zero"] = np.full(scales, zero, dtype)
    made["B"] = rng.standard_normal((directions, 8 * units)).astype(np.float32)
    for name in ("initial_h", "initial_c"):
        made[name] = rng.standard_normal((directions, 1, units)).astype(np.float32)
    return made


def model_of(values: dict[str, Array]) -> onnx.ModelProto:
    directions, units = values["initial_h"].shape[0], values["initial_h"].shape[2]
    direction = "bidirectional" if directions == 2 else "forward"
    node = helper.make_node(
        "DynamicQuantizeLSTM",
        NAMES,
        ["Y", "Y_h", "Y_c"],
        "cell",
        domain="com.microsoft",
        hidden_size=units,
        direction=direction,
    )
    given = {name: values[name] for name in INPUTS}
    return onnx_model([node], given, {name: each for name, each in values.items() if name not in INPUTS}, opset=17)


@pytest.mark.parametrize(
    "values",
    [
        operands(8),
        operands(21, directions=2, columns=True),
        operands(16, directions=2, zero=3),
        operands(300, dtype="uint8", zero=100, columns=True),
        operands(530),
    ],
    ids=["one scale", "scales of columns", "a zero point", "sums in parts", "sums in parts of int8"],
)
def test_the_numbers_of_onnx_runtime(tmp_path: Path, values: dict[str, Array]) -> None:
    model = model_of(values)
    given = {name: values[name] for name in INPUTS}
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    expected = run_by_onnxruntime(tmp_path / "model.onnx", given)
    for ours, theirs in zip(run_imported(model, given, AVX2), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_recurrent_weights_stay_in_bytes() -> None:
    weights = LiftedWeights()
    weights.lifted(prepare(imported(model_of(operands(64))), AVX2))
    recurrent = [tensor for tensor in weights.tensors if tensor.numpy().size == 64 * 4 * 64]
    assert [str(tensor.dtype) for tensor in recurrent] == ["int8"]


def test_a_refusal_names_the_node() -> None:
    values = operands(8)
    values["R_scale"] = np.ones(3, np.float32)
    with pytest.raises(
        BadModel, match=r"node 'cell' \(com\.microsoft\.DynamicQuantizeLSTM\): a scale has the shape \[3\]"
    ):
        imported(model_of(values))
