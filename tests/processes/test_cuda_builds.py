"""Candidates of a real model become machine code for a GPU, through the children that make them, without a GPU."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import redis
from rq import Queue
from rq.serializers import JSONSerializer

from fractune_core.cuda import find_cudart, find_toolkits
from fractune_core.files.bundles import Bundle
from fractune_core.fleet.blobs import get_signed_blob, put_signed_blob
from fractune_core.fleet.messages import CandidateItem, TargetOperator
from fractune_core.fleet.redis_names import BUILD_QUEUE, artifact_blob, measure_queue, workload_blob
from fractune_core.fleet.signed_messages import open_work
from fractune_core.names import UNTUNED_VARIANT
from fractune_core.operators import TRITON, joined_workloads, parted_workloads
from fractune_core.records import UNTUNED
from fractune_core.shares import Device, GrantedShare
from fractune_server.transport.work_queues import WorkQueues
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.reader import reader_child
from tests.support.fleet_messages import build_work
from tests.support.hardware.cubins import cubin_arch, cubins_in
from tests.support.processes.cli_process import write_model
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.worker_processes import matmul_workload, worker
from tests.support.secret import SECRET

COMPILER = find_compiler()
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no CUDA compiler here; `make setup` installs NVRTC")

SQUEEZENET = Path(onnx.__file__).parent / "backend/test/data/light/light_squeezenet.onnx"
KINDS = ("conv2d", "max_pool2d", "concatenate", "softmax", "reshape")
CANDIDATES = 2
_LIMIT_CPU_S = 60
"""of a build: some candidates of a search take longer than a worker would wait"""

Built = dict[str, Any]


@pytest.fixture(scope="module")
def operators() -> list[dict[str, Any]]:
    return ingested(SQUEEZENET)


def ingested(model: Path) -> list[dict[str, Any]]:
    child = reader_child("fractune_workers.children.compiling.child", model=model)
    answer = child.call("ingest", 120, path=str(model), inputs={}, target="cuda:sm_90", isa="sm_90")
    child.stop()
    return [
        {**operator, "workload": _of_tvm(operator), "target": answer["target"], "key": answer["target_key"]}
        for operator in answer["operators"]
    ]


def _of_tvm(operator: dict[str, Any]) -> str:
    """The workloads without Triton's, which is there where it is installed."""
    workloads = parted_workloads(operator["workload"])
    return joined_workloads({name: each for name, each in workloads.items() if name != TRITON})


def traces(search: Child, operator: dict[str, Any], count: int) -> list[str]:
    """The untuned default and `count` candidates."""
    known = {"workload_hash": operator["workload_hash"], "target_key": operator["key"]}
    opened = {
        "workload": operator["workload"],
        "target": operator["target"],
        "seed": 0,
        "history": [],
        "transferred": [],
    }
    search.call("open", 120, **known, **opened)
    return [UNTUNED, *(item["trace"] for item in search.call("propose", 120, **known, count=count))]


def build(builder: Child, operator: dict[str, Any], trace: str, target: str = "") -> Built:
    known = {"workload_hash": operator["workload_hash"], "target": target or operator["target"]}
    builder.call("learn_workload", 60, **known, workload=operator["workload"])
    answer: Built = builder.call("build", 120, **known, trace=trace, limit_cpu_s=_LIMIT_CPU_S)
    return answer


def one_of_each_kind(operators: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [next(operator for operator in operators if kind in operator["name"]) for kind in KINDS]


def assert_cubin(built: Built) -> None:
    assert (built["status"], built["cause"]) == ("ok", "")
    assert_archive(built["object"])


def assert_archive(archive: bytes) -> None:
    members = unpack(archive)
    assert list(members) == ["host.o", "device.o"]
    (cubin,) = cubins_in(members["device.o"])
    assert cubin_arch(cubin) == "sm_90"
    assert cubins_in(members["host.o"]) == []


@pytest.mark.long
def test_every_kind_of_operator_becomes_a_cubin(operators: list[dict[str, Any]], search: Child, builder: Child) -> None:
    for operator in one_of_each_kind(operators):
        for trace in traces(search, operator, CANDIDATES):
            built = build(builder, operator, trace)
            assert_cubin(built)
            assert built["build_secs"] > 0
            assert '"Tensorize"' not in trace, "float32 stays on the other cores"
            assert COMPILER is not None
            assert built["versions"] == {"compiler": COMPILER.name}


def test_the_builder_never_opens_cuda(operators: list[dict[str, Any]], builder: Child) -> None:
    assert_cubin(build(builder, operators[0], UNTUNED))
    opened = Path(f"/proc/{builder.pid}/maps").read_text()
    assert "libtvm_compiler" in opened
    assert "/dev/nvidia" not in opened
    files = {str(each.readlink()) for each in Path(f"/proc/{builder.pid}/fd").iterdir()}
    assert not {name for name in files if "nvidia" in name}


def test_a_candidate_beyond_the_block_fails_with_its_cause(
    operators: list[dict[str, Any]], search: Child, builder: Child
) -> None:
    small = json.dumps({**json.loads(operators[0]["target"]), "max_threads_per_block": 2})
    _, trace = traces(search, operators[0], 1)
    built = build(builder, operators[0], trace, small)
    assert built["status"] == "build_failed"
    assert built["cause"].startswith("TooLarge: ")
    assert built["cause"].endswith("threads per block; the target has 2")
    assert built["object"] == b""


def test_a_builder_sends_signed_archives_and_causes_to_the_queue_of_the_gpus_share(
    search: Child, tmp_path: Path
) -> None:
    workload, target = matmul_workload(96), str(parse_target("cuda:sm_90", 1))
    small = json.dumps({**json.loads(target), "max_threads_per_block": 2})
    operator = {"workload_hash": workload["hash"], "workload": workload["json"], "target": target, "key": target}
    _, trace = traces(search, operator, 1)
    with running_redis() as url, worker("builder", "build", url, tmp_path / "gate") as builder:
        connection = redis.Redis.from_url(url)
        builder.info(connection)
        put_signed_blob(connection, SECRET, workload_blob(workload["hash"]), workload["json"].encode())
        give_work(connection, "fits", workload["hash"], target, trace)
        give_work(connection, "large", workload["hash"], small, trace)
        measuring = Queue(measure_queue("gpu", "mps:25"), connection=connection, serializer=JSONSerializer)
        wait_until(lambda: measuring.count == 2, 120)
        works: Any = [open_work(SECRET, measuring.name, job.id, job.args[0]) for job in measuring.jobs]
        fits, large = works
        assert_archive(get_signed_blob(connection, SECRET, artifact_blob("fits", "c")))
    assert fits.candidates[0].status == "ok"
    assert COMPILER is not None
    assert fits.candidates[0].versions == {"compiler": COMPILER.name}
    assert large.candidates[0].status == "build_failed"
    assert "threads per block; the target has 2" in large.candidates[0].cause


def give_work(connection: redis.Redis, round_id: str, workload: str, target: str, trace: str) -> None:
    operator, item = TargetOperator(workload, "matmul", target, target), CandidateItem("c", trace)
    work = build_work(operator, [item], round_id, work_id=round_id, device_key="gpu", shares=["mps:25"])
    WorkQueues(connection, SECRET).enqueue(BUILD_QUEUE, work)


@pytest.fixture(scope="module")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model, untuned."""
    folder = tmp_path_factory.mktemp("small")
    own_dir = folder / "child"
    own_dir.mkdir()
    model, out = write_model(folder / "small.onnx"), own_dir / "small.fractune"
    child = reader_child("fractune_workers.children.compiling.child", model=model, own_dir=own_dir)
    known = {"path": str(model), "inputs": {}, "target": "cuda:sm_90"}
    manifest = {
        "model": {"name": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "device": Device("cuda", "sm_90", units=132, memory_gib=141, l2_kib=51200).to_json(),
        "shares": {"full": GrantedShare("full", 132, 132, "sm", 141 << 30, reserved=True).to_json()},
    }
    variant = {"name": UNTUNED_VARIANT, "traces": {}}
    child.call("compile_bundle", 300, **known, variants=[variant], manifest=manifest, records=[], out=str(out))
    child.stop()
    return out


def test_a_whole_model_becomes_host_code_and_a_cubin(small_bundle: Path) -> None:
    bundle = Bundle(small_bundle)
    (device,) = filter(None, map(cubins_in, bundle.objects(UNTUNED_VARIANT)))
    assert {cubin_arch(cubin) for cubin in device} == {"sm_90"}
    assert json.loads(bundle.manifest["target"])["arch"] == "sm_90"


_STUB = "".join(
    f"int {name}(void) {{ return 100; }}\n"  # CUDA_ERROR_NO_DEVICE
    for name in (
        "cuDeviceGetName",
        "cuFuncSetAttribute",
        "cuGetErrorName",
        "cuGetErrorString",
        "cuLaunchKernelEx",
        "cuModuleGetFunction",
        "cuModuleLoadData",
        "cuModuleUnload",
        "cuTensorMapEncodeTiled",
    )
)
_LOAD = """
import sys
from pathlib import Path
from fractune_runtime.tvm_runtime import runtime
runtime.load_cuda_runtime()
from fractune_workers.children.tvm_api.artifacts import load_objects
module = load_objects([Path(sys.argv[1]).read_bytes()])
(device,) = module.imports
print(device.kind, module.implements_function("main"), device.implements_function(sys.argv[2]))
"""
_LOAD_BUNDLE = """
import re
import sys
from pathlib import Path
from fractune_runtime.tvm_runtime import runtime
from fractune_core.files.bundles import Bundle
runtime.load_cuda_runtime()
import tvm_ffi_orcjit
objects = Bundle(Path(sys.argv[1])).objects("untuned")
load = runtime.tvm_function("tvm_ffi_orcjit.SessionLoadModule")
module = load(tvm_ffi_orcjit.default_session(), objects, "", None, None)
machine = module["vm_load_executable"]()

def within(found):
    return [found, *(each for imported in found.imports for each in within(imported))]

(library,) = (each for each in within(module) if "cuda" in {imported.kind for imported in each.imports})
names = {name.decode() for each in objects for name in re.findall(rb"(?<=__tvm_ffi_)[a-z]\\w+", each)}
names -= {"main", "main_plan"}
found = [library.get_function(f"{name}_kernel", query_imports=True) for name in names]
print(len(found) == len(library.imports) > 1, None not in found)
print(machine.implements_function("main"), "tvm" in sys.modules)
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a process in which TVM's CUDA runtime can be loaded. The driver is a stand-in without a device, so nothing can
    run.
    """
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to make a stand-in for the driver's library with")
    if find_cudart(find_toolkits()) is None:
        pytest.skip("no libcudart.so.13; pip install 'fractune[cuda]'")
    folder = tmp_path_factory.mktemp("stub")
    (folder / "stub.c").write_text(_STUB)
    made = ["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(folder / "libcuda.so.1"), "stub.c"]
    subprocess.run(made, check=True, cwd=folder)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def run_script(script: str, environ: dict[str, str], *args: str) -> list[str]:
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout.split()


def test_tvms_own_cuda_runtime_reads_the_artifact(
    operators: list[dict[str, Any]], builder: Child, environ: dict[str, str], tmp_path: Path
) -> None:
    """Its loader parses what was rewritten."""
    artifact = tmp_path / "candidate.a"
    artifact.write_bytes(build(builder, operators[0], UNTUNED)["object"])
    assert run_script(_LOAD, environ, str(artifact), "main_kernel") == ["cuda", "True", "True"]


def test_inference_loads_a_bundle_s_machine_code_without_tvm_s_package(
    small_bundle: Path, environ: dict[str, str]
) -> None:
    """The host's code of each kernel finds the machine code."""
    assert run_script(_LOAD_BUNDLE, environ, str(small_bundle)) == ["True", "True", "True", "False"]
