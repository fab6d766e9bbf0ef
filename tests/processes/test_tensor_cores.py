"""Candidates with tensor cores, from a model in half precision to instructions of a GPU, without a GPU."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from fractune_core.files.bundles import Bundle
from fractune_core.shares import Device, GrantedShare
from fractune_workers.child import Child
from fractune_workers.children.tvm_api.artifacts import unpack
from fractune_workers.children.tvm_api.cuda_target import ASYNC_COPIES
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.reader import reader_child
from tests.integration.test_half_precision import product
from tests.processes.test_cuda_builds import assert_cubin, build, ingested
from tests.support.hardware.cubins import cubins_in
from tests.support.hardware.sass import MISSING, instructions

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.skipif(bool(MISSING), reason=MISSING),
]

CANDIDATES = 8

Built = dict[str, Any]


def half_precision_model(path: Path) -> Path:
    """Two like convolutions of float16, and a matrix product of what comes out of them."""
    rng = np.random.default_rng(0)
    shapes = {"w0": (64, 64, 3, 3), "w1": (64, 64, 3, 3), "w2": (16, 64)}
    tensors = [
        onnx.numpy_helper.from_array(rng.uniform(-1, 1, shape).astype("float16"), name)
        for name, shape in shapes.items()
    ]
    given, out = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT16, shape)
        for name, shape in (("x", [1, 64, 16, 16]), ("y", [1, 64, 16, 64]))
    )
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w0"], ["c0"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Conv", ["c0", "w1"], ["c1"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("MatMul", ["c1", "w2"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "halves", [given], [out], tensors)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


_SEARCH_AND_BUILD = """
import json, sys
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
stay_off_gpus()
from fractune_workers.children.building.child import BuilderChild
from fractune_workers.children.searching.child import SearcherChild
search, builder = SearcherChild(2), BuilderChild()

def built(operator, count):
    name, workload, target, key = (operator[each] for each in ("workload_hash", "workload", "target", "key"))
    search.open(name, workload, target, key, 0, [], [])
    builder.learn_workload(name, workload, target)
    traces = ["", *(item["trace"] for item in search.propose(name, key, count))]
    return [[trace, builder.build(name, target, trace, 60)] for trace in traces]

print(json.dumps([built(each, int(sys.argv[1])) for each in json.load(sys.stdin)], default=bytes.hex))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return half_precision_model(tmp_path_factory.mktemp("halves") / "halves.onnx")


@pytest.fixture(scope="module")
def operators(model: Path) -> list[dict[str, Any]]:
    """The convolution, the product, and two larger products, of float16 and of float32."""
    found = ingested(model)
    chosen = [next(each for each in found if kind in each["name"]) for kind in ("conv2d", "matmul")]
    larger = {"12": product(512, "float16", sums="float32"), "34": product(512, "float32", sums="float32")}
    return [*chosen, *({**chosen[0], "workload_hash": name, "workload": each} for name, each in larger.items())]


@pytest.fixture(scope="module")
def candidates(operators: list[dict[str, Any]]) -> list[list[tuple[str, bytes]]]:
    """Of each operator: traces with their archives. In one process: TVM takes long to load what it knows of tensor
    cores.
    """
    command = [sys.executable, "-c", _SEARCH_AND_BUILD, str(CANDIDATES)]
    done = subprocess.run(command, input=json.dumps(operators), capture_output=True, text=True, check=True)
    found = []
    for built in json.loads(done.stdout.splitlines()[-1]):
        answers = [(trace, {**answer, "object": bytes.fromhex(answer["object"])}) for trace, answer in built]
        for _, answer in answers:
            assert_cubin(answer)
        found.append([(trace, answer["object"]) for trace, answer in answers])
    return found


def instructions_of(archive: bytes) -> Counter[str]:
    (cubin,) = cubins_in(unpack(archive)["device.o"])
    return instructions(cubin)


def test_half_precision_is_searched_with_tensor_cores_and_sums_in_float32(
    operators: list[dict[str, Any]], candidates: list[list[tuple[str, bytes]]]
) -> None:
    assert operators[0]["weight"] == 2, "both convolutions in one layout"
    for built in candidates[:2]:
        assert ['"Tensorize"' in trace for trace, _ in built] == [False] + [True] * CANDIDATES
        for _, archive in built[1:]:
            assert {name for name in instructions_of(archive) if name.startswith("HMMA")} == {"HMMA.16816.F32"}


def test_candidates_may_request_more_memory_than_a_kernel_has_statically(
    operators: list[dict[str, Any]], candidates: list[list[tuple[str, bytes]]]
) -> None:
    """All are built for the whole GPU; a target of less memory shows how much they request."""
    limited = json.dumps({**json.loads(operators[2]["target"]), "max_shared_memory_per_block": 48 * 1024 - 1})
    builder = Child("fractune_workers.children.building.child")
    causes = [build(builder, operators[2], trace, limited)["cause"] for trace, _ in candidates[2][1:]]
    builder.stop()
    requested = [int(found[1]) for cause in causes if (found := re.search(r"needs (\d+) bytes of shared", cause))]
    assert 48 * 1024 < max(requested) <= 227 * 1024


@pytest.mark.parametrize("operator", [2, 3], ids=["float16", "float32"])
def test_copies_are_asynchronous_by_the_decision_of_a_candidate(
    candidates: list[list[tuple[str, bytes]]], operator: int
) -> None:
    """No instruction copies two bytes asynchronously, so such a copy has none even where it was decided."""
    found = {True: 0, False: 0}
    for trace, archive in candidates[operator][1:]:
        found[ASYNC_COPIES in trace] += sum(
            count for name, count in instructions_of(archive).items() if name.startswith("LDGSTS")
        )
    assert len({ASYNC_COPIES in trace for trace, _ in candidates[operator][1:]}) == 2
    assert found[True] > 0
    assert found[False] == 0


def test_a_bundle_has_the_sums_of_its_candidates(
    model: Path, operators: list[dict[str, Any]], candidates: list[list[tuple[str, bytes]]], tmp_path: Path
) -> None:
    out = tmp_path / "halves.fractune"
    traces = {
        operator["workload_hash"]: built[1][0] for operator, built in zip(operators[:2], candidates[:2], strict=True)
    }
    compile_bundle(model, traces, out)
    cubins = [cubin for code in Bundle(out).objects("full") for cubin in cubins_in(code)]
    sums = Counter(name for cubin in cubins for name in instructions(cubin) if name.startswith("HMMA"))
    assert set(sums) == {"HMMA.16816.F32"}


def compile_bundle(model: Path, traces: dict[str, str], out: Path) -> None:
    child = reader_child("fractune_workers.children.compiling.child", model=model, own_dir=out.parent)
    manifest = {
        "model": {"name": model.name, "sha256": "0" * 64},
        "device": Device("cuda", "sm_90", units=132, memory_gib=141, l2_kib=51200).to_json(),
        "shares": {"full": GrantedShare("full", 132, 132, "sm", 141 << 30, reserved=True).to_json()},
    }
    variant = {"name": "full", "traces": traces}
    known = {"path": str(model), "inputs": {}, "target": "cuda:sm_90"}
    child.call("compile_bundle", 300, **known, variants=[variant], manifest=manifest, records=[], out=str(out))
    child.stop()
