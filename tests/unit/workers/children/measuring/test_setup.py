"""The measurer's child on a GPU: CUDA and NVML are simulated, and where TVM needs a device the CPU stands in for it."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule

from fractune_core.analysis.roofline import Roof
from fractune_core.cuda import find_cudart, find_toolkits, load_cudart, runtime_version
from fractune_core.errors import ShareUnavailable
from fractune_core.files.packs import FORMAT, PackManifest
from fractune_core.files.sealed import MANIFEST
from fractune_core.records import FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY
from fractune_core.shares import Share
from fractune_core.targets import target_key
from fractune_workers.child.errors import ChildDied
from fractune_workers.children.measuring import child as child_module, roof, setup as measuring_setup
from fractune_workers.children.measuring.child import MeasurerChild, open_child
from fractune_workers.children.measuring.compiled_software import gpu_software
from fractune_workers.children.measuring.setup import MeasuringSetup, gpu_setup, packed_gpu_setup
from fractune_workers.children.tvm_api import cuda_target, processor
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.processor import Processor
from fractune_workers.children.tvm_api.target import default_target, parse_target
from fractune_workers.confinement import stream_of
from fractune_workers.confinement.green import GreenConfinement
from fractune_workers.cuda.driver import CudaDriver
from fractune_workers.gpu.nvml import NvidiaMl
from tests.support.hardware.simulated_cuda import Staged, simulated_driver
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_nvml import LIBRARY_NOT_FOUND, SimulatedNvml

# TVM's own builder calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

VECTORS = [["TENSOR", "float32", [256]]] * 2


@pytest.fixture
def h200() -> SimulatedGpu:
    return SimulatedGpu(MODELS["H200"])


@pytest.fixture
def cuda(h200: SimulatedGpu) -> CudaDriver:
    return simulated_driver(h200, Staged(anchor_ms=0.1))


@pytest.fixture
def confinement(h200: SimulatedGpu, cuda: CudaDriver, monkeypatch: pytest.MonkeyPatch) -> Iterator[GreenConfinement]:
    made = GreenConfinement(Share.parse("green:30"), lambda: NvidiaMl(SimulatedNvml(h200)), lambda: cuda)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    made.enter()
    yield made
    made.leave()


@pytest.fixture
def setup(h200: SimulatedGpu, cuda: CudaDriver, confinement: GreenConfinement) -> MeasuringSetup:
    nvml = NvidiaMl(SimulatedNvml(h200))
    return gpu_setup(stream_of(confinement), gpu_software, lambda: nvml, lambda: cuda, kind="cpu")


@pytest.fixture
def child(confinement: GreenConfinement, setup: MeasuringSetup) -> dict[str, Callable[..., Any]]:
    return MeasurerChild(confinement, setup).methods()


def add(constant: float) -> bytes:
    """An object file whose kernel adds a constant to its first argument."""
    left = te.placeholder((256,), name="left")
    right = te.compute((256,), lambda i: left[i] + constant, name="right")
    sch = Schedule(tvm.IRModule({"main": te.create_prim_func([left, right])}))
    return build_object(sch.mod, default_target(1))


def test_hello_tells_the_gpu_the_proved_share_and_what_decides_the_times(
    child: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_target, "compiler_here", lambda: pytest.fail("a process that measures needs no compiler"))
    hello = child["device_info"]()
    assert hello["device"]["label"] == "NVIDIA H200"
    assert (hello["granted"]["share"], hello["granted"]["units"], hello["granted"]["unit"]) == ("green:30", 32, "sm")
    assert hello["versions"]["driver"] == "580.95.05"
    assert set(hello["versions"]) == {"tvm", "tvm-ffi", "driver", "cuda"}
    assert json.loads(json.dumps(hello)) == hello


def test_its_target_is_the_one_that_a_job_without_a_gpu_gets(
    setup: MeasuringSetup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_target, "compiler_here", lambda: None)
    assert target_key(setup.target) == target_key(str(parse_target("cuda:sm_90", 2)))


def test_the_anchor_runs_on_the_confined_stream(child: dict[str, Callable[..., Any]], cuda: CudaDriver) -> None:
    assert child["anchor"]() == 1.0
    cuda.cuda.staged = Staged(anchor_ms=0.13)
    assert child["anchor"]() == pytest.approx(1.3)


class EmptyKernel:
    """Takes the place of the one that only a GPU runs. Notes the stream of each launch."""

    def __init__(self) -> None:
        self.streams: list[int] = []

    def __getitem__(self, name: str) -> Callable[[int], None]:
        assert name == "main"
        return self._launch

    def timed(self, args: list[int], _device: Any, *, repeat: int, **_policy: Any) -> list[float]:
        self._launch(*args)
        return [9e-6, 4e-6, 3.2e-6, 5e-6, *[4e-6] * repeat][:repeat]

    def _launch(self, blocks: int) -> None:
        assert blocks == 1
        self.streams.append(int(tvm_ffi.get_raw_stream(tvm_ffi.device("cpu:0"))))


def test_the_roof_of_a_gpu_is_its_launch_floor_on_the_confined_stream(
    child: dict[str, Callable[..., Any]], confinement: GreenConfinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = EmptyKernel()
    monkeypatch.setattr(roof, "empty_kernel", lambda: kernel)
    monkeypatch.setattr(processor, "_timed", EmptyKernel.timed)
    assert child["roof"]() == Roof(0.0, 0.0, 0, launch_s=3.2e-6).to_json()
    assert kernel.streams == [confinement.stream] * 2


def test_everything_runs_on_the_confined_stream_and_the_cache_is_known(
    child: dict[str, Callable[..., Any]],
    setup: MeasuringSetup,
    confinement: GreenConfinement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[int] = []

    def noted(*args: Any) -> list[float]:
        streams.append(int(tvm_ffi.get_raw_stream(tvm_ffi.device("cpu:0"))))
        return real(*args)

    real = Processor.time
    monkeypatch.setattr(Processor, "time", noted)
    child["begin"](args_info=VECTORS, seed=1)
    policies = [FIRST_POLICY.to_json(), TRIAL_POLICY.to_json()]
    answer = child["race"](code=add(1.0), policies=policies, bar_s=1.0)
    assert (answer["policy"], len(answer["run_secs"])) == (TRIAL_POLICY.to_json(), TRIAL_POLICY.repeats)
    assert streams == [confinement.stream] * 2
    assert setup.processor.flush_bytes == 2 * (60 << 20)


@pytest.mark.parametrize(("first_s", "again_s", "counted"), [(0.3, 1e-4, ()), (0.3, 0.25, (0.25,)), (2.0, 9.0, (2.0,))])
def test_the_time_of_loading_is_not_a_candidates(
    first_s: float,
    again_s: float,
    counted: tuple[float, ...],
    child: dict[str, Callable[..., Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls_s = iter((first_s, again_s))
    monkeypatch.setattr(MeasurerChild, "_call_s", lambda *_: next(calls_s))
    monkeypatch.setattr(Processor, "is_gpu", True)
    child["begin"](args_info=VECTORS, seed=1)
    answer = child["race"](code=add(1.0), policies=[FIRST_POLICY.to_json()], bar_s=1.0)
    if counted:
        assert answer["run_secs"] == [*counted]
    else:
        assert len(answer["run_secs"]) == FIRST_POLICY.repeats
        assert max(answer["run_secs"]) < 0.1


def test_finalists_are_compared_and_timed_interleaved(child: dict[str, Callable[..., Any]]) -> None:
    child["begin"](args_info=VECTORS, seed=1)
    for name, code in {"untuned": add(1.0), "same": add(1.0), "wrong": add(2.0)}.items():
        child["load"](name=name, code=code)
    assert [child["check"](name=name)["max_error"] for name in ("untuned", "same")] == [0.0, 0.0]
    assert child["check"](name="wrong")["max_error"] > 0.1
    answer = child["time_interleaved"](names=["untuned", "same"], policy=VALIDATION_POLICY.to_json())
    assert {name: len(secs) for name, secs in answer["run_secs"].items()} == {
        name: policy["repeats"] for name, policy in answer["policy"].items()
    }
    assert VALIDATION_POLICY.to_json() in answer["policy"].values()


def test_a_slow_untuned_default_is_called_once_to_compare_and_to_time(
    child: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    called, run, time = list[int](), Processor.secs_of_one, Processor.time

    def one(self: Processor, library: Any, args: list[Any]) -> float:
        run(self, library, args)
        called.append(id(library))
        return 10.0 if called[0] == id(library) else 1e-4

    def timed(self: Processor, library: Any, *how: Any) -> list[float]:
        called.append(id(library))
        return time(self, library, *how)

    monkeypatch.setattr(Processor, "secs_of_one", one)
    monkeypatch.setattr(Processor, "time", timed)
    child["begin"](args_info=VECTORS, seed=1)
    names = ["untuned", "same", "other"]
    for name in names:
        child["load"](name=name, code=add(1.0))
    assert {child["check"](name=name)["max_error"] for name in names} == {0.0}
    policy = VALIDATION_POLICY.to_json()
    for _ in range(2):  # as where the machine changed meanwhile
        answer = child["time_interleaved"](names=names, policy=policy, reference="untuned")
        assert answer["run_secs"]["untuned"] == [10.0]
    assert called.count(called[0]) == 1


@pytest.mark.parametrize("method", ["race", "check", "time_interleaved", "anchor"])
def test_after_a_fault_of_cuda_the_child_has_died_whatever_ran(
    method: str, child: dict[str, Callable[..., Any]], cuda: CudaDriver
) -> None:
    child["begin"](args_info=VECTORS, seed=1)
    cuda.cuda.staged = Staged(errors={"cuCtxSynchronize": 700, "cuEventSynchronize": 700})
    payloads: dict[str, dict[str, Any]] = {
        "race": {"code": b"no code", "policies": [FIRST_POLICY.to_json()], "bar_s": 1.0},
        "check": {"name": "never loaded"},
        "time_interleaved": {"names": ["never loaded"], "policy": VALIDATION_POLICY.to_json()},
        "anchor": {},
    }
    with pytest.raises(ChildDied, match=r"CUDA error 700 \(CUDA_ERROR_ILLEGAL_ADDRESS\); the process is lost to CUDA"):
        child[method](**payloads[method])


def test_a_failure_that_cuda_survives_is_the_candidates_own(child: dict[str, Callable[..., Any]]) -> None:
    child["begin"](args_info=VECTORS, seed=1)
    with pytest.raises(KeyError):
        child["check"](name="never loaded")
    child["load"](name="good", code=add(1.0))
    assert child["check"](name="good")["max_error"] == 0.0


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="this machine has an NVIDIA driver")
def test_a_machine_where_tvm_sees_no_gpu_is_told_what_to_look_at(h200: SimulatedGpu, cuda: CudaDriver) -> None:
    with pytest.raises(ShareUnavailable, match=r"TVM sees no GPU: .*`fractune doctor`"):
        gpu_setup(0, gpu_software, lambda: NvidiaMl(SimulatedNvml(h200)), lambda: cuda)


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"])
def test_a_pack_is_measured_on_a_gpu_that_runs_its_code(
    h200: SimulatedGpu, cuda: CudaDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: str
) -> None:
    target = json.dumps({"kind": "cuda", "arch": arch})
    manifest = PackManifest(FORMAT, "m.onnx", target, target_key(target), 1, "x86_64", [], {"tvm": "0.27.0"})
    (tmp_path / MANIFEST).write_text(json.dumps(manifest.to_json()))
    nvml = NvidiaMl(SimulatedNvml(h200))
    simulated = partial(measuring_setup.gpu_setup, nvml=lambda: nvml, driver=lambda: cuda, kind="cpu")
    monkeypatch.setattr(measuring_setup, "load_cuda_runtime", lambda: None)
    monkeypatch.setattr(measuring_setup, "gpu_setup", simulated)
    if arch == "sm_100":
        with pytest.raises(ShareUnavailable, match="the pack is for sm_100, and this GPU is sm_90"):
            packed_gpu_setup(tmp_path, 0)
        return
    setup = packed_gpu_setup(tmp_path, 0)
    assert (setup.target, setup.device.label) == (target_key(target), "NVIDIA H200")
    assert setup.versions["tvm"] == "0.27.0"
    assert setup.roof() == Roof(0.0, 0.0, 0)


def test_without_nvml_there_is_no_device_to_name(h200: SimulatedGpu, cuda: CudaDriver) -> None:
    broken = SimulatedNvml(h200, broken={"nvmlInit": LIBRARY_NOT_FOUND})
    with pytest.raises(ShareUnavailable, match="no NVIDIA driver on this machine"):
        gpu_setup(0, gpu_software, lambda: NvidiaMl(broken), lambda: cuda, kind="cpu")


def test_without_the_cuda_runtime_a_share_is_refused_with_what_to_install(
    confinement: GreenConfinement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_module, "confinement_for", lambda *_: confinement)
    monkeypatch.setattr(child_module, "load_cudart", lambda: False)
    with pytest.raises(ShareUnavailable, match=r"share 'green:30': there is no libcudart.so.13 .*'fractune\[cuda\]'"):
        open_child(["green:30", ""])


@pytest.mark.skipif(find_cudart(find_toolkits()) is None, reason="no libcudart.so.13; pip install 'fractune[cuda]'")
def test_the_cuda_runtime_tells_its_version_without_a_gpu() -> None:
    assert load_cudart()
    assert runtime_version().startswith("13.")
