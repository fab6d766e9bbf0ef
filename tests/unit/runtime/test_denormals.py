"""Numbers below the smallest normal one: zero inside a model unless they are wanted, and as before around it."""

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
import tvm_ffi_orcjit

import fractune
from fractune_core.agreement import differences
from fractune_runtime import sessions
from fractune_runtime.runner import Runner
from fractune_runtime.sessions import OnnxRuntimeSession
from fractune_runtime.tvm_runtime import variants
from fractune_runtime.tvm_runtime.variants import Bound, load_code
from tests.support.denormals import FACTOR, FLUSHING, PROBE, SIZE, WEIGHT, flushes, inputs, read_mxcsr, write_mxcsr
from tests.support.real_bundle import Small

LARGE = 1e12
TWO_CORES = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
Entry = Callable[..., Any]


@pytest.fixture
def bundle(denormals: Path) -> Path:
    return denormals / "denormals.fractune"


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """No test leaves this thread in another mode."""
    before = read_mxcsr()
    yield
    assert read_mxcsr() == before


class Noted(list[bool]):
    """Whether the thread flushed, for each call of compiled code. While it is `refusing`, each call fails."""

    refusing = False


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Noted:
    found = Noted()

    def noting(entry: Entry) -> Entry:
        def call(*arguments: Any) -> Any:
            found.append(flushes())
            if found.refusing:
                raise RuntimeError("refused memory")
            return entry(*arguments)

        return call

    def load(*arguments: Any) -> Any:
        *others, within = arguments
        objects, weights, devices = others
        return load_code(objects, weights, devices, lambda entry: within(noting(entry)))

    monkeypatch.setattr(variants, "load_code", load)
    return found


def is_zero(array: Any) -> bool:
    """By its bits: this thread may flush."""
    return not array.view(np.uint32).any()


def filled(model: fractune.Model, number: float = 1.0) -> Bound:
    bound = model.bind()
    for name, array in inputs(number).items():
        bound.inputs[name][...] = array
    return bound


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=TWO_CORES)])
def test_outputs_are_zero_or_exact(bundle: Path, threads: int) -> None:
    given = inputs()
    product, tiny, back = fractune.load(bundle, threads=threads).run(given)
    assert all(map(is_zero, (product, tiny, back)))
    product, tiny, back = fractune.load(bundle, threads=threads, denormals=True).run(given)
    np.testing.assert_allclose(product, SIZE * WEIGHT, rtol=1e-5, atol=0)
    np.testing.assert_allclose(tiny, np.float32(FACTOR) * np.float32(FACTOR), rtol=1e-4, atol=0)
    np.testing.assert_allclose(back, FACTOR, rtol=1e-3, atol=0)


def test_a_run_beside_onnx_runtime_finds_equal_outputs(bundle: Path, denormals: Path) -> None:
    pytest.importorskip("onnxruntime")
    peer = OnnxRuntimeSession(denormals / "denormals.onnx", 1)
    model, kept = fractune.load(bundle), fractune.load(bundle, denormals=True)
    for number, alike in ((LARGE, slice(1, 3)), (1.0, slice(2))):
        reference = peer.run(inputs(number), peer.output_names)
        assert differences(model.run(inputs(number))[alike], reference[alike])[1] < 1e-6
        assert differences(kept.run(inputs(number)), reference)[1] < 1e-6


def test_normal_numbers_are_as_ever_in_the_default_mode(bundle: Path) -> None:
    given = inputs(LARGE)
    _, tiny, back = fractune.load(bundle).run(given)
    np.testing.assert_allclose(tiny, LARGE * FACTOR**2, rtol=1e-5)
    np.testing.assert_allclose(back, LARGE * FACTOR, rtol=1e-5)


def test_denormals_are_kept_for_a_caller_that_flushes(bundle: Path) -> None:
    before = read_mxcsr()
    write_mxcsr(before | FLUSHING)
    outputs = fractune.load(bundle, threads=1, denormals=True).run(inputs())
    mode = read_mxcsr()
    write_mxcsr(before)
    assert mode == before | FLUSHING
    assert not any(map(is_zero, outputs))


def test_a_session_and_replicas_take_the_same_option(bundle: Path) -> None:
    assert all(map(is_zero, fractune.InferenceSession(bundle).run(None, inputs())))
    assert not any(map(is_zero, fractune.InferenceSession(bundle, denormals=True).run(None, inputs())))
    for kept in (False, True):
        with fractune.ReplicaPool(bundle, replicas=1, threads=1, denormals=kept) as pool:
            assert [not is_zero(output) for output in pool.run(inputs())] == [kept] * 3


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=TWO_CORES)])
def test_each_way_to_run_a_model_is_in_its_mode(bundle: Path, threads: int, noted: Noted) -> None:
    model = fractune.load(bundle, threads=threads)
    model.run(inputs())
    model.run_tensors(inputs())
    bound = filled(model)
    bound.run()
    assert noted == [True] * 3
    assert not flushes()
    assert all(map(is_zero, bound.outputs.values()))


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=TWO_CORES)])
def test_the_caller_computes_with_denormals_after_a_failure(bundle: Path, threads: int, noted: Noted) -> None:
    model = fractune.load(bundle, threads=threads)
    noted.refusing = True
    for run in (partial(model.run, inputs()), filled(model).run):
        with pytest.raises(fractune.errors.FractuneError, match="refused memory"):
            run()
    assert noted == [True] * 2
    assert (np.full(4, 1e-39, np.float32) * np.float32(2)).all()


def test_own_parts_of_a_model_are_in_that_mode_and_parts_of_onnx_runtime_are_not(
    in_parts: Small, noted: Noted, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    theirs, run = list[bool](), sessions.OnnxRuntimeSession.run

    def noting(self: sessions.OnnxRuntimeSession, feed: Any) -> Any:
        theirs.append(flushes())
        return run(self, feed)

    monkeypatch.setattr(sessions.OnnxRuntimeSession, "run", noting)
    model = fractune.load(in_parts.bundle, threads=1)
    model.run(model.random_inputs())
    model.bind().run()
    assert (noted, theirs) == ([True] * 4, [False] * 2)


def test_replicas_answer_in_that_mode_and_call_back_in_their_own(bundle: Path, noted: Noted) -> None:
    found: list[bool] = []
    with fractune.ReplicaPool(bundle, replicas=2, threads=1) as pool:
        futures = [pool.submit(inputs()) for _ in range(6)]
        for future in futures:
            future.add_done_callback(lambda _: found.append(flushes()))
    assert (noted, found) == ([True] * 6, [False] * 6)


def test_callers_at_the_same_time_have_their_own_modes_again(bundle: Path) -> None:
    model, kept = fractune.load(bundle, threads=1), fractune.load(bundle, threads=1, denormals=True)
    begin, failures = threading.Barrier(4), list[str]()

    def call(mode: int, number: int) -> None:
        write_mxcsr(mode)
        begin.wait(60)
        for _ in range(50):
            chosen = (model, kept)[number % 2]
            zero = is_zero(chosen.run(inputs())[1])
            if zero == (chosen is kept) or read_mxcsr() != mode:
                failures.append(f"{number}: zero {zero}, {read_mxcsr():#x} for {mode:#x}")

    modes = [0x1F80, 0x1F80, 0x1F80 | FLUSHING, 0x1F80 | FLUSHING]
    threads = [threading.Thread(target=call, args=(mode, number)) for number, mode in enumerate(modes)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not failures


@TWO_CORES
def test_threads_of_a_models_pool_flush_only_while_the_model_runs(bundle: Path, denormals: Path) -> None:
    probe = tvm_ffi_orcjit.default_session().load_module([(denormals / PROBE).read_bytes()])["main"]
    model = fractune.load(bundle, threads=2)
    assert isinstance(model._runner, Runner)

    def modes_of_the_pool() -> set[int]:
        found = np.zeros(SIZE, np.uint32)
        model._runner.call(probe, tvm_ffi.from_dlpack(found))
        return {int(each) & ~0x3F for each in found}

    assert modes_of_the_pool() == {0x1F80}
    assert all(map(is_zero, model.run(inputs())))  # on both threads
    assert modes_of_the_pool() == {0x1F80}
