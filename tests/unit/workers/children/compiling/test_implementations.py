"""From a model to a bundle in which one variant has another implementation: built, checked, timed and run for real."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from tvm import relax

import fractune
from fractune_core.errors import FractuneError
from fractune_core.files.bundles import Bundle
from fractune_core.operators import DIRECT, WINOGRAD2, WINOGRAD4, implementation_of, text_of
from fractune_core.records import FIRST_POLICY, UNTUNED, VALIDATION_POLICY
from fractune_workers.children.building.child import BuilderChild
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.compiling.implementations import hashes_of, implementations_of, with_implementations
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.measuring.child import confined
from fractune_workers.children.searching.child import SearcherChild
from fractune_workers.children.tvm_api.target import host_cpu
from tests.support.real_bundle import compile_model
from tests.unit.workers.children.layouts.networks import Network, inputs_of, network, outputs

# TVM's timer calls what TVM has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning")

BOUND = 1e-5
CHANNELS, SIZE = 32, 10


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    rng = np.random.default_rng(0)
    weights = rng.uniform(-0.5, 0.5, (CHANNELS, CHANNELS, 3, 3)).astype("float32")
    bias = rng.uniform(-0.5, 0.5, CHANNELS).astype("float32")
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["y"]),
    ]
    image = [1, CHANNELS, SIZE, SIZE]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, image)],
        [onnx.numpy_helper.from_array(weights, "w"), onnx.numpy_helper.from_array(bias, "b")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def ingested(model: Path) -> dict[str, Any]:
    return ingest(str(model), {}, "", host_cpu())


@pytest.fixture(scope="module")
def convolution(ingested: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in ingested["operators"] if "conv2d" in each["name"])


@pytest.fixture(scope="module")
def texts(ingested: dict[str, Any], convolution: dict[str, Any]) -> dict[str, str]:
    """A candidate's text by implementation."""
    child = SearcherChild(threads=1)
    name, target = convolution["workload_hash"], ingested["target"]
    child.open(name, convolution["workload"], target, "key", 1, [], [])
    proposed = child.propose(name, "key", 8)
    return {implementation_of(item["trace"]): item["trace"] for item in reversed(proposed)}


@pytest.fixture(scope="module")
def builder(ingested: dict[str, Any], convolution: dict[str, Any]) -> BuilderChild:
    child = BuilderChild()
    child.learn_workload(convolution["workload_hash"], convolution["workload"], ingested["target"])
    return child


def code(builder: BuilderChild, ingested: dict[str, Any], convolution: dict[str, Any], text: str) -> bytes:
    built = builder.build(convolution["workload_hash"], ingested["target"], text, 30)
    assert built["status"] == "ok", built["cause"]
    return bytes(built["object"])


def test_an_artifact_is_checked_against_the_direct_one_and_timed_with_its_own_weights(
    builder: BuilderChild, ingested: dict[str, Any], convolution: dict[str, Any], texts: dict[str, str]
) -> None:
    child = confined(["cpu:1", "0"])
    child.begin(builder.learn_workload(convolution["workload_hash"], convolution["workload"], ingested["target"]), 7)
    for name, text in ((DIRECT, UNTUNED), (WINOGRAD2, texts[WINOGRAD2])):
        child.load(name, code(builder, ingested, convolution, text), name)
    assert child.check(DIRECT)["max_error"] == 0.0
    assert 0 < child.check(WINOGRAD2)["max_error"] < BOUND
    timed = child.time_interleaved([DIRECT, WINOGRAD2], VALIDATION_POLICY.to_json())
    assert all(min(secs) > 0 for secs in timed["run_secs"].values())
    winograd = code(builder, ingested, convolution, texts[WINOGRAD2])
    raced = child.race(winograd, [FIRST_POLICY.to_json()], float("inf"), WINOGRAD2)
    assert len(raced["run_secs"]) == FIRST_POLICY.repeats


def test_wrong_weights_would_be_seen(
    builder: BuilderChild, ingested: dict[str, Any], convolution: dict[str, Any], texts: dict[str, str]
) -> None:
    """The check is one: weights that belong to no convolution of the direct one's give another output."""
    child = confined(["cpu:1", "0"])
    child.begin(builder.learn_workload(convolution["workload_hash"], convolution["workload"], ingested["target"]), 7)
    child.load(DIRECT, code(builder, ingested, convolution, UNTUNED))
    child.load(WINOGRAD2, code(builder, ingested, convolution, texts[WINOGRAD2]), WINOGRAD2)
    weights = max(child._own_args[WINOGRAD2], key=lambda arg: len(arg.shape))
    weights.copyfrom(2 * weights.numpy())
    child.check(DIRECT)
    assert child.check(WINOGRAD2)["max_error"] > 0.1


def test_a_builder_says_which_implementation_an_operator_lacks(
    builder: BuilderChild, ingested: dict[str, Any], convolution: dict[str, Any], texts: dict[str, str]
) -> None:
    with pytest.raises(FractuneError, match="has no implementation 'strassen'"):
        builder.build(convolution["workload_hash"], ingested["target"], text_of("strassen", texts[DIRECT]))


def test_each_variant_takes_the_weights_of_its_implementations(
    model: Path, convolution: dict[str, Any], texts: dict[str, str], tmp_path: Path
) -> None:
    name, out = convolution["workload_hash"], tmp_path / "net.fractune"
    traces = {"cpu:1": {name: texts[WINOGRAD2]}, "cpu:2": {name: texts[DIRECT]}}
    bundle = Bundle(compile_model(model, out, tuned=traces))
    places = {variant: bundle.weights_of(variant) for variant in ("cpu:1", "cpu:2", "untuned")}
    assert places["cpu:2"] == places["untuned"] != places["cpu:1"]
    assert len(set(places["cpu:1"]) & set(places["cpu:2"])) == 1, "the bias is in both"
    loaded = fractune.load(out, share="cpu:1")
    inputs = {"x": np.random.default_rng(1).standard_normal((1, CHANNELS, SIZE, SIZE)).astype("float32")}
    (expected,), (tuned,), (found,) = (loaded.run(inputs, variant) for variant in ("untuned", "cpu:2", "cpu:1"))
    np.testing.assert_allclose(tuned, expected, atol=1e-5)
    assert 0 < np.abs(found - expected).max() < BOUND * np.abs(expected).max()


def test_a_model_without_the_implementation_is_told_so(
    model: Path, convolution: dict[str, Any], texts: dict[str, str], tmp_path: Path
) -> None:
    traces = {convolution["workload_hash"]: text_of("strassen", texts[DIRECT])}
    with pytest.raises(FractuneError, match=f"no operator {convolution['workload_hash']} strassen; tune it again"):
        compile_model(model, tmp_path / "net.fractune", tuned={"cpu:1": traces})


TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"})
"""4 lanes; any x86-64 runs it"""
MIXED_BOUND = 2e-5
"""of an output's error, relative to the largest output"""
op = relax.op


def two_kinds(net: Network, x: Any) -> Any:
    """Two 3 x 3 convolutions that are one operator, and one of 1 x 1 that has no Winograd; each with an epilogue."""
    for kernel, padding in ((3, 1), (3, 1), (1, 0)):
        made = net.conv(x, 8, kernel, padding=padding)
        x = net.emit(op.nn.relu(net.emit(op.add(made, net.weight(1, 8, 1, 1)))))
    return x


def mixed_model() -> tvm.IRModule:
    return network([(1, 8, 9, 9)], two_kinds)


def operator(mod: tvm.IRModule, weight: int) -> str:
    """Workload hash of the convolution that occurs so often."""
    return next(o.workload_hash for o in extract(mod, TARGET) if "conv2d" in o.name and o.weight == weight)


def test_only_what_is_another_program_is_found() -> None:
    direct, other = prepare(mixed_model(), TARGET), prepare(mixed_model(), TARGET, WINOGRAD2)
    found = implementations_of(direct, other, hashes_of(direct))
    assert list(found) == [operator(direct, 2)]
    (workload,) = found.values()
    assert direct_hash(workload.mod) in {o.workload_hash for o in extract(other, TARGET)}
    assert not implementations_of(direct, direct, hashes_of(direct))


def test_models_that_make_other_calls_have_nothing_in_common() -> None:
    direct, other = prepare(mixed_model(), TARGET), prepare(network([(1, 8)], lambda _, x: op.exp(x)), TARGET)
    assert implementations_of(direct, other, hashes_of(direct)) == {}


def test_a_model_with_other_implementations_computes_the_same() -> None:
    direct = prepare(mixed_model(), TARGET)
    others = {name: prepare(mixed_model(), TARGET, name) for name in (WINOGRAD2, WINOGRAD4)}
    mixed = with_implementations(direct, others, {operator(direct, 2): WINOGRAD4}, hashes_of(direct))
    assert {o.workload_hash for o in extract(mixed, TARGET)} == {
        o.workload_hash for o in extract(others[WINOGRAD4], TARGET)
    }
    expected, found = (outputs(mod, TARGET, inputs_of(direct)) for mod in (direct, mixed))
    assert 0 < np.abs(found - expected).max() < MIXED_BOUND * np.abs(expected).max()


def test_what_is_not_chosen_stays_as_it_was() -> None:
    direct = prepare(mixed_model(), TARGET)
    mixed = with_implementations(direct, {WINOGRAD2: prepare(mixed_model(), TARGET, WINOGRAD2)}, {}, hashes_of(direct))
    assert extract(mixed, TARGET) == extract(direct, TARGET)
    expected, found = (outputs(mod, TARGET, inputs_of(direct)) for mod in (direct, mixed))
    np.testing.assert_array_equal(found, expected)
