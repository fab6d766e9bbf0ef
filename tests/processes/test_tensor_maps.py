"""Tensor maps of Triton's kernels with TMA: TVM's runtime encodes and launches them over a stand-in for the driver."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tvm

from fractune_core.names import WITH_GRAPHS
from fractune_core.operators import DIRECT, TRITON, joined_workloads, parted_workloads, text_of
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import Workload, write_workloads
from tests.processes.test_cuda_graphs import SHARE, chain, compiled, launches
from tests.processes.test_triton import build, ingested
from tests.support.children.triton_operators import BOXES, function_of
from tests.support.hardware.launching_driver import CAPTURED, GRAPH, LAUNCH, stand_in

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no Triton; `make setup-triton` installs it"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make stand-ins for CUDA's libraries with"),
]

TILE = {"rows": 64, "columns": 32, "depth": 32, "warps": 4, "stages": 3}

_ENCODE = """
import ctypes, json, sys
encode = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
room = ctypes.create_string_buffer(256)
place = -(-ctypes.addressof(room) // 64) * 64
for off, type_, rank, address, dims, strides, box, steps, *rest in json.loads(sys.argv[1]):
    arrays = (ctypes.c_uint64 * 5)(*dims), (ctypes.c_uint64 * 4)(*strides)
    arrays += (ctypes.c_uint * 5)(*box), (ctypes.c_uint * 5)(*steps)
    print(encode(ctypes.c_void_p(place + off), type_, rank, ctypes.c_void_p(address), *arrays, *rest))
"""


def test_the_stand_in_refuses_what_nvidia_s_header_forbids(tmp_path: Path) -> None:
    """Each case breaks one rule. Without that, a wrong tensor map would pass these tests."""
    right: dict[str, Any] = {
        "off": 0,
        "type": 6,
        "rank": 3,
        "address": 1 << 20,
        "dims": [40, 19, 2],
        "strides": [80, 1520],
        "box": [64, 16, 1],
        "steps": [1, 1, 1],
        "interleave": 0,
        "swizzle": 3,
        "promotion": 2,
        "fill": 0,
    }
    wrong: list[dict[str, Any]] = [
        {"off": 16},
        {"type": 13},
        {"type": 7},  # 256 bytes are more than the swizzle's 128
        {"rank": 0},
        {"rank": 6},
        {"address": 1 << 20 | 8},
        {"dims": [40, 0, 2]},
        {"dims": [40, 1 << 32, 2]},
        {"dims": [41, 19, 2]},  # rows overlap
        {"strides": [88, 1672]},
        {"strides": [80, 1504]},
        {"strides": [80, 1 << 40]},
        {"box": [64, 0, 1]},
        {"box": [64, 257, 1]},
        {"box": [4, 16, 1]},
        {"box": [128, 16, 1]},
        {"steps": [1, 0, 1]},
        {"steps": [1, 9, 1]},
        {"interleave": 1},
        {"swizzle": 2},
        {"swizzle": 7},
        {"promotion": 4},
        {"fill": 2},
        {"type": 1, "fill": 1},
    ]
    stand_in(tmp_path)
    cases = json.dumps([list({**right, **each}.values()) for each in ({}, {"steps": [9, 1, 8]}, *wrong)])
    done = subprocess.run(
        [sys.executable, "-c", _ENCODE, cases],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["0"] * 2 + ["1"] * len(wrong), done.stderr


_RUN = """
import ctypes, json, sys
from pathlib import Path
sys.modules["triton"] = None
from fractune_core.cuda import load_cudart
assert load_cudart()
from fractune_workers.children.tvm_api.artifacts import load_objects
import tvm
arguments = [tvm.runtime.empty(shape, dtype, tvm.cuda(0)) for shape, dtype in json.loads(sys.argv[2])]
load_objects([Path(sys.argv[1]).read_bytes()])["main"](*arguments)
"""


def operator_of(function: Any, target: str = "cuda:sm_90") -> dict[str, Any]:
    """As ingest gives it to a builder."""
    own = parted_workloads(write_workloads({DIRECT: Workload.of(tvm.IRModule({"main": function}))}))[DIRECT]
    workload = joined_workloads({DIRECT: own, TRITON: own})
    name = hashlib.sha256(workload.encode()).hexdigest()
    return {"workload_hash": name, "workload": workload, "target": str(parse_target(target, 1))}


@pytest.mark.parametrize(
    ("name", "dtype", "first", "second"),
    [
        (
            "bias and relu",
            "bfloat16",
            "9 dims 80 33 strides 160 box 32 64 swizzle 2",
            "9 dims 48 80 strides 96 box 32 32 swizzle 2",
        ),
        (
            "turned factors",
            "float32",
            "7 dims 40 80 strides 160 box 32 32 swizzle 3",
            "7 dims 80 72 strides 320 box 32 32 swizzle 3",
        ),
        (
            "batches of more",
            "float16",
            "6 dims 40 19 2 2 strides 80 1520 4560 box 32 64 1 1 swizzle 2",
            "6 dims 24 40 2 2 strides 48 1920 5760 box 32 32 1 1 swizzle 2",
        ),
        (
            "a row of weights",
            "float16",
            "6 dims 33 1 strides 80 box 32 64 swizzle 2",
            "6 dims 24 33 strides 48 box 32 32 swizzle 2",
        ),
        (
            "whole numbers",
            "int8",
            "0 dims 80 33 strides 80 box 32 64 swizzle 1",
            "0 dims 48 80 strides 48 box 32 32 swizzle 1",
        ),
    ],
)
def test_a_tensor_map_says_how_its_factor_lies(
    builder: Child, name: str, dtype: str, first: str, second: str, tmp_path: Path
) -> None:
    """By the numbers of NVIDIA's header. A tile that is longer than the swizzle is copied in parts."""
    function, _ = function_of(BOXES[name], dtype)
    built = build(builder, operator_of(function), TILE, tma=True)
    artifact = tmp_path / "a"
    artifact.write_bytes(built["object"])
    arguments = [([int(dim) for dim in each.ty.shape], str(each.ty.dtype)) for each in function.params]
    stand_in(tmp_path)
    at = len(arguments)
    dimensions = len(first[first.index("dims") : first.index("strides")].split()) - 1
    environ = {
        **os.environ,
        "LD_LIBRARY_PATH": str(tmp_path),
        "TENSOR_MAPS_AT": f"main_kernel 0:{at} 1:{at + 1 + 2 * dimensions}",
    }
    command = [sys.executable, "-c", _RUN, str(artifact), json.dumps(arguments)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = (each for each in done.stderr.splitlines() if each.startswith(LAUNCH))
    assert line.partition(" map of type ")[2] == f"{first} map of type {second}"


def test_captured_launches_have_their_tensor_maps(tmp_path: Path) -> None:
    """A map lies on the stack of the host's code, so a graph must hold a copy: CUDA copies what a launch is given. The
    kernels between the first and the last are captured.
    """
    model = chain(tmp_path, 4, "float16", 64)
    (operator,) = ingested(model, "sm_90")
    decisions = json.dumps([{"kernel": "product-tma/1", **TILE}])
    bundle = compiled(model, {operator["workload_hash"]: text_of(TRITON, decisions)})
    plain = launches(bundle, tmp_path, SHARE)[SHARE]
    (kernel,) = {line.split()[1] for line in plain}
    found = launches(bundle, tmp_path, SHARE, TENSOR_MAPS_AT=f"{kernel} 0:3 1:8")
    maps = (
        " map of type 6 dims 64 64 strides 128 box 32 64 swizzle 2"
        " map of type 6 dims 64 64 strides 128 box 32 32 swizzle 2"
    )
    for name, kinds in (
        (CAPTURED, [CAPTURED] * 2),
        (SHARE + WITH_GRAPHS, [LAUNCH, GRAPH, LAUNCH]),
        (SHARE, [LAUNCH] * 4),
    ):
        assert [line.partition(" ")[0] for line in found[name]] == kinds
        assert all(line == GRAPH or line.endswith(maps) for line in found[name])
