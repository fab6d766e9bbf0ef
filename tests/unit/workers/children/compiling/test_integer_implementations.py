"""From a quantized model to a bundle of integer kernels: built, checked against float32, and run for real."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import fractune
from fractune_core.operators import DIRECT, implementation_of
from fractune_core.records import UNTUNED
from fractune_workers.children.building.child import BuilderChild
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.measuring.child import MeasurerChild, confined
from fractune_workers.children.searching.child import SearcherChild
from fractune_workers.children.tvm_api.dot_intrinsics import dot_products
from fractune_workers.children.tvm_api.target import default_target, host_cpu
from tests.support.onnx_models import onnx_model
from tests.support.real_bundle import compile_model

# TVM's timer calls what TVM has deprecated.
pytestmark = [
    pytest.mark.filterwarnings("ignore:build is deprecated:DeprecationWarning"),
    pytest.mark.skipif(
        not dot_products(default_target(1)), reason="this processor has no instruction for products of whole numbers"
    ),
]

ROWS, DEPTH, COLUMNS = 24, 30, 64
STEP, ZERO = 0.02, 120
ROUNDING, TOLERATED = 1e-6, 1e-3
"""of an epilogue in float32, and in a validation"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A quantized product with a bias, a rectifier and a quantized output, in QDQ form."""
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    rng = np.random.default_rng(0)
    weights = {
        "step": np.array(STEP, "float32"),
        "zero": np.array(ZERO, "uint8"),
        "w": rng.integers(-128, 128, (DEPTH, COLUMNS)).astype("int8"),
        "steps": rng.uniform(1e-3, 1e-2, COLUMNS).astype("float32"),
        "zeros": np.zeros(COLUMNS, "int8"),
        "b": rng.uniform(-0.5, 0.5, COLUMNS).astype("float32"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "steps", "zeros"], ["dw"], axis=1),
        helper.make_node("MatMul", ["d", "dw"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "step", "zero"], ["qr"]),
        helper.make_node("DequantizeLinear", ["qr", "step", "zero"], ["y"]),
    ]
    onnx.save(onnx_model(nodes, {"x": np.zeros((1, ROWS, DEPTH), "float32")}, weights, 17), path)
    return path


@pytest.fixture(scope="module")
def ingested(model: Path) -> dict[str, Any]:
    return ingest(str(model), {}, "", host_cpu())


@pytest.fixture(scope="module")
def product(ingested: dict[str, Any]) -> dict[str, Any]:
    return next(each for each in ingested["operators"] if "matmul" in each["name"])


@pytest.fixture(scope="module")
def texts(ingested: dict[str, Any], product: dict[str, Any]) -> dict[str, str]:
    """The first candidate of each implementation, in the order of their turns."""
    child = SearcherChild(threads=1)
    name = product["workload_hash"]
    child.open(name, product["workload"], ingested["target"], "key", 1, [], [])
    proposed = child.propose(name, "key", 4)
    found: dict[str, str] = {}
    for item in proposed:
        found.setdefault(implementation_of(item["trace"]), item["trace"])
    return found


@pytest.fixture(scope="module")
def integer() -> str:
    """The implementation in integers that this processor is fastest with."""
    return dot_products(default_target(1))[0]


@pytest.fixture
def measurer(ingested: dict[str, Any], product: dict[str, Any], texts: dict[str, str], integer: str) -> MeasurerChild:
    """With the untuned operator and the integer kernel."""
    builder = BuilderChild()
    child = confined(["cpu:1", "0"])
    child.begin(builder.learn_workload(product["workload_hash"], product["workload"], ingested["target"]), 7)
    for name, text in ((DIRECT, UNTUNED), (integer, texts[integer])):
        built = builder.build(product["workload_hash"], ingested["target"], text, 30)
        assert built["status"] == "ok", built["cause"]
        child.load(name, bytes(built["object"]), name)
    return child


def test_the_search_begins_with_integers(texts: dict[str, str], integer: str) -> None:
    assert list(texts) == [integer, DIRECT]


def test_an_integer_kernel_computes_what_float32_does(measurer: MeasurerChild, integer: str) -> None:
    assert measurer.check(DIRECT)["max_error"] == 0.0
    assert measurer.check(integer)["max_error"] <= ROUNDING


def test_a_wrong_integer_kernel_is_seen(measurer: MeasurerChild, integer: str) -> None:
    """One weight of all has one other bit."""
    own = next(arg for arg in measurer._args_of(integer) if "int" in str(arg.dtype))
    numbers = own.numpy()
    numbers.flat[0] ^= 64
    own.copyfrom(numbers)
    measurer.check(DIRECT)
    assert measurer.check(integer)["max_error"] > TOLERATED


def test_a_bundle_of_integer_kernels_runs(
    model: Path, product: dict[str, Any], texts: dict[str, str], integer: str, tmp_path: Path
) -> None:
    tuned = {"cpu:1": {product["workload_hash"]: texts[integer]}}
    loaded = fractune.load(compile_model(model, tmp_path / "net.fractune", tuned=tuned), share="cpu:1")
    x = np.random.default_rng(1).standard_normal((1, ROWS, DEPTH)).astype("float32")
    (expected,), (found,) = (loaded.run({"x": x}, variant) for variant in ("untuned", "cpu:1"))
    np.testing.assert_allclose(found, expected, atol=ROUNDING * expected.max())
    assert (found > 0).any()
