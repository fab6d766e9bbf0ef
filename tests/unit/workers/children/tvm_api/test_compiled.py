"""Parallel loops in the mode of the thread that launches them, on all threads of its pool."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from hypothesis import given, strategies as st
from onnx import helper
from tvm import te
from tvm.tirx import PrimFunc

from fractune_runtime.runner import Runner
from fractune_runtime.tvm_runtime.runtime import with_denormals
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.children.compiling.variants import _lowered
from fractune_workers.children.importing.passes import prepare
from fractune_workers.children.tvm_api.arrays import difference
from fractune_workers.children.tvm_api.artifacts import is_archive, load_objects, pack, unpack
from fractune_workers.children.tvm_api.compiled import build_library, build_object
from fractune_workers.children.tvm_api.target import parse_target
from tests.support.denormals import FLUSHING, SIZE, probe
from tests.support.onnx_models import imported, onnx_model

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)
NORMAL, FLUSHED = 0x1F80, 0x1F80 | FLUSHING


def modes(build: Callable[..., Any]) -> Callable[[], set[int]]:
    """The modes of a pool's threads, read in a parallel loop that `build` has built."""
    main = load_objects([probe(TARGET, build=build)])["main"]

    def read() -> set[int]:
        found = tvm.runtime.tensor(np.zeros(SIZE, np.uint32))
        main(found)
        return {int(each) & ~0x3F for each in found.numpy()}

    return read


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_a_pool_has_the_mode_of_its_launching_thread_within_a_loop_and_its_own_afterwards() -> None:
    own, kept = modes(build_library), modes(tvm.tirx.build)
    runner = Runner(2, tuple(sorted(os.sched_getaffinity(0))[:2]))
    assert runner.call(kept) == {NORMAL}
    assert runner.call(with_denormals(own, kept=False)) == {FLUSHED}
    assert runner.call(with_denormals(kept, kept=False)) == {NORMAL, FLUSHED}  # TVM's own code: one thread of the two
    assert runner.call(own) == {NORMAL}
    runner.stop()


def test_code_for_another_processor_has_no_such_instruction() -> None:
    arm = parse_target("llvm -mtriple=aarch64-linux-gnu", 1)
    mod = tvm.IRModule({"main": tvm.script.from_source(_DOUBLED)})
    assert "mxcsr" in str(build_library(mod, TARGET).inspect_source("ll"))
    assert "mxcsr" not in str(build_library(mod, arm).inspect_source("ll"))


def test_kernels_check_no_argument_again() -> None:
    """The checks took a fifth of a build."""
    mod = tvm.IRModule({"main": tvm.script.from_source(_DOUBLED)})
    with tvm.transform.PassContext(opt_level=2):
        own = str(build_library(mod, TARGET).inspect_source("ll"))
        assert tvm.transform.PassContext.current().opt_level == 2
    assert len(own) < 0.7 * len(str(tvm.tirx.build(mod, TARGET).inspect_source("ll")))


def recurrence() -> tuple[Any, dict[str, Any]]:
    """Two directions, which run in parallel."""
    rng = np.random.default_rng(0)
    weights = {"w": rng.random((2, 64, 8), "float32"), "r": rng.random((2, 64, 16), "float32")}
    node = helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=16, direction="bidirectional")
    return node, weights


def product_of_four_bits() -> tuple[Any, dict[str, Any]]:
    rng = np.random.default_rng(0)
    weights = {"w": rng.integers(0, 256, (64, 1, 16)).astype("uint8"), "r": rng.random(64, "float32")}
    options: dict[str, Any] = {"K": 32, "N": 64, "bits": 4, "block_size": 32}
    return helper.make_node("MatMulNBits", ["x", "w", "r"], ["y"], domain="com.microsoft", **options), weights


@pytest.mark.parametrize(("made", "shape"), [(recurrence, (5, 1, 8)), (product_of_four_bits, (8, 32))])
def test_kernels_with_schedules_of_their_own_take_the_mode_in_each_parallel_loop(
    made: Callable[[], tuple[Any, dict[str, Any]]], shape: tuple[int, ...]
) -> None:
    node, weights = made()
    model = onnx_model([node], {"x": np.zeros(shape, np.float32)}, weights)
    lowered = _lowered(prepare(imported(model), TARGET), TARGET, {})
    loops = [
        part
        for var, each in lowered.functions.items()
        if isinstance(each, PrimFunc)
        for part in build_library(tvm.IRModule({var: each}), TARGET).inspect_source("ll").split("\ndefine ")
        if "parallel_lambda" in part.partition("\n")[0]
    ]
    assert loops
    assert all("@llvm.x86.sse.ldmxcsr" in loop for loop in loops)


_DOUBLED = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
    T.func_attr({"global_symbol": "main"})
    for at in T.parallel(64):
        y[at] = x[at] * T.float32(2)
"""


@pytest.mark.parametrize(
    ("dtype", "smallest_normal", "is_zero"),
    [("float32", 1.2e-38, True), ("float64", 2.3e-308, True), ("bfloat16", 1.2e-38, True), ("float16", 6.2e-5, False)],
)
def test_the_mode_makes_zero_of_what_a_type_has_below_its_normal_numbers(
    dtype: str, smallest_normal: float, *, is_zero: bool
) -> None:
    """float16 is computed in float32, in which its numbers are normal, and conversions keep them."""
    x, y = te.placeholder((8,), dtype, "x"), te.placeholder((8,), dtype, "y")
    product = te.compute((8,), lambda at: x[at] * y[at], name="product")
    main = load_objects([build_object(tvm.IRModule({"main": te.create_prim_func([x, y, product])}), TARGET)])["main"]
    flushed = with_denormals(main, kept=False)
    kind = numpy_dtype(dtype)
    for left, right in ((smallest_normal / 8, 1), (smallest_normal, 0.125), (smallest_normal / 8, 4)):
        args = [tvm.runtime.tensor(np.full(8, number, kind)) for number in (left, right, 7)]
        main(*args)
        exact = args[-1].numpy().astype("float64")
        np.testing.assert_allclose(exact, left * right, rtol=0.03, atol=0)
        flushed(*args)
        np.testing.assert_array_equal(args[-1].numpy().astype("float64"), 0 if is_zero else exact)


NAMES = st.text("abcdefghijklmnopqrstuvwxyz._0123456789", min_size=1, max_size=15)


@given(st.dictionaries(NAMES, st.binary(max_size=64), max_size=4))
def test_what_is_packed_comes_out(members: dict[str, bytes]) -> None:
    archive = pack(members)
    assert is_archive(archive)
    assert unpack(archive) == members
    assert list(unpack(archive)) == list(members)


@given(st.binary(min_size=1, max_size=9), st.integers(min_value=1))
def test_a_torn_archive_is_refused(content: bytes, cut: int) -> None:
    archive = pack({"host.o": content, "device.o": content})
    last = archive[: -(len(content) % 2) or None]  # without the byte that only fills up
    torn = last[: len(last) - 1 - cut % (len(content) + 58)]
    with pytest.raises(ValueError, match=r"torn|no member"):
        unpack(torn)


def test_an_object_file_is_no_archive() -> None:
    assert not is_archive(b"\x7fELF and more")
    with pytest.raises(ValueError, match="not an archive"):
        unpack(b"\x7fELF and more")


def test_a_name_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="more than 15 characters"):
        pack({"a-name-too-long.o": b""})


@pytest.mark.skipif(shutil.which("ar") is None, reason="binutils' ar is not installed")
def test_ar_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "candidate.a"
    path.write_bytes(pack({"host.o": b"odd", "device.o": b"even"}))
    listed = subprocess.run(["ar", "t", path], capture_output=True, text=True, check=True).stdout
    assert listed.split() == ["host.o", "device.o"]
    assert subprocess.run(["ar", "p", path, "host.o"], capture_output=True, check=True).stdout == b"odd"


INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("output", "reference", "expected"),
    [
        ([1.0, -4.0], [1.0, -4.0], 0.0),
        ([1.0, -4.0], [1.5, -5.0], 0.2),
        ([0.5], [0.0], 0.5),
        ([1.0, INF], [1.5, INF], 1 / 3),
        ([1.0, INF], [1.0, 2.0], INF),
        ([1.0, NAN], [1.0, NAN], 0.0),
        ([], [], 0.0),
        ([0.0], [1e-38], 1e-8),  # a denormal that one of two sums has lost
    ],
)
def test_it_is_relative_to_the_largest_value_of_the_reference(
    output: list[float], reference: list[float], expected: float
) -> None:
    found = difference(np.array(output, np.float32), np.array(reference, np.float32))
    assert found == pytest.approx(expected)


class Untouched(np.ndarray[Any, Any]):
    """An array of which no copy in another type may be made."""

    def astype(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("converted")


def test_equal_arrays_are_not_converted() -> None:
    """Inputs and weights, which a kernel leaves as they are, are most of what a validation compares."""
    same = np.arange(5, dtype=np.float32)
    assert difference(same.view(Untouched), same.copy().view(Untouched)) == 0.0
    with pytest.raises(AssertionError, match="converted"):
        difference((same + 1).view(Untouched), same.view(Untouched))
