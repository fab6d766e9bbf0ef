"""What the executor of GPU kernels computes and refuses, by kernels that are written here."""

from pathlib import Path

import pytest

from tests.support.executing import MISSING, ORDERS, executing_stand_in
from tests.support.executing.launch import SIZE, Written, launched

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

_COPY = """asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" :: "r"(dst_addr), "l"(src_p), "n"(4));"""
_COMMIT = """asm volatile("cp.async.commit_group;" : : );"""
_WAIT = """asm volatile("cp.async.wait_group 0;" : : : "memory");"""


def kernel(*lines: str) -> str:
    body = "\n".join(lines)
    return f'extern "C" __global__ void kernel(float *at) {{ int i = threadIdx.x; {body} }}'


def copying(*after: str) -> str:
    """The thread copies its number asynchronously; then it reads that of its neighbour."""
    copy = f"float *dst_p = tile + i, *src_p = at + i; {_COPY} {_COMMIT}"
    return kernel("__shared__ float tile[64];", copy, *after, "at[i] = tile[63 - i];")


_BARRIER = "__syncthreads();"
_TILE = "__shared__ float tile[64]; tile[i] = at[i];"
_DYNAMIC = "extern __shared__ __align__(64) uchar tile_[]; float *tile = (float *)tile_; tile[i] = at[i];"
_REVERSED = [float(each) for each in reversed(range(SIZE))]
_NEXT = [float(each) for each in [*range(1, 32), 31, *range(33, 64), 63]]
"""of a shuffle in each warp"""

RIGHT = {
    "shared memory": (Written(kernel(_TILE, _BARRIER, "at[i] = tile[63 - i];")), _REVERSED),
    "dynamic memory": (Written(kernel(_DYNAMIC, _BARRIER, "at[i] = tile[63 - i];"), shared=256), _REVERSED),
    "a copy that is waited for": (Written(copying(_WAIT, _BARRIER)), _REVERSED),
    "two blocks": (Written(kernel("at[blockIdx.x * 32 + i] *= -1;"), 32, 2), [-float(each) for each in range(SIZE)]),
    "a shuffle": (Written(kernel("at[i] = __shfl_down_sync(__activemask(), at[i], 1);")), _NEXT),
    "a warp that waits for itself": (
        Written(kernel(_TILE, "__syncwarp();", "at[i] = tile[i ^ 1];")),
        [float(each ^ 1) for each in range(SIZE)],
    ),
    "threads that end before a barrier": (
        Written(kernel(_TILE, "if (i >= 32) return;", _BARRIER, "at[i] = tile[i + 32 - 32];")),
        [float(each) for each in range(SIZE)],
    ),
    "threads that write the same": (
        Written(kernel("__shared__ float tile[1]; tile[0] = 7;", _BARRIER, "at[i] = tile[0];")),
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
        Written(kernel(_TILE, _BARRIER, "at[i] = tile[63 - i];", "tile[i] = 1;")),
        "without a barrier",
    ),
    "two threads that write": (Written(kernel("__shared__ float tile[1]; tile[0] = i;")), "changes what thread"),
    "no wait for another warp": (Written(kernel(_TILE, "__syncwarp();", "at[i] = tile[63 - i];")), "without a barrier"),
    "a copy that is not waited for": (Written(copying(_BARRIER)), "an asynchronous copy has not brought yet"),
    "a copy without a barrier": (Written(copying(_WAIT)), "without a barrier"),
    "a copy that is not committed": (Written(copying(_WAIT, _BARRIER).replace(_COMMIT, "")), "not brought yet"),
    "behind the tensor": (Written(kernel("at[i + 1] = 0;")), "writes outside of all tensors"),
    "behind shared memory": (Written(kernel(_DYNAMIC), shared=252), "writes outside of all tensors"),
    "not aligned": (
        Written(kernel("if (i < 60) *(float2 *)(at + i) = make_float2(1, 2);")),
        "uses 8 bytes that are not aligned",
    ),
    "different barriers": (Written(kernel("if (i < 32)\n", _BARRIER, "else", _BARRIER)), "barriers in lines"),
    "a lane that does not come": (
        Written(kernel("if (i != 5) at[i] = __shfl_sync(~0u, at[i], 0);", _BARRIER)),
        "waits in line 1 for lanes that do not come",
    ),
    "too many threads": (Written(kernel(""), threads=1025), "a block of 1025 threads"),
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    executing_stand_in(folder)
    return folder


def test_right_kernels_compute_the_same_in_every_order_of_threads(libraries: Path) -> None:
    found = launched(libraries, {name: each for name, (each, _) in RIGHT.items()})
    assert found == {(name, order): ("", out) for name, (_, out) in RIGHT.items() for order in ORDERS}


def test_wrong_kernels_fail_in_every_order_of_threads(libraries: Path) -> None:
    found = launched(libraries, {name: each for name, (each, _) in WRONG.items()})
    assert len(found) == len(WRONG) * len(ORDERS)
    assert {case: error for case, (error, _) in found.items() if WRONG[case[0]][1] not in error} == {}


def test_shared_memory_that_was_not_written_differs_between_orders(libraries: Path) -> None:
    """A kernel may read it if it drops what follows from it, so the output has to show it."""
    reading = Written(kernel("__shared__ float tile[64]; if (i > 3) tile[i] = at[i];", _BARRIER, "at[i] = tile[i];"))
    outputs = [out for error, out in launched(libraries, {"": reading}).values() if not error]
    assert [len(set(each)) for each in zip(*outputs, strict=True)] == [3] * 4 + [1] * (SIZE - 4)
