"""Products of whole numbers: exact on every processor, by the instruction that it has, and never a saturating one."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tvm
from tvm import te, topi

from fractune_core.operators import INT8, INT16
from fractune_workers.children.layouts.kernels.direct import Bounds, Window, pack
from fractune_workers.children.layouts.kernels.integers import INTEGERS
from fractune_workers.children.searching.operator_search import OperatorSearch
from fractune_workers.children.tvm_api.dot_intrinsics import dot_product
from fractune_workers.children.tvm_api.target import missing_features, vector_unit
from fractune_workers.children.tvm_api.traces import Workload, read_trace
from tests.support.unoptimized import run_kernel

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

Array = npt.NDArray[Any]
BOUNDS = {INT8: Bounds((0, 255), (-128, 127)), INT16: Bounds((-255, 255), (-255, 255))}
SATURATING = "vpmaddubsw"
INSTRUCTIONS = [
    pytest.param("haswell", INT16, "vpmaddwd", "ymm", id="AVX2"),
    pytest.param("znver3", INT16, "vpmaddwd", "ymm", id="AVX2 of AMD"),
    pytest.param("skylake-avx512", INT16, "vpmaddwd", "zmm", id="AVX-512"),
    pytest.param("cascadelake", INT8, "vpdpbusd", "zmm", id="AVX512-VNNI"),
    pytest.param("sapphirerapids", INT8, "vpdpbusd", "zmm", id="AVX512-VNNI and AVX-VNNI"),
    pytest.param("sapphirerapids", INT16, "vpdpwssd", "zmm", id="AVX512-VNNI, pairs"),
    pytest.param("alderlake", INT8, "vpdpbusd", "ymm", id="AVX-VNNI"),
    pytest.param("alderlake", INT16, "vpdpwssd", "ymm", id="AVX-VNNI, pairs"),
]
PROCESSORS = [
    pytest.param("haswell", INT16, id="AVX2"),
    pytest.param("skylake-avx512", INT16, id="AVX-512"),
    pytest.param("cascadelake", INT8, id="AVX512-VNNI"),
    pytest.param("sapphirerapids", INT16, id="AVX512-VNNI, pairs"),
    pytest.param("alderlake", INT8, id="AVX-VNNI"),
    pytest.param("alderlake", INT16, id="AVX-VNNI, pairs"),
]
"""one of each instruction"""


def target_of(mcpu: str) -> tvm.target.Target:
    return tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 2})


def operands(name: str, rows: tuple[int, ...], depth: int, columns: int) -> tuple[Array, Array]:
    """Whole numbers over the whole range, its ends among them."""
    rng, bounds = np.random.default_rng(0), BOUNDS[name]
    data = rng.integers(bounds.data[0], bounds.data[1] + 1, (*rows, depth))
    weights = rng.integers(bounds.weights[0], bounds.weights[1] + 1, (depth, columns))
    data[..., 0, :], weights[:, 0] = bounds.data[1], bounds.weights[0]
    return data, weights


def packed(name: str, weights: Array, lanes: int) -> Array:
    return INTEGERS[name].pack(pack(weights.astype("float32"), 1, lanes).transpose(1, 0, 2).copy())


def workload_of(name: str, shape: tuple[int, ...], weights: Array, *, activated: bool = False) -> Workload:
    """The product of data of this shape and packed weights; `activated`: with a bias, and cut off at zero."""
    implementation = INTEGERS[name]
    given = [te.placeholder(shape, "float32"), te.placeholder(weights.shape, implementation.weight)]
    made = implementation.compute(*given)
    if activated:
        given.append(te.placeholder((weights.shape[0], weights.shape[2]), "float32"))
        made = topi.nn.relu(topi.add(made, given[-1]))
    function = te.create_prim_func([*given, made]).with_attr("global_symbol", "main")
    return Workload.of(tvm.IRModule({"main": function}))


def test_what_the_epilogue_adds_is_computed_where_it_is_added() -> None:
    """The outer product of two vectors comes before the kernel, and is none of its operands."""
    implementation, shape = INTEGERS[INT8], (10, 2, 16)
    kinds = [((10, 64), "float32"), ((2, 16, 16, 4), "int8"), ((10, 1, 1), "float32"), ((1, 2, 16), "float32")]
    data, columns, rows, factors = (te.placeholder(extents, dtype) for extents, dtype in kinds)
    outer = te.compute(shape, lambda m, n, lane: rows(m, 0, 0) * factors(0, n, lane), name="outer")
    output = topi.add(implementation.compute(data, columns), outer)
    function = te.create_prim_func([data, columns, rows, factors, output]).with_attr("global_symbol", "main")
    (found,) = schedules(Workload.of(tvm.IRModule({"main": function})), target_of("cascadelake"), 1)
    names = [str(found.get(block).name_hint) for block in found.get_child_blocks(found.get_sblock("root"))]
    assert len(names) == len(["rows", "first sums", "sums", "output"]), names


def convolution_of(name: str, image: tuple[int, ...], weights: Array, window: Window) -> Workload:
    """The convolution of an image in blocks by packed weights."""
    implementation = INTEGERS[name]
    given = [te.placeholder(image, "float32"), te.placeholder(weights.shape, implementation.weight)]
    function = te.create_prim_func([*given, implementation.convolve(given[0], given[1], window)])
    return Workload.of(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))


def convolved(image: Array, weights: Array, window: Window) -> Array:
    """By its definition, in int64: (N, C, H, W) and (K, C, R, S) -> (N, K, Y, X)."""
    top, left, bottom, right = window.padding
    padded = np.pad(image, ((0, 0), (0, 0), (top, bottom), (left, right)))
    patches = np.lib.stride_tricks.sliding_window_view(padded, weights.shape[2:], axis=(2, 3))
    chosen = patches[:, :, :: window.strides[0], :: window.strides[1]]
    found: Array = np.einsum("ncyxrs,kcrs->nkyx", chosen, weights, optimize=True)
    return found


def schedules(workload: Workload, target: tvm.target.Target, count: int) -> list[Any]:
    proposed = OperatorSearch(workload, target, seed=1, threads=1).propose(count, str)
    return [read_trace(each["trace"], workload) for each in proposed]


def skip_unless_runnable(target: tvm.target.Target) -> None:
    if missing := missing_features(target):
        pytest.skip(f"this processor lacks {', '.join(missing)}")


@pytest.mark.parametrize(("mcpu", "name"), PROCESSORS)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"),
    [
        pytest.param((16,), 64, 64, id="whole groups", marks=pytest.mark.long),
        pytest.param((7,), 30, 48, id="odd rows, half a group", marks=pytest.mark.long),
        pytest.param((1,), 5, 20, id="one row, odd depth, lanes filled up"),
        pytest.param((2, 6), 33, 32, id="a batch"),
    ],
)
def test_products_are_exact(mcpu: str, name: str, rows: tuple[int, ...], depth: int, columns: int) -> None:
    target = target_of(mcpu)
    skip_unless_runnable(target)
    lanes = vector_unit(target).lanes
    data, weights = operands(name, rows, depth, columns)
    own = packed(name, weights, lanes)
    for sch in schedules(workload_of(name, data.shape, own), target, 3):
        made = run_kernel(
            sch.mod, target, data.astype("float32"), own, np.zeros((*rows, own.shape[0], lanes), "float32")
        )
        np.testing.assert_array_equal(made.reshape(*rows, -1)[..., :columns], data @ weights)


@pytest.mark.parametrize(("mcpu", "name"), PROCESSORS)
@pytest.mark.parametrize(
    ("channels", "outputs", "extent", "kernel", "window"),
    [
        pytest.param(32, 32, 6, 3, Window((1, 1), (1, 1, 1, 1), (1, 1)), id="padded"),
        pytest.param(16, 48, 7, 1, Window((1, 1), (0, 0, 0, 0), (1, 1)), id="1 x 1", marks=pytest.mark.long),
        pytest.param(5, 19, 9, 3, Window((2, 2), (1, 0, 0, 1), (1, 1)), id="strided, channels filled up"),
    ],
)
def test_convolutions_are_exact(
    mcpu: str, name: str, channels: int, outputs: int, extent: int, kernel: int, window: Window
) -> None:
    target = target_of(mcpu)
    skip_unless_runnable(target)
    lanes = vector_unit(target).lanes
    image, weights = operands(name, (2, channels, extent), extent, outputs * channels * kernel**2 // extent + 1)
    weights = np.resize(weights, (outputs, channels, kernel, kernel))
    expected = pack(convolved(image, weights, window), 1, lanes)
    given = pack(image.astype("float32"), 1, lanes)
    own = INTEGERS[name].pack(pack(pack(weights.astype("float32"), 1, lanes), 0, lanes))
    for sch in schedules(convolution_of(name, given.shape, own, window), target, 2):
        made = run_kernel(sch.mod, target, given, own, np.zeros(expected.shape, "float32"))
        np.testing.assert_array_equal(made, expected)


@pytest.mark.parametrize("mcpu", ["haswell", "skylake-avx512", "cascadelake", "alderlake"])
def test_products_of_two_computed_values_are_exact(mcpu: str) -> None:
    target = target_of(mcpu)
    skip_unless_runnable(target)
    lanes = vector_unit(target).lanes
    rng = np.random.default_rng(0)
    data, weights = rng.integers(-255, 256, (3, 6, 10)), rng.integers(-255, 256, (3, 10, 2 * lanes))
    packed = np.ascontiguousarray(weights.reshape(3, 10, 2, lanes).swapaxes(1, 2)).astype("float32")
    given = [te.placeholder(data.shape, "float32"), te.placeholder(packed.shape, "float32")]
    function = te.create_prim_func([*given, INTEGERS[INT16].compute_both(given[0], given[1])])
    workload = Workload.of(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    for sch in schedules(workload, target, 4):
        made = run_kernel(sch.mod, target, data.astype("float32"), packed, np.zeros((3, 6, 2, lanes), "float32"))
        np.testing.assert_array_equal(made.reshape(3, 6, 2 * lanes), data @ weights)


@pytest.mark.parametrize(("mcpu", "name", "instruction", "register"), INSTRUCTIONS)
def test_the_first_candidate_has_the_instruction_of_the_processor(
    mcpu: str, name: str, instruction: str, register: str
) -> None:
    target = target_of(mcpu)
    own = packed(name, np.ones((64, 96)), vector_unit(target).lanes)
    (sch,) = schedules(workload_of(name, (24, 64), own), target, 1)
    assembly = tvm.compile(sch.mod, target).mod.inspect_source("s")
    sums = [line for line in assembly.splitlines() if instruction in line]
    assert len(sums) >= 8
    assert all(register in line for line in sums)
    assert SATURATING not in assembly


def test_bytes_need_an_instruction_for_them() -> None:
    for mcpu in ("haswell", "skylake-avx512", "x86-64"):
        target = target_of(mcpu)
        assert dot_product(INT8, target, vector_unit(target).lanes) is None


def test_an_epilogue_is_part_of_the_tile() -> None:
    target = target_of("haswell")
    skip_unless_runnable(target)
    data, weights = operands(INT16, (9,), 20, 16)
    own, bias = packed(INT16, weights, 8), np.linspace(-1e5, 1e5, 16, dtype="float32").reshape(2, 8)
    (sch,) = schedules(workload_of(INT16, data.shape, own, activated=True), target, 1)
    names = [str(sch.get(each).name_hint) for each in sch.get_child_blocks(sch.get_sblock("root"))]
    assert names[-1] == "sums"
    made = run_kernel(sch.mod, target, data.astype("float32"), own, bias, np.zeros((9, 2, 8), "float32"))
    expected = np.maximum((data @ weights).astype("float32") + bias.ravel(), 0)
    np.testing.assert_array_equal(made.reshape(9, 16), expected)


def test_a_search_goes_on_in_the_space() -> None:
    """Beyond the first candidates it draws."""
    own = packed(INT16, np.ones((64, 96)), 8)
    found = schedules(workload_of(INT16, (24, 64), own), target_of("haswell"), 24)
    assert len({str(sch.mod) for sch in found}) == 24


@pytest.mark.parametrize(
    ("name", "bounds", "depth", "fits"),
    [
        pytest.param(INT8, Bounds((0, 255), (-128, 127)), 64, True, id="bytes"),
        pytest.param(INT8, Bounds((0, 255), (-1, 128)), 64, False, id="a weight beyond a signed byte"),
        pytest.param(INT8, Bounds((-1, 254), (-1, 1)), 64, False, id="a number below an unsigned byte"),
        pytest.param(INT16, Bounds((-255, 255), (-255, 255)), 33_000, True, id="the deepest"),
        pytest.param(INT16, Bounds((-255, 255), (-255, 255)), 34_000, False, id="sums beyond int32"),
    ],
)
def test_types_hold_operands_and_sums(name: str, bounds: Bounds, depth: int, *, fits: bool) -> None:
    assert INTEGERS[name].fits(bounds, depth) == fits
