"""Zeros, infinities and NaN in arithmetic, and casts there and back: as ONNX Runtime computes them."""

import math
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tvm import relax

from fractune_workers.children.rewriting import special_numbers
from fractune_workers.children.rewriting.special_numbers import LEGALIZATIONS_FOR_CPUS
from tests.support.onnx_models import onnx_model, run_by_onnxruntime, run_imported, together

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


def test_a_choice_between_constants_and_others() -> None:
    """Also broadcast, and a constant of a type that TVM's kernels cannot hold as a number."""
    pairs = [("one", "x"), ("x", "zero"), ("most", "x"), ("one", "zero"), ("x", "x")]
    cases, expected = [], []
    for dtype in ("int32", "int64", "uint8", "uint64", "float32"):
        largest = np.iinfo(dtype).max if dtype != "float32" else INF
        given = {"c": np.array([[True], [False]]), "x": np.arange(3).astype(dtype)}
        constants = {"one": np.array(1, dtype), "zero": np.array(0, dtype), "most": np.array(largest, dtype)}
        nodes = [helper.make_node("Where", ["c", *pair], ["_".join(pair)]) for pair in pairs]
        cases.append((onnx_model(nodes, given, constants, outputs=["_".join(pair) for pair in pairs]), given))
        known = {**given, **constants}
        expected += [np.where(given["c"], known[one], known[other]) for one, other in pairs]
    model, inputs = together(cases)
    for output, ours, wanted in zip(model.graph.output, run_imported(model, inputs), expected, strict=True):
        assert ours.dtype == wanted.dtype
        np.testing.assert_array_equal(ours, wanted, output.name)


LIMITS = [(-1.0, 1.0), (0.0, INF), (-INF, 2.0)]


# An attribute, which opset 6 has, is no NaN.
@pytest.mark.parametrize(("opset", "several"), [(6, LIMITS), (13, [*LIMITS, (NAN, 1.0)])])
def test_clip_keeps_nan(opset: int, several: list[tuple[float, float]]) -> None:
    numbers, cases = np.array(NUMBERS, "float32"), []
    for limits in several:
        low, high = (np.array(each, "float32") for each in limits)
        old = helper.make_node("Clip", ["x"], ["y"], min=limits[0], max=limits[1])
        node = old if opset < 11 else helper.make_node("Clip", ["x", "low", "high"], ["y"])
        weights = {} if opset < 11 else {"low": low, "high": high}
        cases.append((onnx_model([node], {"x": numbers}, weights, opset=opset), {"x": numbers}))
    model, given = together(cases)
    for ours, theirs in zip(run_imported(model, given), run_by_onnxruntime(model, given), strict=True):
        assert_same(ours, theirs, "Max of Clip")


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


CASTS: list[tuple[Any, list[int]]] = [
    (FLOATS.astype("float32"), [T.BFLOAT16, T.FLOAT]),
    (FLOATS.astype("float32"), [T.FLOAT16, T.FLOAT]),
    (FLOATS, [T.FLOAT, T.DOUBLE]),
    (FLOATS, [T.BFLOAT16, T.DOUBLE]),
    (FLOATS.astype("float32"), [T.FLOAT16, T.BFLOAT16, T.FLOAT]),
    (FLOATS.astype("float32"), [T.BFLOAT16, T.FLOAT16, T.FLOAT]),
    (INTEGERS, [T.INT8, T.INT64]),
    (INTEGERS, [T.INT16, T.INT64]),
    (INTEGERS, [T.INT32, T.INT64]),
    (INTEGERS, [T.UINT8, T.INT64]),
    (INTEGERS, [T.FLOAT, T.DOUBLE]),
    (INTEGERS[:9], [T.BFLOAT16, T.FLOAT]),
]


def test_a_cast_there_and_back_rounds() -> None:
    cases = []
    for numbers, kinds in CASTS:
        names = ["x", *(f"y{at}" for at in range(len(kinds)))]
        nodes = [helper.make_node("Cast", [names[at]], [names[at + 1]], to=kind) for at, kind in enumerate(kinds)]
        cases.append((onnx_model(nodes, {"x": numbers}), {"x": numbers}))
    model, given = together(cases)
    found, expected = run_imported(model, given), run_by_onnxruntime(model, given)
    for (_, kinds), ours, theirs in zip(CASTS, found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, str(kinds))


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
