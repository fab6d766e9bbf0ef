"""Variants of a bundle with CUDA graphs: TVM's real runtime launches them, over stand-ins that count, without a GPU."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from fractune_core.cuda import MPS_PERCENTAGE
from fractune_core.files.bundles import Bundle
from fractune_core.names import UNTUNED_VARIANT, WITH_GRAPHS
from fractune_core.shares import Device, GrantedShare
from fractune_workers.cuda.compilers import find_compiler
from fractune_workers.reader import reader_child
from tests.support.hardware.launching_driver import CAPTURED, GRAPH, LAUNCH, SMS
from tests.support.hardware.over_stand_ins import LOAD, graphs_are_fastest, kind, run_over_stand_ins

pytestmark = [
    pytest.mark.skipif(find_compiler() is None, reason="no CUDA compiler here; `make setup` installs NVRTC"),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to make stand-ins of CUDA's libraries with"),
]

PRODUCTS = 4
SHARE = "full"
UNITS = {SHARE: SMS, "mps:25": SMS // 4}
PLAIN = [LAUNCH] * PRODUCTS
WITH_A_GRAPH = [LAUNCH, GRAPH, LAUNCH]
"""The first kernel reads the input, and the last one writes the output: both may lie elsewhere the next time."""
IN_THE_GRAPH = PRODUCTS - 2


def chain(folder: Path, products: int, dtype: str = "float32", extent: int = 16) -> Path:
    """A model of products, one after the other."""
    rng = np.random.default_rng(0)
    names = ["x", *(f"y{at}" for at in range(products))]
    weights = [
        onnx.numpy_helper.from_array(rng.uniform(-1, 1, (extent, extent)).astype(dtype), f"w{at}")
        for at in range(products)
    ]
    nodes = [onnx.helper.make_node("MatMul", [names[at], f"w{at}"], [names[at + 1]]) for at in range(products)]
    of_onnx = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given, out = (onnx.helper.make_tensor_value_info(name, of_onnx, [extent, extent]) for name in (names[0], names[-1]))
    graph = onnx.helper.make_graph(nodes, "chain", [given], [out], weights)
    model = folder / "chain.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), model)
    return model


def compiled(model: Path, traces: dict[str, str] | None = None, shares: Sequence[str] = (SHARE,)) -> Path:
    """A bundle with the variants that a job for these shares has, untuned without traces by workload."""
    made = model.parent / "made" / "chain.fractune"
    made.parent.mkdir()
    granted = {name: GrantedShare(name, UNITS[name], SMS, "sm", 141 << 30, reserved=False) for name in shares}
    manifest = {
        "model": {"name": model.name, "sha256": "0" * 64},
        "device": Device("cuda", "sm_90", units=SMS, memory_gib=141, l2_kib=51200).to_json(),
        "shares": {name: each.to_json() for name, each in granted.items()},
    }
    tuned = traces or {}
    graphs = [name + WITH_GRAPHS for name in shares]
    named = {**dict.fromkeys(shares, tuned), UNTUNED_VARIANT: {}, **dict.fromkeys(graphs, tuned)}
    variants = [{"name": name, "traces": each} for name, each in named.items()]
    child = reader_child("fractune_workers.children.compiling.child", model=model, own_dir=made.parent)
    known = {"path": str(model), "inputs": {}, "target": "cuda:sm_90"}
    child.call("compile_bundle", 300, **known, variants=variants, manifest=manifest, records=[], out=str(made))
    child.stop()
    return made


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = chain(tmp_path_factory.mktemp("chain"), PRODUCTS)
    return graphs_are_fastest(compiled(model, shares=list(UNITS)), UNITS)


_RUN = """
import sys
sys.modules["torch"] = None
from pathlib import Path
from fractune_core.cuda import load_cudart
assert load_cudart()
import tvm
from fractune_core.shares import Share
from fractune_workers.children.measuring.model_timing import _loaded
from fractune_workers.children.tvm_api.processor import Processor
loaded = _loaded(Path(sys.argv[1]), Processor(tvm.cuda(0)), Share.parse(sys.argv[2]), lambda call: call())
for name, call in loaded.calls.items():
    print("variant", name, file=sys.stderr, flush=True)
    call()
"""


def launches(bundle: Path, folder: Path, share: str, **environ: str) -> dict[str, list[str]]:
    """The lines of the stand-in for one inference after the first, by variant; and of what was captured before."""
    done = run_over_stand_ins(_RUN, folder, str(bundle), share, **environ)
    assert done.returncode == 0, done.stderr
    first, *variants = done.stderr.split("variant ")
    seen = {CAPTURED: [line for line in first.splitlines() if kind(line) == CAPTURED]}
    for name, *lines in map(str.splitlines, variants):
        seen[name] = lines
    return seen


@pytest.mark.parametrize(("share", "graphs"), [("mps:25", True), ("green:32", False)])
def test_a_graph_is_launched_in_the_place_of_the_kernels_in_the_middle(
    bundle: Path, tmp_path: Path, share: str, *, graphs: bool
) -> None:
    """Of one inference after the first, as a measurer loads a bundle. Kernels are captured on a stream that is not the
    default one, so a green context runs no graphs.
    """
    with_graphs = [name + WITH_GRAPHS for name in UNITS] if graphs else []
    expected = {**dict.fromkeys((*UNITS, UNTUNED_VARIANT), PLAIN), **dict.fromkeys(with_graphs, WITH_A_GRAPH)}
    found = {name: list(map(kind, lines)) for name, lines in launches(bundle, tmp_path, share).items()}
    assert found == {**expected, CAPTURED: [CAPTURED] * IN_THE_GRAPH * len(with_graphs)}


@pytest.mark.parametrize(("share", "is_named"), [(SHARE, True), ("mps:25", False)])
def test_inference_captures_a_graph_once_and_launches_it_later(
    bundle: Path, tmp_path: Path, share: str, *, is_named: bool
) -> None:
    """TVM runs the kernels of a graph once before it captures them. A model of a new thread has the same graph."""
    percentage = {MPS_PERCENTAGE: "25"} if share == "mps:25" else {}
    done = run_over_stand_ins(LOAD, tmp_path, str(bundle), share if is_named else "", **percentage)
    assert (done.returncode, done.stdout.split()) == (0, [share + WITH_GRAPHS, "False"]), done.stderr
    loading, *calls = ([kind(line) for line in lines.splitlines()] for lines in done.stderr.split("call\n"))
    captures = [LAUNCH] * (PRODUCTS - 1) + [CAPTURED] * IN_THE_GRAPH + [LAUNCH]
    assert (loading, calls) == ([], [captures, WITH_A_GRAPH, WITH_A_GRAPH])


def test_inference_refuses_a_green_context(bundle: Path, tmp_path: Path) -> None:
    """Before a kernel is launched."""
    done = run_over_stand_ins(LOAD, tmp_path, str(bundle), "green:32")
    *_, error = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert error.startswith("fractune_core.errors.BadRequest: share 'green:32'")


@pytest.mark.long
def test_a_model_with_nothing_to_capture_has_no_such_variant(tmp_path: Path) -> None:
    bundle = Bundle(compiled(chain(tmp_path, 1)))
    assert [each["name"] for each in bundle.variants] == [SHARE, UNTUNED_VARIANT]


RANGE = "mps:25..50"


def for_a_range(bundle: Path, out: Path) -> Path:
    """The bundle as if it had been timed at `mps:50` too, where graphs were faster as well."""
    opened = Bundle(bundle)
    half = GrantedShare("mps:50", SMS // 2, SMS, "sm", 141 << 30, reserved=False)
    times = {share: {"mps:25": 1.0, SHARE: 2.0, UNTUNED_VARIANT: 9.0} for share in ("mps:25", "mps:50")}
    served = opened.manifest["served"]
    with out.open("wb") as file:
        opened.copy_to(
            file,
            shares={**opened.manifest["shares"], "mps:50": half.to_json()},
            measured=times,
            choosing=times,
            served={**served, "mps:50": served["mps:25"]},
        )
    opened.close()
    return out


def test_one_variant_serves_a_range_of_a_gpu(bundle: Path, tmp_path: Path) -> None:
    """Whichever part of the range CUDA shows."""
    wide = for_a_range(bundle, tmp_path / "wide.fractune")
    done = run_over_stand_ins(LOAD, tmp_path, str(wide), RANGE, **{MPS_PERCENTAGE: "50"})
    assert (done.returncode, done.stdout) == (0, f"mps:25{WITH_GRAPHS} False\n"), done.stderr
    *_, last = done.stderr.split("call\n")
    assert list(map(kind, last.splitlines())) == WITH_A_GRAPH


def test_a_process_outside_of_the_range_is_refused(bundle: Path, tmp_path: Path) -> None:
    wide = for_a_range(bundle, tmp_path / "wide.fractune")
    done = run_over_stand_ins(LOAD, tmp_path, str(wide), RANGE, **{MPS_PERCENTAGE: "60"})
    assert f"share '{RANGE}' is not in force: this process has 79 of {SMS} SMs" in done.stderr
