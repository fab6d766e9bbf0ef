"""Candidates for a GPU compute what NumPy computes, on the executor: no GPU, but TVM's CUDA C and its CUDA runtime. And
what the executor computes and refuses, by kernels that are written here.
"""

import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

from fractune_core.operators import DIRECT
from fractune_core.records import UNTUNED
from fractune_core.targets import target_key
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, write_workloads
from tests.processes.test_cuda_builds import build, traces
from tests.support.children.triton_operators import OPERATORS, Array, Case, Operator, case_of
from tests.support.executing import MISSING, ORDERS, executing_stand_in
from tests.support.executing.launch import SIZE, Written, launched
from tests.support.executing.run import outputs_of

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

CANDIDATES, FAULTY = 12, 6
_TVM_FAILS = "InternalError: "
"""TVM refuses to lower some candidates, such as a quarter of those of a mean: a search learns from a failed build."""
_CHILD = "tests.support.executing.child"
MOST_ERROR = {"float16": 2.0**-10, "float32": 2e-6, "int8": 0.0}
"""relative to the largest output: of one rounding, or of additions in another order"""
TENSOR_CORES = '"Tensorize"'


def windows(x: Array, stride: int) -> Array:
    """The nine numbers around each place of NCHW images, before the other dimensions. Padding is -1e9."""
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1e9)
    rows, columns = ((extent - 3) // stride + 1 for extent in x.shape[2:])
    return np.stack(
        [x[:, :, i : i + rows * stride : stride, j : j + columns * stride : stride] for i in range(3) for j in range(3)]
    )


def depthwise(x: Array, weights: Array) -> Array:
    seen = windows(x, 2)
    return np.einsum("knchw,ck->nchw", np.where(seen == -1e9, 0, seen), weights.reshape(len(weights), 9))


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def layer_norm(x: Array, scale: Array, bias: Array) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON) * scale + bias


def transposed_convolution(x: Array, weights: Array) -> Array:
    """With a stride of 2 and no padding."""
    rows, columns = (2 * (extent - 1) + 3 for extent in x.shape[2:])
    y = np.zeros((len(x), weights.shape[1], rows, columns))
    for i, j in np.ndindex(3, 3):
        y[:, :, i : i + rows - 2 : 2, j : j + columns - 2 : 2] += np.einsum("nchw,co->nohw", x, weights[:, :, i, j])
    return y


EPSILON = 1e-5
OTHERS = {
    "layer norm": Operator(
        ((12, 96), (96,), (96,)),
        lambda bb, x, scale, bias: bb.emit(relax.op.nn.layer_norm(x, scale, bias, axes=[-1], epsilon=EPSILON)),
        layer_norm,
    ),
    "transposed convolution": Operator(
        ((1, 8, 7, 6), (8, 4, 3, 3)),
        lambda bb, x, w: bb.emit(relax.op.nn.conv2d_transpose(x, w, strides=2)),
        transposed_convolution,
    ),
    "softmax": Operator(((24, 100),), lambda bb, x: bb.emit(relax.op.nn.softmax(x)), softmax),
    "depthwise": Operator(
        ((1, 16, 15, 15), (16, 1, 3, 3)),
        lambda bb, x, w: bb.emit(relax.op.nn.conv2d(x, w, strides=2, padding=1, groups=16)),
        depthwise,
    ),
    "two tiles of a warp": Operator(((32, 48), (48, 16)), OPERATORS["product"].emit, np.matmul),
    "a row of weights": Operator(((1, 256), (256, 64)), OPERATORS["product"].emit, np.matmul),
    "mean": Operator(((2, 24, 7, 9),), lambda bb, x: bb.emit(relax.op.mean(x, axis=[2, 3])), lambda x: x.mean((2, 3))),
    "pool": Operator(
        ((1, 8, 13, 13),),
        lambda bb, x: bb.emit(relax.op.nn.max_pool2d(x, pool_size=[3, 3], strides=[2, 2], padding=[1, 1, 1, 1])),
        lambda x: windows(x, 2).max(0),
    ),
}
"""without tensor cores and copies that a search may make asynchronous"""


@dataclass(frozen=True)
class Searched:
    """An operator with numbers, as the search and the builder take it."""

    case: Case
    operator: dict[str, Any]


def searched(name: str, dtype: str, target: str) -> Searched:
    case = case_of((OPERATORS | OTHERS)[name], dtype)
    mod = tvm.IRModule({"main": case.function.with_attr("global_symbol", "main")})
    parsed = parse_target(target, 1)
    known = {
        "workload": write_workloads({DIRECT: Workload.of(mod)}),
        "target": str(parsed),
        "key": target_key(str(parsed)),
    }
    return Searched(case, {"workload_hash": hashlib.sha256(f"{name} {dtype}".encode()).hexdigest(), **known})


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    executing_stand_in(folder)
    return folder


@pytest.fixture(scope="module")
def builder() -> Iterator[Child]:
    child = Child(_CHILD)
    yield child
    child.stop()


def archives(builder: Child, searched: Searched, candidates: list[str]) -> dict[str, bytes]:
    built = {str(at): build(builder, searched.operator, trace) for at, trace in enumerate(candidates)}
    causes = {name: each["cause"] for name, each in built.items() if not each["object"]}
    assert {name: cause for name, cause in causes.items() if not cause.startswith(_TVM_FAILS)} == {}
    return {name: each["object"] for name, each in built.items() if each["object"]}


def errors(libraries: Path, folder: Path, built: dict[str, bytes], case: Case) -> dict[str, float | str]:
    """By candidate: the largest error of its output relative to the largest number, or why it has none."""
    largest = np.abs(case.expected).max()
    return {
        name: out if isinstance(out, str) else float(np.abs(out.astype(np.float64) - case.expected).max() / largest)
        for name, out in outputs_of(libraries, folder, built, case.arguments).items()
    }


def wrong(found: dict[str, float | str], dtype: str) -> dict[str, float | str]:
    return {name: each for name, each in found.items() if isinstance(each, str) or not each <= MOST_ERROR[dtype]}


_COPY = """asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(dst_addr), "l"(src_p), "n"(4));"""
_COMMIT = """asm volatile("cp.async.commit_group;" : : );"""
_ARRIVED = """asm volatile("cp.async.wait_group 0;" : : : "memory");"""


def kernel(*lines: str) -> str:
    body = "\n".join(lines)
    return f'extern "C" __global__ void kernel(float *at) {{ int i = threadIdx.x; {body} }}'


def copying(*after: str) -> str:
    """The thread copies its number asynchronously; then it reads that of its neighbour."""
    copy = f"float *dst_p = tile + i, *src_p = at + i; {_COPY} {_COMMIT}"
    return kernel("__shared__ float tile[64];", copy, *after, "at[i] = tile[63 - i];")


_SYNC = "__syncthreads();"
_TILE = "__shared__ float tile[64]; tile[i] = at[i];"
_DYNAMIC = "extern __shared__ __align__(64) uchar tile_[]; float *tile = (float *)tile_; tile[i] = at[i];"
_REVERSED = [float(each) for each in reversed(range(SIZE))]
_NEXT = [float(each) for each in [*range(1, 32), 31, *range(33, 64), 63]]
"""of a shuffle in each warp"""

RIGHT = {
    "shared memory": (Written(kernel(_TILE, _SYNC, "at[i] = tile[63 - i];")), _REVERSED),
    "dynamic memory": (Written(kernel(_DYNAMIC, _SYNC, "at[i] = tile[63 - i];"), shared=256), _REVERSED),
    "a copy that is waited for": (Written(copying(_ARRIVED, _SYNC)), _REVERSED),
    "two blocks": (Written(kernel("at[blockIdx.x * 32 + i] *= -1;"), 32, 2), [-float(each) for each in range(SIZE)]),
    "a shuffle": (Written(kernel("at[i] = __shfl_down_sync(__activemask(), at[i], 1);")), _NEXT),
    "a warp that waits for itself": (
        Written(kernel(_TILE, "__syncwarp();", "at[i] = tile[i ^ 1];")),
        [float(each ^ 1) for each in range(SIZE)],
    ),
    "threads that end before a barrier": (
        Written(kernel(_TILE, "if (i >= 32) return;", _SYNC, "at[i] = tile[i + 32 - 32];")),
        [float(each) for each in range(SIZE)],
    ),
    "threads that write the same": (
        Written(kernel("__shared__ float tile[1]; tile[0] = 7;", _SYNC, "at[i] = tile[0];")),
        [7.0] * SIZE,
    ),
    "several kernels": (
        Written(kernel("at[i] = 1;").replace("kernel(", "other(") + kernel("at[i] += 2;")),
        [float(each + 2) for each in range(SIZE)],
    ),
}
WRONG = {
    "no barrier": (Written(kernel(_TILE, "at[i] = tile[63 - i];")), "without a barrier"),
    "no barrier before a change": (
        Written(kernel(_TILE, _SYNC, "at[i] = tile[63 - i];", "tile[i] = 1;")),
        "without a barrier",
    ),
    "two threads that write": (Written(kernel("__shared__ float tile[1]; tile[0] = i;")), "changes what thread"),
    "no wait for another warp": (Written(kernel(_TILE, "__syncwarp();", "at[i] = tile[63 - i];")), "without a barrier"),
    "a copy that is not waited for": (Written(copying(_SYNC)), "an asynchronous copy has not brought yet"),
    "a copy without a barrier": (Written(copying(_ARRIVED)), "without a barrier"),
    "a copy that is not committed": (Written(copying(_ARRIVED, _SYNC).replace(_COMMIT, "")), "not brought yet"),
    "behind the tensor": (Written(kernel("at[i + 1] = 0;")), "writes outside of all tensors"),
    "behind shared memory": (Written(kernel(_DYNAMIC), shared=252), "writes outside of all tensors"),
    "not aligned": (
        Written(kernel("if (i < 60) *(float2 *)(at + i) = make_float2(1, 2);")),
        "uses 8 bytes that are not aligned",
    ),
    "different barriers": (Written(kernel("if (i < 32)\n", _SYNC, "else", _SYNC)), "barriers in lines"),
    "a lane that does not come": (
        Written(kernel("if (i != 5) at[i] = __shfl_sync(~0u, at[i], 0);", _SYNC)),
        "waits in line 1 for lanes that do not come",
    ),
    "too many threads": (Written(kernel(""), threads=1025), "a block of 1025 threads"),
}
READS = Written(kernel("__shared__ float tile[64]; if (i > 3) tile[i] = at[i];", _SYNC, "at[i] = tile[i];"))
"""memory that was not written"""


@pytest.fixture(scope="module")
def launches(libraries: Path) -> dict[tuple[str, str], tuple[str, list[float]]]:
    return launched(libraries, {name: each for name, (each, _) in (RIGHT | WRONG).items()} | {"reads": READS})


def test_right_kernels_compute_the_same_in_every_order_of_threads(launches: dict[Any, Any]) -> None:
    found = {case: each for case, each in launches.items() if case[0] in RIGHT}
    assert found == {(name, order): ("", out) for name, (_, out) in RIGHT.items() for order in ORDERS}


def test_wrong_kernels_fail_in_every_order_of_threads(launches: dict[Any, Any]) -> None:
    found = {case: error for case, (error, _) in launches.items() if case[0] in WRONG}
    assert len(found) == len(WRONG) * len(ORDERS)
    assert {case: error for case, error in found.items() if WRONG[case[0]][1] not in error} == {}


def test_shared_memory_that_was_not_written_differs_between_orders(launches: dict[Any, Any]) -> None:
    """A kernel may read it if it drops what follows from it, so the output has to show it."""
    outputs = [out for (name, _), (error, out) in launches.items() if name == "reads" and not error]
    assert [len(set(each)) for each in zip(*outputs, strict=True)] == [3] * 4 + [1] * (SIZE - 4)


def test_the_default_schedule_computes_numpy_s_values(builder: Child, libraries: Path, tmp_path: Path) -> None:
    """And a fault that is built into it does not: a barrier that is left out."""
    product = searched("product", "float32", "cuda:sm_90")
    built = archives(builder, product, [UNTUNED])
    builder.call("plant", 60, pattern=r"__syncthreads\(\);", replacement="", place=1)
    built["no barrier"] = archives(builder, product, [UNTUNED])["0"]
    builder.call("plant", 60, pattern="", replacement="", place=0)
    assert list(wrong(errors(libraries, tmp_path / "run", built, product.case), "float32")) == ["no barrier"]


_ALL = [
    *((name, dtype, "sm_90") for name in OPERATORS for dtype in ("float16", "float32") if name != "whole numbers"),
    ("whole numbers", "int8", "sm_90"),
    *((name, "float32", "sm_90") for name in OTHERS),
    *(("product", dtype, "sm_75") for dtype in ("float16", "float32")),
    ("two tiles of a warp", "float16", "sm_90"),
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype", "arch"), _ALL)
def test_the_first_candidates_compute_numpy_s_values(
    search: Child, builder: Child, libraries: Path, tmp_path: Path, name: str, dtype: str, arch: str
) -> None:
    """In three orders of threads. Half precision has tensor cores with sums in float32."""
    operator = searched(name, dtype, f"cuda:{arch}")
    candidates = traces(search, operator.operator, CANDIDATES)
    if arch == "sm_90" and name in OPERATORS:
        assert {ASYNC_COPIES in trace for trace in candidates[1:]} == {True, False}
    if dtype != "float32":
        assert any(TENSOR_CORES in trace for trace in candidates)
    found = errors(libraries, tmp_path / "run", archives(builder, operator, candidates), operator.case)
    assert len(found) > len(candidates) // 2
    assert wrong(found, dtype) == {}


_WAIT = r"(?s)(ptx_cp_async_legacy_\w+\(.*?)tvm_builtin_ptx_cp_async_wait_group_async_wait_group_(\d+)\(\);"
BARRIER = "barrier"
FAULTS = {
    BARRIER: (r"__syncthreads\(\);", "", 4),
    "wait": (_WAIT, r"\1wait_for_copies(\2 + 1);", 2),
    "place": (r"(\]\s*=[^;]*threadIdx\.x[^;]*) \+ 1\)\]", r"\1 + 2)]", 1),
}
"""A pattern in the source of a candidate, what replaces it, and how many of its matches are replaced, each in its own
build: a barrier is left out, one more group of copies is not waited for, a number is read from the next place.
"""
FEWEST_SEEN = 0.6
"""Part of the faults of a kind. A single warp needs no barrier between uses of its fragments."""


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype"), [("product", "float16"), ("convolution", "float32")])
def test_planted_faults_are_seen(search: Child, libraries: Path, tmp_path: Path, name: str, dtype: str) -> None:
    operator, faulty = searched(name, dtype, "cuda:sm_90"), Child(_CHILD)
    candidates = traces(search, operator.operator, FAULTY)[1:]
    built: dict[str, bytes] = {}
    for fault, (pattern, replacement, places) in FAULTS.items():
        for place, (at, trace) in itertools.product(range(places), enumerate(candidates)):
            faulty.call("plant", 60, pattern=pattern, replacement=replacement, place=place)
            answer = build(faulty, operator.operator, trace)
            assert answer["status"] == "ok" or "IndexError" in answer["cause"], answer["cause"]
            if answer["object"]:
                built[f"{fault} {place} of {at}"] = answer["object"]
    faulty.stop()
    found = errors(libraries, tmp_path / "run", built, operator.case)
    seen = Counter(name.partition(" ")[0] for name in wrong(found, dtype))
    planted = Counter(name.partition(" ")[0] for name in found)
    assert planted[BARRIER] > 0
    for fault, count in planted.items():
        assert seen[fault] >= FEWEST_SEEN * count, fault
