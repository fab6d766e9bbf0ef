"""What reductions accumulate in: float32 for half precision, several sums for very long ones, infinities."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax
from tvm.s_tir import Schedule

from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.rewriting.accumulators import accumulating, adds_in_half, leaf_blocks
from fractune_workers.children.tvm_api.traces import Workload
from tests.support.onnx_models import onnx_model, run_by_onnxruntime, run_imported
from tests.support.unoptimized import outputs_of

TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
GPU = tvm.target.Target("nvidia/nvidia-a100")
op = relax.op
TERMS = 4096
"""ones, whose sum stays at 2048 in float16 when they are added one by one"""


def module(call: Callable[..., Any], shapes: list[list[int]], dtype: str) -> tvm.IRModule:
    builder = relax.BlockBuilder()
    params = [relax.Var(f"x{at}", relax.TensorType(shape, dtype)) for at, shape in enumerate(shapes)]
    with builder.function("main", params):
        with builder.dataflow():
            result = builder.emit_output(builder.emit(call(*params)))
        builder.emit_func_output(result)
    return builder.get()


def output(call: Callable[..., Any], *args: Any) -> Any:
    mod = prepare(module(call, [list(each.shape) for each in args], str(args[0].dtype)), TARGET)
    return outputs_of(mod, TARGET, *args)[0]


def scattered(x: Any, updates: Any) -> Any:
    return op.scatter_elements(x, relax.const(np.zeros((1, TERMS)), "int64"), updates, axis=1, reduction="add")


def per_image(compute: Any) -> Callable[[Any], Any]:
    return lambda x: compute(x, (8, 8))


IMAGE, LINE, VOLUME = [1, 8, 8, 8], [1, 8, 8], [1, 8, 8, 8, 8]
ROWS = [4, TERMS]
REDUCED = ("sum", "mean", "prod", "std", "variance")
KINDS: dict[str, tuple[Callable[..., Any], list[list[int]]]] = {
    **{name: (lambda x, name=name: getattr(op, name)(x, [1]), [ROWS]) for name in REDUCED},
    "cumsum": (lambda x: op.cumsum(x, 1), [ROWS]),
    "cumprod": (lambda x: op.cumprod(x, 1), [ROWS]),
    "softmax": (op.nn.softmax, [ROWS]),
    "softmax of columns": (lambda x: op.nn.softmax(x, 0), [ROWS]),
    "log_softmax": (op.nn.log_softmax, [ROWS]),
    "layer_norm": (lambda x, a, b: op.nn.layer_norm(x, a, b, axes=[-1]), [ROWS, [TERMS], [TERMS]]),
    "rms_norm": (lambda x, a: op.nn.rms_norm(x, a, axes=[-1]), [ROWS, [TERMS]]),
    "group_norm": (lambda x, a, b: op.nn.group_norm(x, a, b, 2, 1, [2, 3]), [IMAGE, [8], [8]]),
    "instance_norm": (lambda x, a, b: op.nn.instance_norm(x, a, b, 1, [2, 3]), [IMAGE, [8], [8]]),
    "batch_norm": (lambda x, *rest: op.nn.batch_norm(x, *rest, axis=1)[0], [IMAGE, *[[8]] * 4]),
    "avg_pool1d": (lambda x: op.nn.avg_pool1d(x, 8), [LINE]),
    "avg_pool2d": (lambda x: op.nn.avg_pool2d(x, (8, 8)), [IMAGE]),
    "avg_pool3d": (lambda x: op.nn.avg_pool3d(x, (8, 8, 8)), [VOLUME]),
    "adaptive_avg_pool2d": (lambda x: op.nn.adaptive_avg_pool2d(x, (1, 1)), [IMAGE]),
    "matmul": (op.matmul, [ROWS, [TERMS, 4]]),
    "batched matmul": (op.matmul, [[2, 4, 64], [2, 64, 4]]),
    "vectors": (op.matmul, [[TERMS], [TERMS]]),
    "einsum": (lambda x, y: op.einsum((x, y), "ij,kj->ik"), [ROWS, ROWS]),
    "linear": (op.linear, [ROWS, [4, TERMS], [4]]),
    "conv1d": (op.nn.conv1d, [LINE, [8, 8, 3]]),
    "conv2d": (op.nn.conv2d, [IMAGE, [8, 8, 3, 3]]),
    "grouped": (lambda x, y: op.nn.conv2d(x, y, groups=2, padding=1), [IMAGE, [8, 4, 3, 3]]),
    "depthwise": (lambda x, y: op.nn.conv2d(x, y, groups=8), [IMAGE, [8, 1, 3, 3]]),
    "conv3d": (op.nn.conv3d, [VOLUME, [8, 8, 3, 3, 3]]),
    "conv1d_transpose": (op.nn.conv1d_transpose, [LINE, [8, 8, 3]]),
    "conv2d_transpose": (op.nn.conv2d_transpose, [IMAGE, [8, 8, 3, 3]]),
    "grouped transpose": (lambda x, y: op.nn.conv2d_transpose(x, y, groups=2), [IMAGE, [8, 4, 3, 3]]),
    "conv3d_transpose": (op.nn.conv3d_transpose, [VOLUME, [8, 8, 3, 3, 3]]),
    "attention": (op.nn.attention, [[1, 16, 2, 8]] * 3),
    "resize": (lambda x: op.image.resize2d(x, (5, 5), layout="NCHW", method="cubic"), [IMAGE]),
    "scatter": (scattered, [[1, 4], [1, TERMS]]),
}  # fmt: skip


# Relax has no group_norm of bfloat16.
HALVES = [
    (kind, dtype) for kind in KINDS for dtype in ("float16", "bfloat16") if (kind, dtype) != ("group_norm", "bfloat16")
]


@pytest.mark.parametrize(("kind", "dtype"), HALVES)
def test_no_kernel_of_any_operator_adds_in_half_precision(kind: str, dtype: str) -> None:
    call, shapes = KINDS[kind]
    for target in (TARGET, GPU) if dtype == "float16" else (TARGET,):
        mod = prepare(module(call, shapes, dtype), target)
        kernels = [each for each in mod.functions.values() if isinstance(each, tvm.tirx.PrimFunc)]
        assert kernels
        assert not any(adds_in_half(block) for each in kernels for block in leaf_blocks(each))


def test_the_operators_as_tvm_makes_them_do() -> None:
    """So the test above can fail."""
    mod = relax.transform.LegalizeOps()(module(op.matmul, [[4, 8], [8, 4]], "float16"))
    assert any(adds_in_half(block) for block in leaf_blocks(mod["matmul"]))


ONES = np.ones((1, TERMS), "float16")


@pytest.mark.parametrize(
    ("call", "args", "expected"),
    [
        pytest.param(lambda x: op.sum(x, [1]), [ONES], TERMS, id="sum"),
        pytest.param(lambda x: op.mean(x, [1]), [100 * ONES], 100, id="mean"),
        pytest.param(lambda x: op.max(op.cumsum(x, 1), [1]), [ONES], TERMS, id="cumsum"),
        pytest.param(op.matmul, [ONES, ONES.T.copy()], TERMS, id="product"),
        pytest.param(lambda x: op.sum(op.nn.softmax(x), [1]), [ONES], 1, id="softmax"),
        pytest.param(scattered, [np.zeros((1, 1), "float16"), ONES], TERMS, id="scatter"),
    ],
)
def test_a_long_sum_loses_no_terms_and_keeps_its_type(call: Any, args: list[Any], expected: float) -> None:
    found = output(call, *args)
    assert (found.item(), str(found.dtype)) == (expected, "float16")


def test_sums_in_a_scheduled_function_stay_as_they_are() -> None:
    mod = relax.transform.LegalizeOps()(module(op.matmul, [[4, 8], [8, 4]], "float16"))
    scheduled = mod["matmul"].with_attrs({"tirx.is_scheduled": True})
    assert accumulating(scheduled).same_as(scheduled)


@pytest.mark.parametrize("shape", [(1 << 22,), (4, 1 << 20), (3, 5, 70_001), (1 << 11, 1 << 11), (200_003, 2)])
def test_a_very_long_sum_is_as_exact_as_a_short_one(shape: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(1).uniform(0, 1, shape).astype("float32")
    np.testing.assert_allclose(output(op.mean, numbers), numbers.mean(dtype="float64"), rtol=2e-5)


def test_very_long_sums_of_products_and_of_squares_are_exact_too() -> None:
    row = np.random.default_rng(1).uniform(0, 1, (2, 200_000)).astype("float32")
    exact = row.astype("float64")
    np.testing.assert_allclose(output(op.matmul, row, row.T.copy()), exact @ exact.T, rtol=2e-5)
    np.testing.assert_allclose(output(lambda x: op.variance(x, [1]), row), exact.var(1), rtol=1e-4)
    unit = np.ones(200_000, "float32")
    normed = output(lambda x, a, b: op.nn.layer_norm(x, a, b, axes=[-1]), row, unit, 0 * unit)
    expected = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(normed, expected, rtol=1e-3, atol=1e-4)


INFINITE = [[-np.inf] * 8, [np.inf] * 8, [np.nan] * 8, [1.0, np.nan] * 4]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_largest_of_infinities_is_one(dtype: str) -> None:
    rows = np.array(INFINITE, dtype)
    np.testing.assert_array_equal(output(lambda x: op.max(x, [1]), rows), np.array([-np.inf, np.inf, np.nan, 1]))
    np.testing.assert_array_equal(output(lambda x: op.min(x, [1]), rows), np.array([-np.inf, np.inf, np.nan, 1]))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_padding_of_a_maximum_is_no_result(dtype: str) -> None:
    images = np.full((1, 2, 6, 6), -np.inf, dtype)
    pooled = output(lambda x: op.nn.max_pool2d(x, (3, 3), padding=(1, 1, 1, 1)), images)
    np.testing.assert_array_equal(pooled, images)


def test_a_split_maximum_begins_at_an_infinity_too() -> None:
    mod = prepare(module(lambda x: op.max(x, [1]), [[4, 16]], "float32"), TARGET)
    sch = Schedule(Workload.of(tvm.IRModule({"main": mod["max"].with_attr("global_symbol", "main")})).mod)
    block = sch.get_child_blocks(sch.get_sblock("root", "main"))[0]
    outer, _ = sch.split(sch.get_loops(block)[-1], [4, None])
    sch.rfactor(outer, 1)
    limits = [block.init.value.value for block in leaf_blocks(sch.mod["main"]) if block.init is not None]
    assert limits == [-np.inf, -np.inf]


@pytest.mark.parametrize("dtype", ["float32", "int8", "uint8", "int32", "int64"])
def test_a_row_of_the_types_limits_has_a_place(dtype: str) -> None:
    limits = np.finfo(dtype) if "float" in dtype else np.iinfo(dtype)
    rows = np.array([[limits.min] * 5, [limits.max] * 5, [3, 3, 1, 1, 2]], dtype)
    if "float" in dtype:
        rows = np.concatenate(
            [rows, np.array([[np.inf] * 5, [-np.inf] * 5, [np.nan] * 5, [1, 2, np.nan, 0, np.nan]], dtype)]
        )
    cases = [(kind, last) for kind in ("ArgMax", "ArgMin") for last in (0, 1)]
    nodes = [
        helper.make_node(kind, ["x"], [f"{kind}{last}"], axis=1, keepdims=0, select_last_index=last)
        for kind, last in cases
    ]
    model = onnx_model(nodes, {"x": rows}, opset=13, outputs=[node.output[0] for node in nodes])
    found, expected = run_imported(model, {"x": rows}), run_by_onnxruntime(model, {"x": rows})
    for case, ours, theirs in zip(cases, found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs, str(case))
