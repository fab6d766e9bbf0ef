"""DynamicQuantizeLSTM: the numbers of ONNX Runtime, with weights that stay in 8 bits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
import tvm
from onnx import helper

from fractune_core.errors import BadModel
from fractune_runtime.sessions import OnnxRuntimeSession
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.recurrent.kernel import recurrence_kernel
from fractune_workers.children.recurrent.recurrence import Activation, Recurrence
from fractune_workers.children.recurrent.tilings import tiling_for
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.target import missing_features
from tests.support.onnx_models import imported, onnx_model, run_by_onnxruntime, run_imported, together

Array = npt.NDArray[Any]
AVX2 = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "cascadelake"})
AVX_VNNI = tvm.target.Target({"kind": "llvm", "mcpu": "alderlake"})
TARGETS = [pytest.param(AVX2, id="AVX2"), pytest.param(VNNI, id="AVX512-VNNI"), pytest.param(AVX_VNNI, id="AVX-VNNI")]
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


VALUES = {
    "one scale": operands(8),
    "scales of columns": operands(21, directions=2, columns=True),
    "a zero point": operands(16, directions=2, zero=3),
    "sums in parts": operands(300, dtype="uint8", zero=100, columns=True),
    "sums in parts of int8": operands(530),
}


@pytest.mark.parametrize("target", TARGETS)
def test_the_numbers_of_onnx_runtime(tmp_path: Path, target: tvm.target.Target) -> None:
    if missing := missing_features(target):
        pytest.skip(f"this processor lacks {', '.join(missing)}")
    cases = [(model_of(values), {name: values[name] for name in INPUTS}) for values in VALUES.values()]
    model, given = together(cases)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    expected = run_by_onnxruntime(tmp_path / "model.onnx", given)
    for output, ours, theirs in zip(model.graph.output, run_imported(model, given, target), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6, err_msg=output.name)


def test_all_rows_of_a_step_have_one_range_as_on_one_thread_of_onnx_runtime() -> None:
    """With more threads ONNX Runtime takes a range for the rows of each thread, so its numbers depend on them."""
    rng, values = np.random.default_rng(1), operands(32)
    sizes = np.linspace(0.2, 5, 3, dtype=np.float32).reshape(1, 3, 1)
    for name, steps in (("X", 4), ("initial_h", 1), ("initial_c", 1)):
        shape = (steps, 3, values[name].shape[-1])
        values[name] = rng.standard_normal(shape).astype(np.float32) * sizes
    model = model_of(values)
    given = {name: values[name] for name in INPUTS}
    one, several = (OnnxRuntimeSession.exact(model.SerializeToString(), threads).run(given) for threads in (1, 4))
    for ours, theirs in zip(run_imported(model, given), one, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-6)
    assert max(float(np.abs(a - b).max()) for a, b in zip(one, several, strict=True)) > 1e-3


def test_arithmetic_on_the_shape_of_its_output_is_folded() -> None:
    model = model_of(operands(8, directions=2))
    nodes = [helper.make_node("Shape", ["Y"], ["shape"]), helper.make_node("Expand", ["initial_h", "shape"], ["wide"])]
    model.graph.node.extend(nodes)
    del model.graph.output[:]
    model.graph.output.append(helper.make_tensor_value_info("wide", onnx.TensorProto.FLOAT, None))
    assert list(imported(model)["main"].ret_ty.shape.values) == [4, 2, 1, 8]


@pytest.mark.parametrize(("target", "groups"), [(AVX2, 64), (VNNI, 17 * 4)], ids=["AVX2", "AVX512-VNNI"])
def test_recurrent_weights_stay_in_bytes(target: tvm.target.Target, groups: int) -> None:
    weights = LiftedWeights()
    weights.lifted(prepare(imported(model_of(operands(64))), target))
    recurrent = [tensor for tensor in weights.tensors if tensor.numpy().size == groups * 4 * 64]
    assert [str(tensor.dtype) for tensor in recurrent] == ["int8"]


@pytest.mark.parametrize(("target", "register"), [(VNNI, "zmm"), (AVX_VNNI, "ymm")], ids=["AVX512-VNNI", "AVX-VNNI"])
def test_bytes_are_multiplied_by_the_instruction_for_them(target: tvm.target.Target, register: str) -> None:
    """With at least 8 sums, and no sum that leaves its register between two products."""
    of = Recurrence("LSTM", 3, 1, 64, (False,), ((Activation("sigmoid"), *2 * (Activation("tanh"),)),))
    whole = replace(of, whole_weights="int8")
    load_intrinsics(target)
    kernel = recurrence_kernel(whole, tiling_for(whole, target)).with_attr("global_symbol", "main")
    code = tvm.compile(tvm.IRModule({"main": kernel}), target=target).mod.inspect_source("asm")
    products = [line.split() for line in code.splitlines() if "vpdpbusd" in line]
    assert all(line[-1].startswith(f"%{register}") for line in products)
    assert len({line[-1] for line in products}) >= 8
    assert "vpmaddubsw" not in code


def test_a_refusal_names_the_node() -> None:
    values = operands(8)
    values["R_scale"] = np.ones(3, np.float32)
    with pytest.raises(
        BadModel, match=r"node 'cell' \(com\.microsoft\.DynamicQuantizeLSTM\): a scale has the shape \[3\]"
    ):
        imported(model_of(values))
