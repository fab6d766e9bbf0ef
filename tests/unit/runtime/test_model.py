"""A small model that was compiled for real, loaded and run: variants, threads, inputs, and what is not imported."""

import contextlib
import gc
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import fractune
from fractune import Model
from fractune_core.analysis.match import How
from fractune_core.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from fractune_core.files.bundles import Bundle, write_bundle
from fractune_runtime.cpu import CPUINFO, OnCpu, isa_name, read_cpuinfo
from fractune_runtime.tvm_runtime import drawing, tensors
from fractune_runtime.tvm_runtime.runtime import aligned_bytes
from fractune_runtime.tvm_runtime.tensors import as_arguments, as_array
from fractune_runtime.tvm_runtime.variants import Called
from fractune_workers.confinement.cpu import thread_affinities
from tests.support.paths import REPOSITORY
from tests.support.processes.redis_process import wait_until
from tests.support.real_bundle import Small

SHAPE = (1, 4, 16, 16)


@pytest.fixture
def model(small: Small) -> Model:
    return fractune.load(small.bundle)


def truth(model: Path, inputs: dict[str, Any]) -> np.ndarray[Any, Any]:
    """ONNX Runtime's output, by one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    output: np.ndarray[Any, Any] = session.run(None, inputs)[0]
    return output


def run_script(script: str, *args: str) -> Any:
    """The JSON that a fresh interpreter prints; it must end well and say nothing else."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", script, *args]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)
    assert (ended.returncode, ended.stderr) == (0, "")
    return json.loads(ended.stdout)


def test_every_variant_gives_what_onnx_runtime_gives(small: Small, model: Model) -> None:
    inputs = model.random_inputs(seed=3)
    expected = truth(small.model, inputs)
    for variant in (None, "cpu:1", "cpu:2", "untuned"):
        (output,) = model.run(inputs, variant)
        np.testing.assert_allclose(output, expected, rtol=1e-4)
    with pytest.raises(BadRequest, match=r"small\.fractune has no variant 'cpu:9'; it has cpu:1, cpu:2, untuned"):
        model.run(inputs, "cpu:9")


def test_inputs_and_outputs_have_the_names_of_the_file(model: Model) -> None:
    assert [str(spec) for spec in model.inputs] == ["x float32[1, 4, 16, 16]"]
    assert [str(spec) for spec in model.outputs] == ["y float32[1, 10]"]


def test_the_share_decides_and_rematch_follows_it(small: Small, two_cpus: list[int]) -> None:
    os.sched_setaffinity(0, two_cpus)
    model = fractune.load(small.bundle)
    assert (model.choice.variant, model.choice.how, model.share.cpus) == ("cpu:2", How.EXACT, tuple(two_cpus))
    inputs = model.random_inputs()
    (before,) = model.run(inputs)
    for cpus in ({two_cpus[0]}, {two_cpus[1]}, set(two_cpus)):
        os.sched_setaffinity(0, cpus)
        others = set(thread_affinities())  # the pool of before too: its threads end late where the cores are busy
        start = time.perf_counter()
        choice = model.rematch()
        spent_s = time.perf_counter() - start
        assert (choice.variant, model.choice) == (f"cpu:{len(cpus)}", choice)
        np.testing.assert_allclose(model.run(inputs)[0], before, rtol=1e-5)
        apart = [{cpu} for cpu in sorted(cpus)] if len(cpus) > 1 else []
        wait_until(lambda apart=apart, others=others: sorted(pool_of(others), key=sorted) == apart)
        assert spent_s < 5, "far more than the few milliseconds that it takes on an idle machine"


def pool_of(others: set[int]) -> list[set[int]]:
    """CPUs of each thread of this process but these."""
    return [allowed for thread, allowed in thread_affinities().items() if thread not in others]


def test_a_share_that_is_asked_for(small: Small, affinity: set[int]) -> None:
    model = fractune.load(small.bundle, share="cpu:1")
    assert (model.choice.variant, model.share.units) == ("cpu:1", 1)
    assert os.sched_getaffinity(0) == affinity
    with pytest.raises(ShareUnavailable, match=r"share 'cpu:999' is larger"):
        fractune.load(small.bundle, share="cpu:999")
    with pytest.raises(BadRequest, match="is of a GPU"):
        fractune.load(small.bundle, share="mps:25")


def test_a_share_that_is_gone_is_told_and_the_model_goes_on(small: Small, two_cpus: list[int]) -> None:
    model = fractune.load(small.bundle, share="cpu:2")
    os.sched_setaffinity(0, two_cpus[:1])
    with pytest.raises(ShareUnavailable, match=r"share 'cpu:2' is larger"):
        model.rematch()
    assert model.run(model.random_inputs())[0].shape == (1, 10)


def test_many_threads_and_two_models_at_the_same_time(small: Small, model: Model) -> None:
    other = fractune.load(small.bundle, share="cpu:1")
    inputs = [model.random_inputs(seed) for seed in range(16)]
    expected = [model.run(each)[0] for each in inputs]

    def work(number: int) -> bool:
        chosen = model if number % 2 else other
        return all(
            np.allclose(chosen.run(inputs[(number + turn) % 16])[0], expected[(number + turn) % 16], rtol=1e-5)
            for turn in range(10)
        )

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(32)))


def test_a_share_that_changes_while_others_run(model: Model, affinity: set[int]) -> None:
    inputs = model.random_inputs()
    (expected,) = model.run(inputs)
    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(lambda: [model.run(inputs)[0] for _ in range(20)]) for _ in range(4)]
        for turn in range(10):
            os.sched_setaffinity(0, {sorted(affinity)[turn % len(affinity)]} if turn % 2 else affinity)
            model.rematch()
        for each in running:
            for output in each.result():
                np.testing.assert_allclose(output, expected, rtol=1e-5)


def test_a_model_that_nobody_holds_ends_its_thread(small: Small) -> None:
    gc.collect()
    before = set(threading.enumerate())
    model = fractune.load(small.bundle)
    model.run(model.random_inputs())
    (thread,) = set(threading.enumerate()) - before
    del model
    gc.collect()
    thread.join(10)
    assert not thread.is_alive()


def test_arrays_are_used_where_they_lie_if_they_can_be(model: Model) -> None:
    fitting = aligned_bytes(4096).view("float32").reshape(SHAPE)
    odd = aligned_bytes(4100)[4:].view("float32").reshape(SHAPE)
    tensor, odd_tensor = tvm_ffi.from_dlpack(fitting), tvm_ffi.from_dlpack(odd)
    cases: list[tuple[Any, bool]] = [(fitting, True), (tensor, True), (odd, False), (odd_tensor, False)]
    for given, shared in cases:
        (argument,) = as_arguments(model.inputs, {"x": given})
        at = given.data_ptr() if hasattr(given, "data_ptr") else given.ctypes.data
        assert (argument.data_ptr() == at) is shared
        assert argument.data_ptr() % 64 == 0


def test_arrays_that_do_not_fit_give_the_same(model: Model) -> None:
    values = model.random_inputs()["x"]
    (expected,) = model.run({"x": values})
    frozen = values.copy()
    frozen.flags.writeable = False
    strided = np.repeat(values, 2, axis=3)[..., ::2]
    foreign = tvm_ffi.from_dlpack(np.ascontiguousarray(values))
    for given in (frozen, strided, np.asfortranarray(values), foreign):
        np.testing.assert_array_equal(model.run({"x": given})[0], expected)


def test_outputs_can_stay_tensors(model: Model) -> None:
    inputs = model.random_inputs()
    (tensor,) = model.run_tensors(inputs)
    (array,) = model.run(inputs)
    np.testing.assert_array_equal(np.from_dlpack(tensor), array)
    assert as_array(tensor).ctypes.data == tensor.data_ptr()
    array[:] = 0


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"x": np.zeros((1, 4, 16, 17), "float32")},
        {"x": np.zeros(SHAPE, "float64")},
        {"x": np.zeros(SHAPE, ">f4")},
        {"x": np.zeros(SHAPE, "float32"), "other": np.zeros(1)},
        {"x": tvm_ffi.from_dlpack(np.zeros(3, "int32"))},
    ],
)
def test_wrong_inputs_are_told_with_what_is_expected(model: Model, wrong: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"the model takes x float32\[1, 4, 16, 16\]; given: "):
        model.run(wrong)


def test_an_input_that_became_a_constant_is_named_as_one(small: Small) -> None:
    bundle = Bundle(small.bundle)
    bundle.manifest["constants"] = {"sr": "16000", "window": "0," * 500}
    model = Model(bundle)
    x = model.random_inputs()["x"]
    says = r"input 'sr' was made a constant \(16000\) when the model was tuned; leave it out"
    calls: list[Callable[[dict[str, Any]], object]] = [model.run, model.run_tensors, model.placed, model.bind]
    for call in calls:
        with pytest.raises(BadRequest, match=says):
            call({"x": x, "sr": np.array(16000)})
    with pytest.raises(BadRequest, match=r"'window' was made a constant \([0, .]{1,40}\)"):
        model.run({"x": x, "window": x})


def test_what_is_no_array_is_refused(model: Model) -> None:
    with pytest.raises(BadRequest, match="input 'x' is of type list; give a NumPy array"):
        model.run({"x": [1.0, 2.0]})


class OnDevice:
    """An array that says it lies on a GPU."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, **_options: Any) -> Any:
        raise BufferError("not here")


class Broken(OnDevice):
    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


def test_what_dlpack_cannot_give_is_refused(model: Model) -> None:
    with pytest.raises(BadRequest, match="input 'x' lies on another device"):
        model.run({"x": OnDevice()})
    with pytest.raises(BadRequest, match="input 'x' cannot be read by DLPack"):
        model.run({"x": Broken()})


def test_a_real_bundle_with_a_byte_changed_or_torn_off_says_the_same_or_is_refused(small: Small) -> None:
    whole = small.bundle.read_bytes()
    expected = [Bundle(whole).read(name) for name in Bundle(whole).manifest["sha256"]]
    rng = random.Random(5)
    for offset in (rng.randrange(len(whole)) for _ in range(200)):
        changed = bytearray(whole)
        changed[offset] ^= rng.randrange(1, 256)
        with contextlib.suppress(BadBundle):
            bundle = Bundle(bytes(changed))
            bundle.verify()
            assert [bundle.read(name) for name in bundle.manifest["sha256"]] == expected, offset
        with pytest.raises(BadBundle):
            Bundle(whole[:offset])


Manifest = dict[str, Any]


def write_changed(small: Small, path: Path, change: Callable[[Manifest], Manifest], code: bytes | None = None) -> None:
    """The small bundle with a changed manifest and, if given, other contents of its object files."""
    bundle = Bundle(small.bundle)
    entries = {name: bundle.read(name) for name in bundle.manifest["sha256"]}
    if code is not None:
        entries = {name: code if name.endswith(".o") else payload for name, payload in entries.items()}
    with path.open("wb") as file:
        write_bundle(file, change(bundle.manifest), entries)


def of_input(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda manifest: {**manifest, "inputs": [{**manifest["inputs"][0], **changes}], "dims": {}}


def of_output(**changes: Any) -> Callable[[Manifest], Manifest]:
    return lambda manifest: {**manifest, "outputs": [{**manifest["outputs"][0], **changes}]}


def of_variants(change: Callable[[list[int]], list[int]]) -> Callable[[Manifest], Manifest]:
    """What `change` makes of the weights that each variant takes."""
    return lambda manifest: {
        **manifest,
        "variants": [{**variant, "weights": change(variant["weights"])} for variant in manifest["variants"]],
    }


def objects_twice(manifest: Manifest) -> Manifest:
    return {**manifest, "variants": [{**each, "objects": each["objects"] * 2} for each in manifest["variants"]]}


def first_object_alone(manifest: Manifest) -> Manifest:
    return {**manifest, "variants": [{**each, "objects": each["objects"][:1]} for each in manifest["variants"]]}


def weights_turned(manifest: Manifest) -> Manifest:
    return {**manifest, "weights": [{**weight, "shape": weight["shape"][::-1]} for weight in manifest["weights"]]}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (of_variants(lambda weights: weights[:-1]), "takes 4 tensors, and its manifest names 1 inputs and 2 weights"),
        (of_variants(lambda weights: [*weights, 0]), "takes 4 tensors, and its manifest names 1 inputs and 4 weights"),
        (of_variants(lambda weights: weights[::-1]), "its code does not take these inputs, or the weights"),
        (weights_turned, "its code does not take these inputs, or the weights"),
        (of_input(shape=[1, 4, 16, 17]), "its code does not take these inputs, or the weights"),
        (of_input(shape=[1, 4, 16]), "its code does not take these inputs, or the weights"),
        (of_input(dtype="int32"), "its code does not take these inputs, or the weights"),
        (lambda manifest: {**manifest, "inputs": [], "dims": {}}, "takes 4 tensors, and its manifest names 0 inputs"),
        (lambda manifest: {**manifest, "outputs": []}, "its code gives 1 outputs, and its manifest names 0"),
        (of_output(shape=[1, 9]), r"its code gives the output 'y' the shape \[1, 10\], and its manifest \[1, 9\]"),
        (of_output(dtype="int8"), r"it gives the output 'y' as float32\[1, 10\], not int8"),
        (of_output(shape=[10]), r"its code gives the output 'y' the shape \[1, 10\], and its manifest \[10\]"),
        (objects_twice, "the code of the variant 'cpu:1' cannot be loaded"),
        (first_object_alone, "the code of the variant 'cpu:1' cannot be loaded"),
    ],
)
def test_code_that_does_not_take_what_the_manifest_says_is_a_bad_bundle(
    small: Small, tmp_path: Path, change: Callable[[Manifest], Manifest], says: str
) -> None:
    path = tmp_path / "m.fractune"
    write_changed(small, path, change)
    with pytest.raises(BadBundle, match=says):
        run_once(path)


@pytest.mark.parametrize(
    "change", [of_input(dtype="int32"), of_variants(lambda weights: weights[::-1]), weights_turned]
)
def test_code_of_the_virtual_machine_that_does_not_take_its_tensors_is_a_bad_bundle(
    by_machine: Small, tmp_path: Path, change: Callable[[Manifest], Manifest]
) -> None:
    path = tmp_path / "m.fractune"
    write_changed(by_machine, path, change)
    with pytest.raises(BadBundle, match="its code does not take these inputs, or the weights"):
        run_once(path)


def test_a_run_that_fails_does_not_blame_the_bundle(small: Small) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("std::bad_alloc")

    with pytest.raises(FractuneError, match="the model failed on the CPU") as raised:
        OnCpu(Bundle(small.bundle), None).run(Called(refuse), [])
    assert not isinstance(raised.value, BadBundle)


def run_once(path: Path) -> None:
    model = fractune.load(path, share="cpu:1")
    model.run(model.random_inputs())


@pytest.mark.parametrize("code", [b"", b"no code"])
def test_objects_that_are_no_code_are_a_bad_bundle(small: Small, tmp_path: Path, code: bytes) -> None:
    path = tmp_path / "m.fractune"
    write_changed(small, path, dict, code)
    with pytest.raises(BadBundle, match="the code of the variant 'cpu:1' cannot be loaded"):
        run_once(path)


def test_random_inputs_that_no_memory_holds_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr(drawing, "_random_array", refuse)
    with pytest.raises(BadRequest, match=r"Unable to allocate 8.00 GiB\); give x float32\[9\] of your own"):
        drawing.random_inputs([tensors.TensorSpec("x", "float32", (9,))])


IMPORTS = """
import json, sys
import numpy as np
import fractune
light = sorted(name for name in ("numpy", "grpc", "tvm_ffi", "fractune_core.files.bundles") if name in sys.modules)
light.remove("numpy")
model = fractune.load(sys.argv[1])
model.run({"x": np.ones((1, 4, 16, 16), "float32")})
model.rematch()
heavy = "tvm grpc redis rq sqlalchemy google typer rich onnx torch workers fractune_server".split()
loaded = open("/proc/self/maps").read()
print(json.dumps([light, [name for name in heavy if name in sys.modules], "libtvm_compiler" in loaded]))
"""


def test_neither_tvm_s_package_nor_its_compiler_nor_the_server_is_loaded(small: Small) -> None:
    light, heavy, compiler = run_script(IMPORTS, str(small.bundle))
    assert (light, heavy) == ([], [])
    assert compiler is (isa_name(read_cpuinfo(CPUINFO)) == ""), "asked only about a processor that is not listed"


AFTERWARDS = """
import json, sys
import numpy as np
import fractune
model = fractune.load(sys.argv[1])
inputs = model.random_inputs()
(before,) = model.run(inputs)
import tvm
(after,) = model.run({"x": tvm.runtime.tensor(inputs["x"])})
print(json.dumps(bool(np.array_equal(before, after))))
"""


def test_tvm_s_package_may_come_later(small: Small) -> None:
    assert run_script(AFTERWARDS, str(small.bundle)) is True


FORKED = """
import json, os, sys
import numpy as np
import fractune
model = fractune.load(sys.argv[1])
inputs = model.random_inputs()
(before,) = model.run(inputs)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(model.run(inputs)[0], before) else 1)
print(json.dumps(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_goes_on_with_a_thread_of_its_own(small: Small) -> None:
    assert run_script(FORKED, str(small.bundle)) == 0


def test_without_tvm_the_way_to_it_is_told(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    from fractune_runtime.tvm_runtime import runtime

    monkeypatch.setitem(sys.modules, "tvm_ffi_orcjit", None)
    runtime._load_libraries.cache_clear()
    with pytest.raises(FractuneError, match=r"running a bundle needs TVM .*; install 'fractune\[run\]'"):
        fractune.load(small.bundle)
    monkeypatch.undo()
    runtime._load_libraries.cache_clear()
