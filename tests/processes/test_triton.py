"""Triton's kernels without a GPU: values by its interpreter, instructions by disassembly, launches by stand-ins."""

import hashlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fractune_core.cuda import MPS_PERCENTAGE
from fractune_core.names import WITH_GRAPHS
from fractune_core.operators import DIRECT, TRITON, implementation_of, joined_workloads, parted_workloads, text_of
from fractune_core.shares import Device, GrantedShare
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.reader import reader_child
from tests.integration.test_half_precision import product
from tests.processes.test_cuda_graphs import compiled as compiled_with_graphs
from tests.support.children.triton_operators import BOXES, OPERATORS
from tests.support.hardware.cubins import cubins_in
from tests.support.hardware.launching_driver import CAPTURED, GRAPH, LAUNCH, stand_in
from tests.support.hardware.over_stand_ins import LOAD, graphs_are_fastest, kind, run_over_stand_ins
from tests.support.hardware.sass import MISSING, instructions

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton; `make setup-triton` installs it"),
]

DECISIONS = {
    "a program for each tile": [16, 32, 32, 4, 3, 1, 0],
    "three programs": [32, 16, 32, 4, 2, 1, 3],
    "a split depth": [16, 16, 32, 2, 2, 2, 0],
}
"""as `Decisions` takes them, without `tma`"""
MOST_ERROR = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2e-6, "int8": 0.0}
"""relative to the largest output: of one rounding, or of additions in another order"""
WHOLE = "whole numbers"


def errors_of(cases: list[tuple[str, str, list[int]]]) -> list[float]:
    environ = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "tests.support.children.triton_operators", json.dumps(cases)]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    errors: list[float] = json.loads(ended.stdout.splitlines()[-1])
    return errors


@pytest.mark.parametrize("tma", [False, True])
@pytest.mark.parametrize("dtype", MOST_ERROR)
def test_the_values_of_every_kernel_are_numpy_s(dtype: str, *, tma: bool) -> None:
    """In the interpreter: extents that are no multiples of a tile, with each epilogue."""
    names = [name for name in (BOXES if tma else OPERATORS) if (name == WHOLE) == (dtype == "int8")]
    cases = [(name, dtype, [*each, tma]) for name, each in itertools.product(names, DECISIONS.values())]
    errors = dict(zip(itertools.product(names, DECISIONS), errors_of(cases), strict=True))
    assert {case: error for case, error in errors.items() if not error <= MOST_ERROR[dtype]} == {}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In float16: a matrix product with GELU, then a convolution."""
    draw = np.random.default_rng(0)
    shapes = {"w": (512, 512), "bias": (512,), "k": (128, 8, 3, 3)}
    weights = [numpy_helper.from_array(draw.standard_normal(each).astype("float16"), n) for n, each in shapes.items()]
    weights.append(numpy_helper.from_array(np.array([2, 8, 128, 128]), "image"))
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["xw"]),
        helper.make_node("Add", ["xw", "bias"], ["sum"]),
        helper.make_node("Gelu", ["sum"], ["gelu"]),
        helper.make_node("Reshape", ["gelu", "image"], ["images"]),
        helper.make_node("Conv", ["images", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in (("x", [512, 512]), ("y", [2, 128, 128, 128]))
    )
    graph = helper.make_graph(nodes, "sums", [x], [y], weights)
    path = tmp_path_factory.mktemp("model") / "sums.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)
    return path


def ingested(model: Path, arch: str) -> list[dict[str, Any]]:
    """The operators that Triton's kernels may compute, as ingest finds them."""
    child = reader_child("fractune_workers.children.compiling.child", model=model)
    answer = child.call("ingest", 120, path=str(model), inputs={}, target=f"cuda:{arch}", isa=arch)
    child.stop()
    facts = {"target": answer["target"], "key": answer["target_key"]}
    return [{**each, **facts} for each in answer["operators"] if TRITON in parted_workloads(each["workload"])]


def build(builder: Child, operator: dict[str, Any], decisions: dict[str, Any], *, tma: bool = False) -> dict[str, Any]:
    kernel = "product-tma/1" if tma else "product/1"
    trace = text_of(TRITON, json.dumps([{"kernel": kernel, "split": 1, "programs": 0, **decisions}]))
    known = {"workload_hash": operator["workload_hash"], "target": operator["target"]}
    builder.call("learn_workload", 60, **known, workload=operator["workload"])
    built: dict[str, Any] = builder.call("build", 120, **known, trace=trace, limit_cpu_s=60)
    return built


LARGE = {"rows": 128, "columns": 128, "depth": 64, "warps": 8, "stages": 3}


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(
    ("arch", "multiplies", "tma"),
    [
        ("sm_80", "HMMA.16816.F32", False),
        ("sm_89", "HMMA.16816.F32", False),
        *itertools.product(["sm_90"], ["HGMMA"], [False, True]),
        *itertools.product(["sm_100"], ["UTCHMMA"], [False, True]),
    ],
)
def test_kernels_multiply_on_tensor_cores_and_copy_asynchronously(
    model: Path, builder: Child, arch: str, multiplies: str, *, tma: bool
) -> None:
    """TMA loads both factors of the product, and the weights of the convolution beside the gathered rows."""
    operators = ingested(model, arch)
    assert [any(kind in each["name"] for each in operators) for kind in ("matmul", "conv2d")] == [True, True]
    for operator in operators:
        built = build(builder, operator, LARGE, tma=tma)
        assert (built["status"], built["cause"]) == ("ok", "")
        assert re.fullmatch(r"Triton \S+", built["versions"]["compiler"])
        (cubin,) = cubins_in(unpack(built["object"])["device.o"])
        found = instructions(cubin)
        by_pointers = not tma or "conv2d" in operator["name"]
        for wanted, used in ((multiplies, True), ("LDGSTS", by_pointers), ("UTMALDG", tma)):
            assert any(name.startswith(wanted) for name in found) == used, (wanted, found)
        assert not any(name.startswith(("LDL", "STL")) for name in found), "sums do not fit into the registers"


def test_a_gpu_without_tma_refuses_a_candidate_with_it(model: Path, builder: Child) -> None:
    operator = ingested(model, "sm_80")[0]
    built = build(builder, operator, LARGE, tma=True)
    assert built["status"] == "build_failed"
    assert "this GPU has no copy engine for the candidate (TMA); tune the model for it again" in built["cause"]


@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize(("target", "multiplies"), [("cuda:sm_90+fast-math", "FFMA"), ("cuda:sm_90+tf32", "HGMMA")])
def test_float32_stays_float32_unless_the_target_allows_tf32(builder: Child, target: str, multiplies: str) -> None:
    direct = parted_workloads(product(512, "float32", sums="float32"))[DIRECT]
    workload = joined_workloads({DIRECT: direct, TRITON: direct})
    operator = {"workload_hash": "product", "workload": workload, "target": str(parse_target(target, 1))}
    built = build(builder, operator, {**LARGE, "rows": 64, "columns": 64, "depth": 32})
    (cubin,) = cubins_in(unpack(built["object"])["device.o"])
    kinds = {name.partition(".")[0] for name in instructions(cubin)}
    assert multiplies in kinds
    assert ("HGMMA" in kinds) == (multiplies == "HGMMA")


def test_a_tile_beyond_shared_memory_fails_with_its_cause(model: Path, builder: Child) -> None:
    operator = ingested(model, "sm_90")[0]
    built = build(builder, operator, {**LARGE, "rows": 256, "depth": 128})
    assert built["status"] == "build_failed"
    assert built["cause"].startswith("TooLarge: main_kernel needs ")
    assert built["cause"].endswith(f"bytes of shared memory per block; the target has {227 * 1024}")


_RUN = """
import sys
from pathlib import Path
sys.modules["triton"] = None
from fractune_core.cuda import load_cudart
import ctypes
ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)
from fractune_workers.children.tvm_api.artifacts import load_objects
import numpy as np
import tvm
shapes = {shapes}
arguments = [tvm.runtime.tensor(np.zeros(shape, "float16"), tvm.cuda(0)) for shape in shapes]
load_objects([Path(sys.argv[1]).read_bytes()])["main"](*arguments)
"""


def launches(script: str, environ: dict[str, str], *args: str) -> list[str]:
    ended = subprocess.run(
        [sys.executable, "-c", script, *args], env=environ, capture_output=True, text=True, check=True
    )
    return [line for line in ended.stderr.splitlines() if line.startswith("launch ")]


@pytest.fixture(scope="module")
def environ(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to make stand-ins for CUDA's libraries with")
    folder = tmp_path_factory.mktemp("driver")
    stand_in(folder)
    return {**os.environ, "LD_LIBRARY_PATH": str(folder)}


def test_tvm_s_runtime_launches_an_artifact(
    model: Path, builder: Child, environ: dict[str, str], tmp_path: Path
) -> None:
    """Without Triton, over stand-ins for CUDA: one launch, or two with sums that were split."""
    (operator,) = (each for each in ingested(model, "sm_90") if "matmul" in each["name"])
    script = _RUN.format(shapes=[(512, 512), (512, 512), (512,), (512, 512)])
    found = {}
    for split in (1, 4):
        built = build(builder, operator, {**LARGE, "split": split})
        artifact = tmp_path / f"{split}.a"
        artifact.write_bytes(built["object"])
        arguments = {1: 4, 4: 5}[split]
        found[split] = launches(script, {**environ, "POINTERS": f"{arguments},2"}, str(artifact))
    assert found[1] == ["launch main_kernel blocks 16 threads 256 shared 98304 (nil) (nil)"]
    first, second = found[4]
    assert first == "launch main_kernel blocks 64 threads 256 shared 98304 (nil) (nil)"
    assert re.fullmatch(r"launch main_kernel_1 blocks 128 threads 128 shared \d+ \(nil\) \(nil\)", second)


def test_tensor_maps_are_encoded_for_each_launch(
    model: Path, builder: Child, environ: dict[str, str], tmp_path: Path
) -> None:
    """The stand-in for `cuTensorMapEncodeTiled` keeps NVIDIA's rules, and the kernel is given what it encoded."""
    maps = (
        " map of type 6 dims 512 512 strides 1024 box 64 128 swizzle 3"
        " map of type 6 dims 512 512 strides 1024 box 64 64 swizzle 3"
    )
    (operator,) = (each for each in ingested(model, "sm_90") if "matmul" in each["name"])
    script = _RUN.format(shapes=[(512, 512), (512, 512), (512,), (512, 512)])
    for split, arguments in ((1, 4), (4, 5)):
        built = build(builder, operator, {**LARGE, "split": split}, tma=True)
        artifact = tmp_path / f"{split}.a"
        artifact.write_bytes(built["object"])
        places = f"main_kernel 0:{arguments} 1:{arguments + 5}"
        first, *others = launches(script, {**environ, "TENSOR_MAPS_AT": places}, str(artifact))
        assert first == f"launch main_kernel blocks {16 * split} threads 256 shared 98328{maps}"
        assert len(others) == (split > 1)


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
weights = [tvm.runtime.tensor(np.zeros(shape, "float16"), tvm.cuda(0)) for shape in eval(sys.argv[2])]
machine["main"](tvm.runtime.tensor(np.zeros((512, 512), "float16"), tvm.cuda(0)), *weights)
"""


def test_a_bundle_with_triton_s_kernels_runs_without_triton(
    model: Path, environ: dict[str, str], tmp_path: Path
) -> None:
    """A search proposes, a bundle is compiled, and its kernels, with and without TMA, are launched beside TVM's."""
    search = Child("fractune_workers.children.searching.child", ["1"])
    traces = {}
    for operator in ingested(model, "sm_90"):
        name = {"workload_hash": operator["workload_hash"], "target_key": operator["key"]}
        opened = {"workload": operator["workload"], "target": operator["target"], "history": [], "transferred": []}
        search.call("open", 120, **name, seed=0, **opened)
        search.call("learn", 60, **name, results=[], shares=["full"], units=[132])
        texts = [each["trace"] for each in search.call("propose", 120, **name, count=8)]
        kernel = "product-tma/1" if "matmul" in operator["name"] else "product/1"
        traces[operator["workload_hash"]] = next(
            each for each in texts if implementation_of(each) == TRITON and f'"{kernel}"' in each
        )
    search.stop()
    path = compiled(model, traces, tmp_path)
    shapes = [entry["shape"] for entry in weights_of(path)]
    found = launches(_RUN_BUNDLE, environ, str(path), repr(shapes))
    assert len(traces) == 2
    names = [line.split()[1] for line in found]
    assert [kind for name in names for kind in ("matmul", "conv2d") if kind in name] == ["matmul", "conv2d"]
    assert "transpose" in "".join(names), "TVM's own kernels are launched beside them"


@pytest.mark.parametrize("share", ["full", "mps:25"])
def test_partial_sums_in_a_graph_stay_where_they_were_captured(tmp_path: Path, share: str) -> None:
    """The product behind the graph needs more memory for its own, and the model gets another thread."""
    path = graphs_are_fastest(compiled_with_graphs(*split_products(tmp_path), [share]), [share])
    percentage = {MPS_PERCENTAGE: "25"} if share == "mps:25" else {}
    done = run_over_stand_ins(LOAD, tmp_path, str(path), share, POINTERS="0,4", **percentage)
    assert (done.returncode, done.stdout.split()) == (0, [share + WITH_GRAPHS, "False"]), done.stderr
    _, first, *later = ([kind(line) for line in lines.splitlines()] for lines in done.stderr.split("call\n"))
    assert first == [*[LAUNCH] * 6, *[CAPTURED] * 4, *[LAUNCH] * 2]
    assert later == [[*[LAUNCH] * 2, GRAPH, *[LAUNCH] * 2]] * 2


def split_products(folder: Path) -> tuple[Path, dict[str, str]]:
    """A model of four products in float16, the last of them the largest, and decisions that split each depth."""
    draw, widths = np.random.default_rng(0), (256, 256, 256, 256, 1024)
    names = ["x", *(f"y{at}" for at in range(1, len(widths)))]
    weights = [
        numpy_helper.from_array(draw.standard_normal(shape).astype("float16"), f"w{at}")
        for at, shape in enumerate(itertools.pairwise(widths))
    ]
    nodes = [
        helper.make_node("MatMul", [taken, f"w{at}"], [made])
        for at, (taken, made) in enumerate(itertools.pairwise(names))
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, [64, width])
        for name, width in ((names[0], widths[0]), (names[-1], widths[-1]))
    )
    graph, model = helper.make_graph(nodes, "products", [x], [y], weights), folder / "products.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    split = [{"kernel": "product/1", **LARGE, "rows": 64, "split": 4, "programs": 0}]
    return model, {each["workload_hash"]: text_of(TRITON, json.dumps(split)) for each in ingested(model, "sm_90")}


def compiled(model: Path, traces: dict[str, str], folder: Path) -> Path:
    own_dir = folder / "child"
    own_dir.mkdir()
    manifest = {
        "model": {"name": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()},
        "device": Device("cuda", "sm_90", units=132, memory_gib=141, l2_kib=51200).to_json(),
        "shares": {"full": GrantedShare("full", 132, 132, "sm", 141 << 30, reserved=True).to_json()},
    }
    child = reader_child("fractune_workers.children.compiling.child", model=model, own_dir=own_dir)
    known = {"path": str(model), "inputs": {}, "target": "cuda:sm_90", "manifest": manifest, "records": []}
    variants = [{"name": "full", "traces": traces}]
    child.call("compile_bundle", 300, **known, variants=variants, out=str(own_dir / "sums.fractune"))
    child.stop()
    return own_dir / "sums.fractune"


def weights_of(path: Path) -> list[dict[str, Any]]:
    from fractune_core.files.bundles import Bundle

    manifest = Bundle(path).manifest
    (variant,) = manifest["variants"]
    return [manifest["weights"][at] for at in variant["weights"]]
