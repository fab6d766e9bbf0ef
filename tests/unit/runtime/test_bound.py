"""Bound calls: memory of the caller, read and written in place, and what cannot be bound."""

import gc
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import fractune
from fractune import Model
from fractune_core.errors import BadRequest
from fractune_runtime.tvm_runtime.runtime import aligned_bytes, load_runtime
from fractune_runtime.tvm_runtime.tensors import TensorSpec
from fractune_runtime.tvm_runtime.variants import BoundMemory
from tests.support.real_bundle import Small

SHAPE, OUTPUT_SHAPE = (1, 4, 16, 16), (1, 10)
X = TensorSpec("x", "float32", (4, 8))
Y = TensorSpec("y", "float32", (8,))


@pytest.fixture(params=["cpu:1", "cpu:2"])
def model(request: pytest.FixtureRequest, small: Small) -> Model:
    if request.param == "cpu:2":
        request.getfixturevalue("two_cpus")
    return fractune.load(small.bundle, share=request.param)


@pytest.fixture(autouse=True)
def loaded() -> None:
    load_runtime()


def aligned(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
    bytes_needed = int(np.prod(shape)) * np.dtype(dtype).itemsize
    array: np.ndarray[Any, Any] = aligned_bytes(bytes_needed).view(dtype).reshape(shape)
    array[...] = 0
    return array


def test_a_run_reads_and_writes_the_arrays_as_they_are(model: Model) -> None:
    mine, out = aligned(SHAPE), aligned(OUTPUT_SHAPE)
    for bound in (
        model.bind(),
        model.bind({"x": mine}, {"y": out}),
        model.bind(outputs={"y": tvm_ffi.from_dlpack(out)}),
    ):
        for seed in (1, 2):
            inputs = model.random_inputs(seed)
            bound.inputs["x"][...] = inputs["x"]
            bound.run()
            np.testing.assert_array_equal(bound.outputs["y"], model.run(inputs)[0])
    assert model.bind({"x": mine}).inputs["x"] is mine
    np.testing.assert_array_equal(out, model.run(inputs)[0])


@pytest.mark.parametrize("variant", [None, "cpu:1", "cpu:2", "untuned"])
def test_every_variant_gives_the_same(model: Model, variant: str | None) -> None:
    inputs = model.random_inputs()
    (expected,) = model.run(inputs, variant)
    bound = model.bind(variant=variant)
    bound.inputs["x"][...] = inputs["x"]
    bound.outputs["y"][...] = -1
    bound.run()
    np.testing.assert_array_equal(bound.outputs["y"], expected)


def test_it_holds_the_model_and_the_arrays_and_follows_rematch(small: Small, affinity: set[int]) -> None:
    model = fractune.load(small.bundle)
    inputs = model.random_inputs()
    (expected,) = model.run(inputs)
    mine = aligned(SHAPE)
    mine[...] = inputs["x"]
    bound = model.bind({"x": mine})
    os.sched_setaffinity(0, {min(affinity)})
    model.rematch()
    del model, mine
    gc.collect()
    bound.run()
    np.testing.assert_allclose(bound.outputs["y"], expected, rtol=1e-5)


def test_memory_that_is_bound_does_not_move() -> None:
    whole = np.zeros(64, "float32")
    given = whole[-whole.ctypes.data % 64 // 4 :][:32].reshape(4, 8)
    memory = BoundMemory([X], {"x": given}, [Y], None)
    for array in (whole, given):
        with pytest.raises(ValueError, match="cannot resize"):
            array.resize(10_000, refcheck=False)
    assert memory.inputs["x"] is given


def test_many_threads_with_a_bound_of_their_own(model: Model) -> None:
    inputs = [model.random_inputs(seed) for seed in range(8)]
    expected = [model.run(each)[0] for each in inputs]

    def work(number: int) -> bool:
        bound = model.bind()
        bound.inputs["x"][...] = inputs[number]["x"]
        found = []
        for _ in range(20):
            bound.run()
            found.append(bound.outputs["y"].copy())
        return all(np.allclose(each, expected[number], rtol=1e-5) for each in found)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(8)))


def frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array.flags.writeable = False
    return array


PLACE = "cannot be used in place: its memory"


@pytest.mark.parametrize(
    ("inputs", "outputs", "says"),
    [
        ({"x": np.zeros((8, 4), "float32")}, None, r"the model takes x float32\[4, 8\]; given: x float32\[8, 4\]"),
        ({"x": np.zeros((4, 8))}, None, r"the model takes x float32\[4, 8\]; given: x float64"),
        ({"z": np.zeros(1)}, None, r"the model takes x float32\[4, 8\]; given: z \(unknown\)"),
        (None, {"y": np.zeros(9, "float32")}, r"the model gives y float32\[8\]; given: y float32\[9\]"),
        ({"x": [1.0]}, None, "input 'x' is of type list"),
        (None, {"y": [1.0]}, "output 'y' is of type list"),
        ({"x": np.ma.masked_array(aligned((4, 8)), mask=True)}, None, "input 'x' is a masked array"),
        ([aligned((4, 8))], None, "bind: list is not a mapping"),
        ({"x": aligned((8, 4)).T}, None, f"{PLACE} is not contiguous; leave it out"),
        ({"x": aligned((4, 16))[:, ::2]}, None, f"{PLACE} is not contiguous;"),
        ({"x": aligned((36,))[4:].reshape(4, 8)}, None, f"{PLACE} begins 16 bytes after a multiple of 64;"),
        ({"x": frozen(aligned((4, 8)))}, None, f"{PLACE} is read-only;"),
        ({"x": frozen(aligned((4, 16))[:, 1::2])}, None, "is not contiguous and is read-only and begins 4 bytes after"),
        (None, {"y": frozen(aligned((8,)))}, f"output 'y' {PLACE} is read-only;"),
        (None, {"y": tvm_ffi.from_dlpack(aligned((9,))[1:])}, f"{PLACE} begins 4 bytes after a multiple of 64;"),
    ],
)
def test_what_cannot_be_bound_is_told(inputs: Any, outputs: Any, says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        BoundMemory([X], inputs, [Y], outputs)


def test_an_output_shares_memory_with_nothing() -> None:
    shared = aligned((64,))
    x, inside, beside = shared[:32].reshape(4, 8), shared[16:24], shared[32:40]
    BoundMemory([X], {"x": x}, [Y], {"y": beside})
    with pytest.raises(BadRequest, match="input 'x' and output 'y' lie in the same memory"):
        BoundMemory([X], {"x": x}, [Y], {"y": inside})
    with pytest.raises(BadRequest, match="output 'y' and output 'z' lie in the same memory"):
        BoundMemory([X], None, [Y, replace(Y, name="z")], {"y": beside, "z": beside})
    both: Mapping[str, Any] = {"x": x, "w": x}
    BoundMemory([X, replace(X, name="w")], both, [Y], None)


def test_an_output_whose_shape_depends_on_the_data_is_not_bound() -> None:
    with pytest.raises(BadRequest, match=r"output y float32\[None\] has a shape that depends on the data"):
        BoundMemory([X], None, [replace(Y, shape=(None,))], None)


def test_an_unknown_variant_is_refused_before_the_first_run(model: Model) -> None:
    with pytest.raises(BadRequest, match="no variant 'cpu:9'"):
        model.bind(variant="cpu:9")
