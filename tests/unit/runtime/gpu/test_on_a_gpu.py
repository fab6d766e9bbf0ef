"""On a real GPU: a bundle for it gives what the same model gives on the CPU."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import fractune
from fractune_core.errors import FractuneError
from fractune_core.shares import Device, GrantedShare
from fractune_runtime.gpu import GpuHere, look_at_gpu
from fractune_runtime.tvm_runtime.tensors import device_of
from tests.support.paths import REPOSITORY
from tests.support.real_bundle import Small

pytestmark = pytest.mark.gpu

_COMPILE = """
import json, sys
from pathlib import Path
from fractune_workers.children.tvm_api.keep_out import keep_torch_out, stay_off_gpus
keep_torch_out()  # PyTorch sets up CUDA, and the compiler's forks end by SIGSEGV
stay_off_gpus()
from tests.support.real_bundle import compile_model
model, out, target, changes = sys.argv[1:]
compile_model(Path(model), Path(out), target, ["full"], **json.loads(changes))
"""


@pytest.fixture(scope="module")
def gpu() -> GpuHere:
    try:
        found = look_at_gpu()
    except FractuneError as error:
        pytest.skip(str(error))
    if found.is_mps_client or found.is_mig:
        pytest.skip("this test is for a whole GPU: end the MPS daemon, or name another by CUDA_VISIBLE_DEVICES")
    return found


@pytest.fixture(scope="module")
def bundle(gpu: GpuHere, small: Small, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gpu") / "gpu.fractune"
    device = Device("cuda", gpu.isa, gpu.sms, round(gpu.memory_bytes / 2**30), 0, gpu.name)
    granted = GrantedShare("full", gpu.sms, gpu.sms, "sm", gpu.memory_bytes, reserved=False)
    changes = json.dumps({"device": device.to_json(), "shares": {"full": granted.to_json()}})
    command = [sys.executable, "-c", _COMPILE, str(small.model), str(out), f"cuda:{gpu.isa}", changes]
    subprocess.run(command, check=True, cwd=REPOSITORY)
    return out


def test_it_gives_what_the_cpu_gives(small: Small, bundle: Path) -> None:
    model, other = fractune.load(bundle), fractune.load(small.bundle)
    assert (model.choice.variant, model.share.mechanism) == ("full", "full")
    for seed in range(3):
        inputs = model.random_inputs(seed)
        np.testing.assert_allclose(model.run(inputs)[0], other.run(inputs)[0], rtol=1e-3)
        np.testing.assert_allclose(model.run(inputs, "untuned")[0], other.run(inputs)[0], rtol=1e-3)


def test_inputs_and_outputs_stay_on_the_gpu(bundle: Path) -> None:
    model = fractune.load(bundle)
    inputs = model.random_inputs()
    (expected,) = model.run(inputs)
    placed = model.placed(inputs)
    for _ in range(3):
        (output,) = model.run_tensors(placed)
        assert (device_of(placed["x"]), device_of(output)) == ((2, 0), (2, 0))
    np.testing.assert_array_equal(model.run(placed)[0], expected)
