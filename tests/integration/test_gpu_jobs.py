"""Jobs with shares of a GPU through the command line: server, tuner, builder and compiler are real and make machine
code for it; only what measures is simulated, since there need be no GPU here.
"""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fractune_core.analysis.match import How
from fractune_core.cuda import MPS_PERCENTAGE
from fractune_core.errors import BadBundle, BadRequest, FractuneError, ShareUnavailable
from fractune_core.files.bundles import Bundle
from fractune_core.operators import TRITON, implementation_of
from fractune_core.shares import Device
from fractune_runtime.choosing import choose_variant
from fractune_runtime.gpu import NoDriver, ask_gpu, check_gpu, gpu_share_here, look_at_gpu
from fractune_workers.children.triton_kernels.compiler import is_installed
from fractune_workers.cuda.compilers import find_compiler
from tests.support.hardware.cubins import cubin_arch, cubins_in
from tests.support.hardware.simulated_cuda import Staged
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_gpu_measurer import DEVICE, LAUNCH_S, SMS, simulated_gpu_measurers
from tests.support.hardware.simulated_libcuda import SimulatedLibcuda
from tests.support.processes.cli_process import error_line, events, run_fractune, write_model
from tests.support.processes.fleet_processes import fleet_of_processes
from tests.support.processes.redis_process import running_redis

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.timeout(300),
    pytest.mark.long,
]

SHARES = ("mps:25", "mps:50", "full")
TRIALS = 4


@dataclass(frozen=True)
class Fleet:
    address: str
    folder: Path
    model: Path

    def tune(self, shares: str, *more: str) -> subprocess.CompletedProcess[str]:
        asked = ("--shares", shares, "--trials", str(TRIALS), "--only", "relu")
        return run_fractune(
            "tune", str(self.model), *asked, "--server", self.address, "--out-dir", str(self.folder), "--json", *more
        )


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("gpu-fleet")
    workers = [("--role", role) for role in ("compile", "tune", "build")]
    with (
        running_redis() as url,
        simulated_gpu_measurers(url, *SHARES),
        fleet_of_processes(url, folder, *workers, others=len(SHARES)) as address,
    ):
        yield Fleet(address, folder, write_model(folder / "small.onnx"))


@pytest.fixture(scope="module")
def result(fleet: Fleet) -> dict[str, Any]:
    """What a job came to."""
    found: dict[str, Any] = events(fleet.tune(",".join(SHARES)))[-1]
    return found


@pytest.fixture(scope="module")
def bundle(result: dict[str, Any]) -> Bundle:
    return Bundle(Path(result["bundle"]))


def test_every_candidate_is_built_once_and_measured_at_each_share(fleet: Fleet, result: dict[str, Any]) -> None:
    assert result["trials"] == dict.fromkeys(SHARES, TRIALS)
    assert [(each["share"], each["granted"]["units"]) for each in result["shares"]] == [
        (share, SMS[share]) for share in SHARES
    ]
    assert all(set(operator["best_s"]) == set(SHARES) for operator in result["operators"])
    out = fleet.folder / "records.jsonl"
    done = run_fractune("log", "export", str(out), "--format", "jsonl", "--server", fleet.address)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    records = [line["record"] for line in lines if "record" in line]
    assert {Device.from_json(record["device"]).key for record in records} == {DEVICE.key}
    assert {record["share"] for record in records} == set(SHARES)
    assert {json.loads(record["target"])["arch"] for record in records} == {"sm_90"}
    assert {tuple(record["versions"]) for record in records} == {("compiler",)}
    by_triton = [implementation_of(record["trace"]) == TRITON for record in records]
    assert any(by_triton) is is_installed(), "where Triton is installed, its kernels are measured like any other"


def test_the_log_has_the_launch_floor_of_each_share_and_marks_what_is_near_it(
    fleet: Fleet, result: dict[str, Any]
) -> None:
    shares = {each["share"]: each for each in result["shares"]}
    assert {share: each["launch_s"] for share, each in shares.items()} == dict.fromkeys(SHARES, LAUNCH_S)
    assert {(each["roof"], each["launch_bound"]) for each in shares.values()} == {(None, False)}, "1 ms an inference"
    bound = result["operators"][0]["launch_bound"]
    assert (bound["mps:25"], bound["full"]) == (False, True)
    asked = ("--shares", ",".join(SHARES), "--only", "relu", "--operators", "--server", fleet.address)
    (table,) = (each for each in events(run_fractune("matrix", str(fleet.model), *asked, "--json")) if "tables" in each)
    (operator,) = table["tables"][1:]
    marked = {cell["run_at"] for cell in operator["cells"] if cell["launch_bound"]}
    assert "full" in marked
    assert "mps:25" not in marked


def test_the_bundle_holds_machine_code_for_the_gpu_in_each_variant(bundle: Bundle) -> None:
    names = [variant["name"] for variant in bundle.variants]
    expected = [*SHARES, "untuned", *(f"{share}+graph" for share in SHARES)]
    assert [name for name in names if not name.startswith("robust")] == expected
    for name in names:
        cubins = [cubin for each in bundle.objects(name) for cubin in cubins_in(each)]  # one of each kernel
        assert {cubin_arch(each) for each in cubins} == {"sm_90"}
    manifest = bundle.manifest
    assert Device.from_json(manifest["device"]).key == DEVICE.key
    assert {share: granted["units"] for share, granted in manifest["shares"].items()} == {n: SMS[n] for n in SHARES}
    assert json.loads(manifest["target"])["arch"] == "sm_90"
    for share in SHARES:
        row = manifest["measured"][share]
        assert row[share] == min(row.values()) < row["untuned"]
    bundle.verify()


def test_at_inference_the_variant_of_the_share_is_found(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MPS_PERCENTAGE, "25")
    gpu = ask_gpu(SimulatedLibcuda(SimulatedGpu(MODELS["H200"]), Staged(mps=True)))
    check_gpu(bundle, gpu)
    here = gpu_share_here(gpu, bundle.manifest["device"]["units"], (0,))
    choice = choose_variant(bundle, here.units, mechanism=here.mechanism)
    assert (choice.variant, choice.how) == ("mps:25", How.EXACT)
    with pytest.raises(BadBundle, match="does not run on sm_80"):
        check_gpu(bundle, ask_gpu(SimulatedLibcuda(SimulatedGpu(MODELS["A100-40"]))))


def test_the_log_knows_which_record_fits(fleet: Fleet, result: dict[str, Any]) -> None:
    assert result["bundle"]
    asked = ("match", str(fleet.model), "--share", "mps:50", "--server", fleet.address, "--json")
    found = [each for each in events(run_fractune(*asked)) if "relu" in json.dumps(each)]
    assert found
    assert all('"exact"' in json.dumps(each) for each in found)


def test_a_second_job_measures_nothing_new(fleet: Fleet, result: dict[str, Any]) -> None:
    again = events(fleet.tune(",".join(SHARES)))[-1]
    assert again["trials"] == dict.fromkeys(SHARES, 0)
    assert Path(again["bundle"]) == Path(result["bundle"])


@pytest.mark.parametrize(
    ("shares", "options", "error", "says"),
    [
        ("mps:25,cpu:1", (), BadRequest, "share 'cpu:1' is of a CPU, 'mps:25' of a GPU"),
        ("mps:75", (), ShareUnavailable, "no worker offers mps:75; offered: full, mps:25, mps:50 on cuda-sm_90-132u"),
        ("full", ("--target", "cuda:sm_80"), BadRequest, "code for sm_80 does not run on this GPU (sm_90)"),
        ("full", ("--target", "native"), BadRequest, "is for a CPU, and the shares of this job are of a GPU"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    fleet: Fleet, shares: str, options: tuple[str, ...], error: type[FractuneError], says: str
) -> None:
    ended = fleet.tune(shares, *options, "--force")  # a bundle of two shares is there
    assert ended.returncode == error.exit_code
    assert says in error_line(ended)


def test_a_machine_without_a_gpu_reads_the_bundle_and_does_not_run_it(bundle: Bundle, result: dict[str, Any]) -> None:
    assert bundle.records()
    try:
        look_at_gpu()
    except NoDriver:
        pass
    else:
        pytest.skip("there is an NVIDIA driver here")
    ended = run_fractune("run", result["bundle"])
    assert ended.returncode == BadBundle.exit_code
    assert "small.fractune is for a GPU (sm_90): this machine has no NVIDIA driver" in error_line(ended)
