"""Indices outside of their tensors: look-ups give NaN or the nearest element, scatters drop the element."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from onnx import helper
from tvm import relax

from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.onnx_models import TARGET, onnx_model, run_imported, together
from tests.support.unoptimized import outputs_of

Array = npt.NDArray[Any]
DATA = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4) + 1
INDICES = np.array([-4, -3, -1, 0, 2, 3])
"""along an axis of 3: two are outside"""
FAR = np.array([2**31 + 1, -(2**31), 2**62, -(2**62), 2**63 - 1, -(2**63)])


def run(operator: str, *cases: Sequence[Array], **attributes: Any) -> list[Array]:
    """What the operator computes in each case, in one model."""
    models = []
    for inputs in cases:
        given = {f"i{at}": value for at, value in enumerate(inputs)}
        models.append((onnx_model([helper.make_node(operator, list(given), ["y"], **attributes)], given), given))
    return run_imported(*together(models))


def looked_up(data: Array, indices: Array, axis: int) -> Array:
    """NumPy's look-up with the rule of these kernels."""
    count = data.shape[axis]
    wrapped = np.where(indices < 0, indices + count, indices)
    found = data.take(wrapped.clip(0, count - 1), axis)
    if found.dtype.kind == "f":
        outside = ((wrapped < 0) | (wrapped >= count)).reshape([-1 if at == axis else 1 for at in range(data.ndim)])
        found = np.where(outside, np.array(np.nan, found.dtype), found)
    return found


NEAR = [(DATA.astype(dtype), INDICES.astype(kind)) for dtype in ("float32", "int32") for kind in (np.int64, np.int32)]
FAR_AWAY = [(DATA.astype(dtype), FAR) for dtype in ("float32", "int32")]


@pytest.mark.parametrize("cases", [NEAR, FAR_AWAY], ids=["near", "far"])
def test_a_gather_outside_of_its_tensor_reads_nothing_else(cases: list[tuple[Array, Array]]) -> None:
    for found, (data, indices) in zip(run("Gather", *cases, axis=1), cases, strict=True):
        np.testing.assert_array_equal(found, looked_up(data, indices, 1))


def test_a_gather_of_another_type_reads_nothing_else() -> None:
    cases = [(DATA.astype(dtype), INDICES) for dtype in ("float16", "float64", "uint8", "bool")]
    for found, (data, _) in zip(run("Gather", *cases, axis=0), cases, strict=True):
        np.testing.assert_array_equal(found, looked_up(data, INDICES, 0))


def test_a_gather_by_one_number() -> None:
    inside, outside = run("Gather", [DATA, np.array(1)], [DATA, np.array(3)], axis=1)
    np.testing.assert_array_equal(inside, DATA[:, 1])
    np.testing.assert_array_equal(outside, np.full((2, 4), np.nan))


def test_a_gather_of_elements_reads_nothing_else() -> None:
    cases = [*NEAR, *FAR_AWAY]
    wide = [(data, np.broadcast_to(indices[:, None], (2, len(indices), 4))) for data, indices in cases]
    for found, (data, indices) in zip(run("GatherElements", *wide, axis=1), cases, strict=True):
        np.testing.assert_array_equal(found, looked_up(data, indices, 1))


@pytest.mark.parametrize("batched", [0, 1])
def test_a_gather_by_coordinates_reads_nothing_else(batched: int) -> None:
    indices = np.array([[[0, 1], [1, 3], [0, -4]], [[1, -1], [0, 4], [2**62, 0]]])[:, :, batched:]
    (found,) = run("GatherND", [DATA, indices], batch_dims=batched)
    expected = np.full((2, 3, 4), np.nan)
    if batched:
        expected[0, 0], expected[1, 0], expected[1, 2] = DATA[0, 1], DATA[1, -1], DATA[1, 0]
    else:
        expected[0, 0], expected[1, 0] = DATA[0, 1], DATA[1, -1]
    np.testing.assert_array_equal(found, expected)


REDUCED: list[tuple[str, Any]] = [
    ("none", lambda _, new: new), ("add", np.add), ("mul", np.multiply), ("min", np.minimum), ("max", np.maximum),
]  # fmt: skip


@pytest.mark.parametrize(("reduction", "combine"), REDUCED)
def test_a_scatter_of_elements_writes_nothing_else(reduction: str, combine: Any) -> None:
    indices = np.array([[[3, -4, 1, 2**62]], [[-1, 0, -(2**62), 5]]])
    updates = np.arange(8, dtype=np.float32).reshape(2, 1, 4) - 3
    expected = DATA.copy()
    for image, row, column in ((0, 1, 2), (1, 2, 0), (1, 0, 1)):
        expected[image, row, column] = combine(DATA[image, row, column], updates[image, 0, column])
    (found,) = run("ScatterElements", [DATA, indices, updates], axis=1, reduction=reduction)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(("reduction", "combine"), REDUCED)
def test_a_scatter_by_coordinates_writes_nothing_else(reduction: str, combine: Any) -> None:
    indices = np.array([[0, 3], [1, -1], [0, -4], [2, 0], [2**62, 2**62], [-3, 1], [0, 0]])
    updates = np.arange(28, dtype=np.float32).reshape(7, 4) - 11
    expected = DATA.copy()
    for place, number in (((1, 2), 1), ((0, 0), 6)):
        expected[place] = combine(DATA[place], updates[number])
    np.testing.assert_array_equal(run("ScatterND", [DATA, indices, updates], reduction=reduction)[0], expected)


def test_a_model_can_scatter_several_times() -> None:
    indices, updates = np.array([[3], [1]]), np.ones((2, 2, 4), np.float32)
    given = {"x": np.zeros((3, 2, 4), np.float32), "i": indices, "u": updates}
    nodes = [helper.make_node("ScatterND", [x, "i", "u"], [y], reduction="add") for x, y in ("xa", "ab", "by")]
    (found,) = run_imported(onnx_model(nodes, given), given)
    np.testing.assert_array_equal(found[:, 0, 0], [0, 3, 0])


def module_of(inputs: Mapping[str, Array], operator: Any) -> tvm.IRModule:
    """`operator` of the inputs' variables."""
    variables = [relax.Var(name, relax.TensorType(each.shape, str(each.dtype))) for name, each in inputs.items()]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(operator(*variables))
        builder.emit_func_output(result)
    return builder.get()


def run_relax(inputs: Mapping[str, Array], operator: Any) -> Array:
    return outputs_of(prepare(module_of(inputs, operator), TARGET), TARGET, *inputs.values())[0]


def test_an_index_by_several_arrays_reads_nothing_else() -> None:
    """PyTorch's, whose negative indices count from the end."""
    given = {"x": DATA, "i": np.array([[0], [-1]]), "j": np.array([2, 3, -3, -4])}
    found = run_relax(given, lambda x, i, j: relax.op.index_tensor(x, [i, j]))
    expected = DATA[np.array([[0], [-1]]), np.array([2, 0, -3, 0])]
    expected[:, [1, 3]] = np.nan
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("accumulate", [False, True])
def test_a_store_by_several_arrays_writes_nothing_else(accumulate: bool) -> None:  # noqa: FBT001
    given = {"x": DATA[0], "i": np.array([0, -1, 1, 3]), "j": np.array([4, 1, -5, 0]), "u": np.full(4, 50, np.float32)}
    found = run_relax(given, lambda x, i, j, u: relax.op.index_put(x, (i, j), u, accumulate))
    expected = DATA[0].copy()
    expected[2, 1] = 50 + accumulate * expected[2, 1]
    np.testing.assert_array_equal(found, expected)


def test_a_region_of_an_image_that_is_not_there_is_of_the_nearest_one() -> None:
    image = np.arange(2 * 1 * 4 * 4, dtype=np.float32).reshape(2, 1, 4, 4)
    box = np.tile(np.array([0, 0, 2, 2], np.float32), (4, 1))
    (found,) = run("RoiAlign", [image, box, np.array([0, 1, 2, -1])], output_height=2, output_width=2)
    np.testing.assert_array_equal(found, found[[0, 1, 1, 0]])
    assert (found[0] != found[1]).all()


def scatter_rows(x: Any, i: Any, u: Any) -> Any:
    return relax.op.scatter_nd(x, relax.op.expand_dims(i, 1), u)


@pytest.mark.parametrize("target", [TARGET, parse_target("cuda:sm_90", 1)], ids=["cpu", "gpu"])
def test_kernels_for_cpus_and_gpus_check(target: tvm.target.Target) -> None:
    """TVM has another kernel of a scatter for GPUs."""
    given = {"x": DATA[0], "i": INDICES, "u": np.zeros((6, 4), np.float32)}
    for operator, check in ((lambda x, i, _: relax.op.take(x, i, 0), "T.if_then_else"), (scatter_rows, "if ")):
        assert check in prepare(module_of(given, operator), target).script()
