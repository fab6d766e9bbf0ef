"""Inference on a GPU as far as it goes without one: a second CPU stands in the place of the GPU, a simulated CUDA says
what share there is. Kernels are those of the CPU; where weights, inputs and outputs lie is the GPU's way.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fractune
from fractune.features.compete import compete
from fractune_core.analysis.match import How
from fractune_core.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from fractune_core.files.bundles import Bundle, write_bundle
from fractune_core.shares import Device, GrantedShare
from fractune_runtime import gpu as gpus
from fractune_runtime.gpu import CAPTURES, OnGpu, ask_gpu
from fractune_runtime.tvm_runtime import runtime, tensors
from fractune_runtime.tvm_runtime.variants import Interface, Variant
from tests.support.hardware.simulated_cuda import Staged
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_libcuda import SimulatedLibcuda
from tests.support.processes.redis_process import wait_until
from tests.support.real_bundle import Small

_SECOND_CPU = (1, 1)
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"


class SecondCpuInTheGpusPlace(OnGpu):
    """TVM takes any number for a CPU, keeps tensors of different numbers apart, and copies between them."""

    device = "cpu:1"
    kind = _SECOND_CPU

    def _load_runtime(self) -> None:
        runtime.load_runtime()


def for_a_gpu(small: Small, folder: Path) -> Path:
    """The small bundle, which says that it is for an H200 and that its variants are those of a GPU's shares."""
    bundle, path = Bundle(small.bundle), folder / "gpu.fractune"
    names = {"cpu:1": "mps:25", "cpu:2": "full", "untuned": "untuned"}
    units = {"mps:25": 33, "full": 132}
    variants = [{**each, "name": names[each["name"]]} for each in bundle.variants]
    (at,) = (at for at, each in enumerate(variants) if each["name"] == "full")
    contents = {name: bundle.read(name) for name in bundle.manifest["sha256"]}
    folder_of = "variants/{}/".format
    again = {name.replace(folder_of(at), folder_of(len(variants))): contents[name] for name in contents}
    manifest = {
        **bundle.manifest,
        "device": Device("cuda", "sm_90", 132, 140, 51_200).to_json(),
        "target": '{"kind":"cuda","arch":"sm_90"}',
        "variants": [*variants, {**variants[at], "name": "full+graph"}],
        "shares": {
            name: GrantedShare(name, n, 132, "sm", 1 << 30, reserved=False).to_json() for name, n in units.items()
        },
    }
    with path.open("wb") as file:
        write_bundle(file, manifest, contents | again)
    return path


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client of MPS on an H200."""
    gpu = SimulatedGpu(MODELS["H200"])
    monkeypatch.setattr(gpus, "look_at_gpu", lambda: ask_gpu(SimulatedLibcuda(gpu, Staged(mps=True))))
    monkeypatch.setattr(gpus, "OnGpu", SecondCpuInTheGpusPlace)
    monkeypatch.setenv(PERCENTAGE, "25")


@pytest.fixture
def bundle(by_machine: Small, tmp_path: Path) -> Path:
    return for_a_gpu(by_machine, tmp_path)


@pytest.mark.usefixtures("staged")
def test_a_bundle_runs_at_the_share_of_the_process(small: Small, bundle: Path) -> None:
    model = fractune.load(bundle)
    assert (model.choice.variant, model.choice.how) == ("mps:25", How.EXACT)
    assert (model.share.units, model.share.mechanism) == (33, "mps")
    inputs = model.random_inputs(seed=3)
    (expected,) = fractune.load(small.bundle).run(inputs)
    for variant in (None, "full", "untuned"):
        (output,) = model.run(inputs, variant)
        np.testing.assert_allclose(output, expected, rtol=1e-5)
        output[:] = 0  # its own


def test_the_doctor_misses_the_gpu_of_a_bundle(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU, whatever the machine of the test has."""
    here = SimpleNamespace(gpus=[], driver_cuda=0, driver="", cudart="libcudart.so.13")
    monkeypatch.setattr(compete, "look_for_cuda", lambda: here)
    use = compete.bundle_use(bundle)
    assert not use.ready
    assert [each.what for each in use.findings if not each.found] == ["GPU", "driver"]


@pytest.mark.usefixtures("staged")
def test_a_percentage_without_a_daemon_is_a_warning_with_the_sms_that_are_used(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = SimulatedGpu(MODELS["H200"])
    monkeypatch.setattr(gpus, "look_at_gpu", lambda: ask_gpu(SimulatedLibcuda(gpu, Staged())))
    with pytest.warns(RuntimeWarning, match=f"has 132 of 132 SMs .*; {PERCENTAGE}=25 has no effect without MPS: start"):
        model = fractune.load(bundle)
    assert model.share.mechanism == "full"


@pytest.mark.usefixtures("staged")
def test_weights_are_put_there_once_and_inputs_have_their_room(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    empty_tensor = runtime.empty_tensor

    def noted(shape: tuple[int, ...], dtype: str, device: str) -> Any:
        if device == SecondCpuInTheGpusPlace.device:
            made.append(shape)
        return empty_tensor(shape, dtype, device)

    monkeypatch.setattr(runtime, "empty_tensor", noted)
    model = fractune.load(bundle)
    weights = len(made)
    assert weights == len(model.bundle.manifest["weights"])
    first, second = model.random_inputs(1), model.random_inputs(2)
    (one,), (other,), (again,) = model.run(first), model.run(second), model.run(first)
    assert made[weights:] == [(1, 4, 16, 16)]
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


@pytest.mark.usefixtures("staged")
def test_what_lies_there_already_is_not_copied_and_outputs_stay_there(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fractune.load(bundle)
    inputs = model.random_inputs()
    (expected,) = model.run(inputs)
    placed = model.placed(inputs)
    assert tensors.device_of(placed["x"]) == _SECOND_CPU
    copies: list[Any] = []
    monkeypatch.setattr(runtime, "copy_tensor", lambda *both: copies.append(both))
    (output,) = model.run_tensors(placed)
    assert copies == []
    assert tensors.device_of(output) == _SECOND_CPU
    monkeypatch.undo()
    array, here = tensors.empty_array(output)
    runtime.copy_tensor(output, here)
    np.testing.assert_array_equal(array, expected)


@pytest.mark.usefixtures("staged")
def test_nothing_else_runs_there_while_a_graph_is_captured(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run of a variant with graphs lasts here until the other thread waits for it."""
    inputs = fractune.load(bundle).random_inputs(seed=1)
    own, other = (SecondCpuInTheGpusPlace(Bundle(bundle), None) for _ in range(2))
    arguments = own.arguments(Interface(Bundle(bundle)).inputs, inputs)
    with_graphs, plain = own.load_variant("full+graph"), other.load_variant("full")
    steps: list[str] = []
    begun = threading.Event()

    def run(backend: OnGpu, variant: Variant, arguments: Sequence[Any]) -> list[Any]:
        if backend is own and not steps:
            begun.set()
            wait_until(lambda: CAPTURES.waiting == 1, timeout_s=20)
        steps.append("captured" if backend is own else "ran")
        return real(backend, variant, arguments)

    real = OnGpu._run
    monkeypatch.setattr(SecondCpuInTheGpusPlace, "_run", run)
    first = threading.Thread(target=own.run, args=(with_graphs, arguments))
    first.start()
    assert begun.wait(20)
    other.run(plain, arguments)
    first.join()
    assert steps == ["captured", "ran"]
    with CAPTURES.beside_others():
        own.run(with_graphs, arguments)  # a later run does not wait


@pytest.mark.usefixtures("staged")
def test_rematch_looks_again_and_stays_with_the_share(bundle: Path) -> None:
    model = fractune.load(bundle, share="mps:25")
    before = model.choice
    assert model.rematch() is before


@pytest.mark.usefixtures("staged")
def test_a_share_that_the_process_is_not_under_is_refused(bundle: Path) -> None:
    with pytest.raises(ShareUnavailable, match=r"share 'full' is not in force: this process has 33 of 132 SMs"):
        fractune.load(bundle, share="full")
    with pytest.raises(BadRequest, match="share 'cpu:1' is of a CPU, and the bundle is for a GPU"):
        fractune.load(bundle, share="cpu:1")
    with pytest.raises(BadRequest, match="share 'green:32'"):
        fractune.load(bundle, share="green:32")


@pytest.mark.usefixtures("staged")
def test_a_failure_there_is_told_with_what_to_do(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fractune.load(bundle)

    def broken(_device: str, _stream: int = 0) -> None:
        raise RuntimeError("CUDA: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(runtime, "synchronise", broken)
    with pytest.raises(
        FractuneError, match=r"failed on the GPU \(CUDA: an illegal memory access .*\); .* start it again"
    ):
        model.run_tensors(model.random_inputs())


@pytest.mark.usefixtures("staged")
def test_a_session_names_its_provider(bundle: Path) -> None:
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    session = fractune.InferenceSession(bundle, providers=both)
    (output,) = session.run(None, session.model.random_inputs())
    assert output.shape == (1, 10)
    assert session.get_providers() == ["CUDAExecutionProvider"]
    with pytest.raises(BadRequest, match="runs by CUDAExecutionProvider"):
        fractune.InferenceSession(bundle, providers=["CPUExecutionProvider"])
    with pytest.raises(BadRequest, match="name that provider, or none"):
        session.set_providers(["CPUExecutionProvider"])
    ignored = r"ignores TensorrtExecutionProvider, CUDAExecutionProvider's device_id = 1, intra_op_num_threads = 2$"
    with pytest.warns(UserWarning, match=ignored):
        fractune.InferenceSession(
            bundle,
            fractune.SessionOptions(2),
            ["TensorrtExecutionProvider", ("CUDAExecutionProvider", {"device_id": 1})],
        )


def test_a_machine_without_a_driver_says_so(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "LIBRARY", "libcuda-of-nobody.so.1")
    with pytest.raises(BadBundle, match=r"gpu\.fractune is for a GPU \(sm_90\): this machine has no NVIDIA driver"):
        fractune.load(bundle)


def test_without_tvm_s_runtime_for_gpus_the_way_to_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_CUDA_LIBRARY", "libtvm_runtime_of_nobody.so")
    with pytest.raises(FractuneError, match=r"for NVIDIA GPUs cannot be loaded \(.*\); .*'fractune\[run,cuda\]'"):
        runtime.load_cuda_runtime()
