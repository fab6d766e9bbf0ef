"""Zeros, infinities and NaN in arithmetic, and casts there and back: as ONNX Runtime computes them."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

from fractune_workers.children.rewriting import special_numbers
from fractune_workers.children.rewriting.special_numbers import LEGALIZATIONS_FOR_CPUS
from tests.support.onnx_models import onnx_model, run_by_onnxruntime, run_imported

NAN, INF = math.nan, math.inf
CONSTANTS = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN]
NUMBERS = [*CONSTANTS, 2.5, -2.5, 300.0]
OPERATORS = "Add Sub Mul Div Pow Max Min Mod Equal Less Greater LessOrEqual GreaterOrEqual"
ALONE = ["IsNaN", "IsInf", "Relu", "Abs", "Neg", "Floor"]


def assert_same(ours: Any, theirs: Any, what: str) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, err_msg=what)
    if ours.dtype != bool and not what.startswith(("Max", "Min")):  # of 0.0 and -0.0 either is the larger one
        np.testing.assert_array_equal(np.signbit(ours[ours == 0]), np.signbit(theirs[ours == 0]), what)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_arithmetic_with_constants(dtype: str) -> None:
    """Each constant on either side, and the numbers with themselves."""
    numbers = np.array(NUMBERS, dtype)
    constants = {f"c{at}": np.array(each, dtype) for at, each in enumerate(CONSTANTS)}
    pairs = [("x", "x"), *(("x", name) for name in constants), *((name, "x") for name in constants)]
    options: dict[str, dict[str, Any]] = {"Mod": {"fmod": 1}}
    nodes = [
        helper.make_node(kind, pair, [f"{kind} of {' and '.join(pair)}"], **options.get(kind, {}))
        for kind in OPERATORS.split()
        for pair in pairs
    ]
    outputs = [str(each.output[0]) for each in nodes]
    model = onnx_model(nodes, {"x": numbers}, constants, opset=20, outputs=outputs)
    with np.errstate(all="ignore"):
        for output, ours, theirs in zip(
            outputs, run_imported(model, {"x": numbers}), run_by_onnxruntime(model, {"x": numbers}), strict=True
        ):
            assert_same(ours, theirs, f"{output}, {constants}")


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_operators_of_one_number(dtype: str) -> None:
    numbers = np.array(NUMBERS, dtype)
    model = onnx_model(
        [helper.make_node(kind, ["x"], [kind]) for kind in ALONE], {"x": numbers}, opset=20, outputs=ALONE
    )
    found, expected = run_imported(model, {"x": numbers}), run_by_onnxruntime(model, {"x": numbers})
    for kind, ours, theirs in zip(ALONE, found, expected, strict=True):
        assert_same(ours, theirs, f"Max {kind}")


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8", "uint64", "float32"])
def test_a_choice_between_constants_and_others(dtype: str) -> None:
    """Also broadcast, and a constant of a type that TVM's kernels cannot hold as a number."""
    largest = np.iinfo(dtype).max if dtype != "float32" else INF
    given = {"c": np.array([[True], [False]]), "x": np.arange(3).astype(dtype)}
    constants = {"one": np.array(1, dtype), "zero": np.array(0, dtype), "most": np.array(largest, dtype)}
    pairs = [("one", "x"), ("x", "zero"), ("most", "x"), ("one", "zero"), ("x", "x")]
    nodes = [helper.make_node("Where", ["c", *pair], ["_".join(pair)]) for pair in pairs]
    model = onnx_model(nodes, given, constants, outputs=["_".join(pair) for pair in pairs])
    for pair, ours in zip(pairs, run_imported(model, given), strict=True):
        sides = ({**given, **constants}[name] for name in pair)
        np.testing.assert_array_equal(ours, np.where(given["c"], *sides), str(pair))


LIMITS = [(-1.0, 1.0), (0.0, INF), (-INF, 2.0)]


# An attribute, which opset 6 has, is no NaN.
@pytest.mark.parametrize(("opset", "limits"), [*product([6, 13], LIMITS), (13, (NAN, 1.0))])
def test_clip_keeps_nan(opset: int, limits: tuple[float, float]) -> None:
    numbers = np.array(NUMBERS, "float32")
    low, high = (np.array(each, "float32") for each in limits)
    old = helper.make_node("Clip", ["x"], ["y"], min=limits[0], max=limits[1])
    node = old if opset < 11 else helper.make_node("Clip", ["x", "low", "high"], ["y"])
    model = onnx_model([node], {"x": numbers}, {} if opset < 11 else {"low": low, "high": high}, opset=opset)
    assert_same(run_imported(model, {"x": numbers})[0], run_by_onnxruntime(model, {"x": numbers})[0], "Max of Clip")


def test_maximum_of_two_tensors_is_nan_where_either_is() -> None:
    x, y = (np.array(each, "float32") for each in ([1, NAN, INF, NAN], [NAN, 1, NAN, NAN]))
    for kind in ("Max", "Min"):
        model = onnx_model([helper.make_node(kind, ["x", "y"], ["z"])], {"x": x, "y": y})
        assert np.isnan(run_imported(model, {"x": x, "y": y})[0]).all()


FLOATS = np.concatenate(
    [np.random.default_rng(1).normal(0, 1, 50), [1 + 2**-8, 1 + 3 * 2**-8, NAN, INF, 65520, 6e-8, -0.0]]
)
INTEGERS = np.array([0, 127, 128, 255, 256, -1, -129, 32768, 65537, 2**31, 2**40 + 3, -(2**33) - 5])
T = TensorProto


@pytest.mark.parametrize(
    ("numbers", "kinds"),
    [
        pytest.param(FLOATS.astype("float32"), [T.BFLOAT16, T.FLOAT], id="bfloat16"),
        pytest.param(FLOATS.astype("float32"), [T.FLOAT16, T.FLOAT], id="float16"),
        pytest.param(FLOATS, [T.FLOAT, T.DOUBLE], id="float32"),
        pytest.param(FLOATS, [T.BFLOAT16, T.DOUBLE], id="float64 to bfloat16"),
        pytest.param(FLOATS.astype("float32"), [T.FLOAT16, T.BFLOAT16, T.FLOAT], id="float16 to bfloat16"),
        pytest.param(FLOATS.astype("float32"), [T.BFLOAT16, T.FLOAT16, T.FLOAT], id="bfloat16 to float16"),
        pytest.param(INTEGERS, [T.INT8, T.INT64], id="int8"),
        pytest.param(INTEGERS, [T.INT16, T.INT64], id="int16"),
        pytest.param(INTEGERS, [T.INT32, T.INT64], id="int32"),
        pytest.param(INTEGERS, [T.UINT8, T.INT64], id="uint8"),
        pytest.param(INTEGERS, [T.FLOAT, T.DOUBLE], id="integers to float32"),
        pytest.param(INTEGERS[:9], [T.BFLOAT16, T.FLOAT], id="integers to bfloat16"),
    ],
)
def test_a_cast_there_and_back_rounds(numbers: Any, kinds: list[int]) -> None:
    names = ["x", *(f"y{at}" for at in range(len(kinds)))]
    nodes = [helper.make_node("Cast", [names[at]], [names[at + 1]], to=kind) for at, kind in enumerate(kinds)]
    model = onnx_model(nodes, {"x": numbers})
    np.testing.assert_array_equal(run_imported(model, {"x": numbers})[0], run_by_onnxruntime(model, {"x": numbers})[0])


@pytest.mark.parametrize("other", [(), (1,), (1, 8)], ids=["a number", "an element", "a tensor"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("operator", [relax.op.maximum, relax.op.minimum])
def test_extremes_of_one_batch_are_fused_as_elementwise_kernels(
    operator: Any, dtype: str, other: tuple[int, ...]
) -> None:
    """A quantized product ends with them: as kernels of their own, they would read and write the whole result again."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((1, 8), dtype))
    limit = relax.Var("limit", relax.TensorType(other, dtype))
    with builder.function("main", [data, limit]):
        builder.emit_func_output(builder.emit(operator(data, limit)))
    legal = relax.transform.LegalizeOps(LEGALIZATIONS_FOR_CPUS)(builder.get())
    marked = relax.transform.AnnotateTIROpPattern()(legal)
    patterns = [f.attrs["op_pattern"] for f in marked.functions.values() if "op_pattern" in f.attrs]
    assert patterns == [0]


@pytest.mark.parametrize("operator", [relax.op.max, relax.op.min])
def test_a_row_of_bfloat16_has_an_extreme(operator: Any) -> None:
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType((3, 8), "bfloat16"))
    with builder.function("main", [data]):
        builder.emit_func_output(builder.emit(operator(data, axis=[1])))
    legal = relax.transform.LegalizeOps(special_numbers.LEGALIZATIONS)(builder.get())
    assert len(legal.functions) == 2
