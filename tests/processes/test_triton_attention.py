"""Attention as one kernel, without a GPU: values by Triton's interpreter, instructions by disassembly, launches by
stand-ins, and a search that proposes it.
"""

import importlib.util
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.support.transformer import Encoder
from fractune_core.operators import DIRECT, TRITON, implementation_of, parted_workloads, text_of
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.reader import reader_child
from tests.processes.test_triton import compiled, environ, launches, weights_of
from tests.support.children.triton_attention import CASES
from tests.support.hardware.cubins import cubins_in
from tests.support.hardware.sass import MISSING, instructions

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton; `make setup-triton` installs it"),
]
__all__ = ["environ"]

DECISIONS = {"small tiles": [16, 16, 2, 1], "one tile of keys, or two": [32, 64, 4, 2]}
"""as `AttentionDecisions` takes them"""
MOST_ERROR = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2e-6}
"""relative to the largest output: of two roundings, of the weights and of the output; or of additions in another
order"""


@pytest.mark.parametrize("dtype", MOST_ERROR)
def test_the_values_are_numpy_s(dtype: str) -> None:
    """In the interpreter: extents that are no multiples of a tile, heads of 20 and 24 numbers, every kind of mask."""
    cases = list(itertools.product(CASES, DECISIONS))
    asked = [(name, dtype, DECISIONS[tiles]) for name, tiles in cases]
    command = [sys.executable, "-m", "tests.support.children.triton_attention", json.dumps(asked)]
    interpreted = {**os.environ, "TRITON_INTERPRET": "1"}
    ended = subprocess.run(command, env=interpreted, capture_output=True, text=True, check=True)
    errors = dict(zip(cases, json.loads(ended.stdout.splitlines()[-1]), strict=True))
    assert {case: error for case, error in errors.items() if not error <= MOST_ERROR[dtype]} == {}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers in float32, with heads of 64 numbers and a mask."""
    path = tmp_path_factory.mktemp("model") / "encoder.onnx"
    Encoder(layers=2, width=256, heads=4, inner=256, length=128, vocabulary=50).save(path)
    return path


@pytest.fixture(scope="module")
def half() -> dict[str, Any]:
    """Attention of a model in float16 for each architecture: two batches of 512, 8 heads of 64 numbers, a mask."""
    code = """
import json, sys
import tvm
from tests.support.children.triton_attention import *
from fractune_core.operators import joined_workloads
from fractune_workers.children.compiling.implementations import workloads_of
from fractune_workers.children.tvm_api.traces import write_workloads
stay_off_gpus()
case = Case(((2, 512, 8, 64),) * 3, lambda: np.zeros((2, 1, 1, 512), "float32"), 0.125, heads_last=True)
((name, workloads),) = workloads_of(chains_of(emit(case, "float16"))).items()
print(json.dumps({"workload_hash": name, "workload": write_workloads(workloads)}))
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def target_of(name: str) -> str:
    return str(parse_target(name, 1))


def proposed(search: Child, operator: dict[str, Any], target: str, count: int, *, exact: bool = False) -> list[str]:
    name = {"workload_hash": operator["workload_hash"], "target_key": target}
    opened = {"workload": operator["workload"], "target": target, "history": [], "transferred": []}
    search.call("open", 120, **name, seed=0, **opened)
    search.call("learn", 60, **name, results=[], shares=["full", "mps:25"], units=[132, 33])
    return [each["trace"] for each in search.call("propose", 120, **name, count=count, exact=exact)]


def build(builder: Child, operator: dict[str, Any], target: str, trace: str) -> dict[str, Any]:
    builder.call(
        "learn_workload", 60, workload_hash=operator["workload_hash"], workload=operator["workload"], target=target
    )
    built: dict[str, Any] = builder.call(
        "build", 120, workload_hash=operator["workload_hash"], target=target, trace=trace, limit_cpu_s=60
    )
    return built


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("arch", "multiplies"), [("sm_80", "HMMA.16816.F32"), ("sm_90", "HGMMA"), ("sm_100", "UTCHMMA")]
)
def test_first_candidates_multiply_on_tensor_cores_and_fit_into_the_registers(
    half: dict[str, Any], search: Child, builder: Child, arch: str, multiplies: str
) -> None:
    target = target_of(f"cuda:{arch}")
    traces = proposed(search, half, target, 4)
    assert [implementation_of(each) for each in traces] == [TRITON] * 4, "TVM's search leaves attention alone"
    found = []
    for trace in traces:
        built = build(builder, half, target, trace)
        assert (built["status"], built["cause"]) == ("ok", "")
        (cubin,) = cubins_in(unpack(built["object"])["device.o"])
        names = instructions(cubin)
        assert not any(name.startswith(("LDL", "STL")) for name in names), (trace, names)
        assert any(name.startswith("LDGSTS") for name in names), "keys and values are copied asynchronously"
        found.append(any(name.startswith(multiplies) for name in names))
    assert any(found)


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
def test_float32_stays_float32_unless_the_target_allows_tf32(model: Path, search: Child, builder: Child) -> None:
    kinds = {}
    for text in ("cuda:sm_90", "cuda:sm_90+tf32"):
        operator = attention_in(model, text)
        built = build(builder, operator, operator["target"], proposed(search, operator, operator["target"], 1)[0])
        (cubin,) = cubins_in(unpack(built["object"])["device.o"])
        names = instructions(cubin)
        assert not any(name.startswith(("LDL", "STL")) for name in names), names
        kinds[text] = {name.partition(".")[0] for name in names} & {"HMMA", "HGMMA"}
    assert [bool(each) for each in kinds.values()] == [False, True]


def attention_in(model: Path, target: str) -> dict[str, Any]:
    """The operator as ingest finds it."""
    child = reader_child("fractune_workers.children.compiling.child", model=model)
    answer = child.call("ingest", 120, path=str(model), inputs={}, target=target, isa="sm_90")
    child.stop()
    (found,) = (each for each in answer["operators"] if each["name"] == "attention")
    return {**found, "target": answer["target"]}


def test_exact_jobs_search_no_attention(half: dict[str, Any], search: Child) -> None:
    assert proposed(search, half, target_of("cuda:sm_90"), 4, exact=True) == []


_RUN = """
import sys
from pathlib import Path
sys.modules["triton"] = None
import ctypes
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
from fractune_workers.children.tvm_api.artifacts import load_objects
import numpy as np
import tvm
shapes = [*[(2, 512, 8, 64)] * 3, (2, 1, 1, 512), (2, 512, 8, 64)]
arguments = [tvm.runtime.tensor(np.zeros(shape, "float16"), tvm.cuda(0)) for shape in shapes]
load_objects([Path(sys.argv[1]).read_bytes()])["main"](*arguments)
"""


def test_tvm_s_runtime_launches_an_artifact_without_triton(
    half: dict[str, Any], builder: Child, environ: dict[str, str], tmp_path: Path
) -> None:
    trace = text_of(TRITON, json.dumps([{"kernel": "attention/1", "rows": 64, "columns": 64, "warps": 4, "stages": 2}]))
    built = build(builder, half, target_of("cuda:sm_90"), trace)
    artifact = tmp_path / "attention.a"
    artifact.write_bytes(built["object"])
    (line,) = launches(_RUN, {**environ, "POINTERS": "5,2"}, str(artifact))
    assert line.startswith("launch main_kernel blocks 128 threads 128 shared "), "8 tiles of queries, 16 heads"
    assert line.endswith(" (nil) (nil)")


_RUN_BUNDLE = """
import ctypes, sys
from pathlib import Path
sys.modules["triton"] = None
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
from fractune_core.files.bundles import Bundle
from fractune_workers.children.tvm_api.artifacts import load_objects
import numpy as np
import tvm
bundle = Bundle(Path(sys.argv[1]))
machine = tvm.relax.VirtualMachine(load_objects(bundle.objects("full")), tvm.cuda(0))
weights = [tvm.runtime.tensor(np.zeros(shape, dtype), tvm.cuda(0)) for shape, dtype in eval(sys.argv[2])]
inputs = [tvm.runtime.tensor(np.zeros((1, 128), "int64"), tvm.cuda(0)) for _ in range(2)]
machine["main"](*inputs, *weights)
"""


def test_a_bundle_launches_attention_in_the_place_of_the_separate_operators(
    model: Path, search: Child, environ: dict[str, str], tmp_path: Path
) -> None:
    operator = attention_in(model, "cuda:sm_90")
    assert operator["weight"] == 0
    assert list(parted_workloads(operator["workload"])) == [DIRECT, TRITON]
    (trace,) = proposed(search, operator, operator["target"], 1)
    counts = {}
    for name, traces in (("apart", {}), ("one", {operator["workload_hash"]: trace})):
        folder = tmp_path / name
        folder.mkdir()
        path = compiled(model, traces, folder)
        shapes = [(entry["shape"], entry["dtype"]) for entry in weights_of(path)]
        lines = launches(_RUN_BUNDLE, environ, str(path), repr(shapes))
        names = [line.split()[1] for line in lines]
        counts[name] = [sum(kind in name for name in names) for kind in ("attention", "softmax", "transpose")]
    assert counts["one"] == [2, 0, 0]
    assert counts["apart"][0] == 0
    assert min(counts["apart"][1:]) >= 2
