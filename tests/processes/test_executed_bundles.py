"""Whole bundles for a GPU give ONNX Runtime's outputs, on the executor: TVM's CUDA runtime, without a GPU."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, WITH_GRAPHS
from fractune_core.records import UNTUNED
from fractune_core.shares import Device, GrantedShare
from fractune_workers.child import Child
from tests.processes.test_cuda_builds import traces
from tests.support.encoders import inputs_of, write_encoder
from tests.support.executing import MISSING, executing_stand_in
from tests.support.executing.child import COMPILING
from tests.support.hardware.launching_driver import GRAPH, SMS
from tests.support.hardware.over_stand_ins import kind, run_over, served_by
from tests.support.onnx_models import run_by_onnxruntime
from tests.support.wrong_weights import with_other_weight

pytestmark = [pytest.mark.long, pytest.mark.skipif(bool(MISSING), reason=MISSING)]

SHARE = "full"
VARIANTS = [SHARE, SHARE + WITH_GRAPHS, ROBUST_VARIANT, ROBUST_VARIANT + WITH_GRAPHS]
MOST_ERROR = 2e-6
"""relative to the largest output"""
RUNS = 3
_RUN = """
import sys
sys.modules["torch"] = None  # TVM's FFI imports it, and it calls more of CUDA
import fractune
import numpy as np
bundle, share, given, out = sys.argv[1:]
model = fractune.load(bundle, share=share, check=True)
print(model.choice.variant)
with np.load(given) as inputs:
    for run in range(int(inputs["runs"])):
        outputs = model.run({name: inputs[name] for name in inputs if name != "runs"})
np.savez(out, **{str(at): each for at, each in enumerate(outputs.values() if hasattr(outputs, "values") else outputs)})
"""


def write_cnn(path: Path) -> Path:
    """Convolutions, one of them depthwise, pools, a product and a softmax."""
    rng = np.random.default_rng(0)
    shapes = {"k0": (16, 3, 3, 3), "b0": (16,), "k1": (16, 1, 3, 3), "k2": (24, 16, 1, 1), "w": (24, 10), "b": (10,)}
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 3).astype("float32"), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Conv", ["x", "k0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p0", "k1"], ["c1"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "k2"], ["c2"]),
        helper.make_node("GlobalAveragePool", ["c2"], ["mean"]),
        helper.make_node("Flatten", ["mean"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["y"], axis=-1),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [1, 3, 12, 12]), ("y", [1, 10]))
    )
    graph = helper.make_graph(nodes, "cnn", [x], [y], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def inputs_of_cnn() -> dict[str, Any]:
    return {"x": np.random.default_rng(1).standard_normal((1, 3, 12, 12)).astype("float32")}


def compiled(model: Path, inputs: dict[str, Any]) -> Path:
    """A bundle; all but its untuned variant have the search's first candidate of each operator."""
    child, out = Child("tests.support.executing.child", [COMPILING]), model.with_suffix(".fractune")
    known = {"path": str(model), "inputs": {name: list(each.shape) for name, each in inputs.items()}}
    ingested = child.call("ingest", 120, **known, target="cuda:sm_90", isa="sm_90")
    search = Child("fractune_workers.children.searching.child", ["2"])
    facts = {"target": ingested["target"], "key": ingested["target_key"]}
    first = {each["workload_hash"]: traces(search, {**each, **facts}, 1)[-1] for each in ingested["operators"]}
    tuned = {name: trace for name, trace in first.items() if trace != UNTUNED}
    search.stop()
    manifest = {
        "model": {"name": model.name, "sha256": "0" * 64},
        "device": Device("cuda", "sm_90", units=SMS, memory_gib=141, l2_kib=51200).to_json(),
        "shares": {SHARE: GrantedShare(SHARE, SMS, SMS, "sm", 141 << 30, reserved=False).to_json()},
    }
    variants = [
        {"name": name, "traces": {} if name == UNTUNED_VARIANT else tuned} for name in (*VARIANTS, UNTUNED_VARIANT)
    ]
    made = {"variants": variants, "manifest": manifest, "records": [], "out": str(out)}
    child.call("compile_bundle", 300, **known, target="cuda:sm_90", **made)
    child.stop()
    return out


@pytest.mark.parametrize(
    ("write", "inputs"),
    [(write_cnn, inputs_of_cnn()), (write_encoder, inputs_of(8, padding=2))],
    ids=["CNN", "encoder"],
)
def test_a_bundle_gives_onnx_runtime_s_outputs(
    tmp_path: Path, write: Callable[[Path], Path], inputs: dict[str, Any]
) -> None:
    """By each of its variants, in the third run: the second one launches a CUDA graph for the first time. The check
    before serving agrees, and refuses a variant with a wrong weight.
    """
    model = write(tmp_path / "model.onnx")
    bundle, expected = compiled(model, inputs), run_by_onnxruntime(model, inputs)
    executing_stand_in(tmp_path)
    np.savez(tmp_path / "inputs.npz", runs=RUNS, **inputs)
    for variant in (*VARIANTS, UNTUNED_VARIANT):
        served = served_by(bundle, {SHARE: variant})
        given, out = tmp_path / "inputs.npz", tmp_path / f"{variant}.npz"
        done = run_over(tmp_path, _RUN, str(served), SHARE, str(given), str(out))
        assert (done.returncode, done.stdout.strip()) == (0, variant), done.stderr
        graphs = [line for line in done.stderr.splitlines() if kind(line) == GRAPH]
        assert len(graphs) >= RUNS - 1 if variant.endswith(WITH_GRAPHS) else not graphs
        assert "replay" not in done.stderr
        with np.load(out) as found:
            outputs = list(found.values())
        for one, other in zip(outputs, expected, strict=True):
            assert np.abs(one - other).max() <= MOST_ERROR * np.abs(other).max()
    wrong = served_by(with_other_weight(bundle, tmp_path / "wrong.fractune", SHARE, 1.1), {SHARE: SHARE})
    refused = run_over(tmp_path, _RUN, str(wrong), SHARE, str(given), str(tmp_path / "wrong.npz"))
    assert refused.returncode == 1
    assert f"'{SHARE}' was to serve, and it and 'untuned' differ in the output" in refused.stderr
