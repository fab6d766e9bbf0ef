"""Real models, as their exporters left them: they import, yield operators, and compute what ONNX Runtime computes."""

import importlib.util
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import tvm
from onnx import numpy_helper
from tvm import relax

from fractune_core.errors import BadModel
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import extract, prepare

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_OPERATORS = {
    "densenet121": 135,
    "inception_v1": 67,
    "inception_v2": 50,
    "resnet50": 28,
    "shufflenet": 30,
    "squeezenet": 24,
}
TARGET = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3"})
"""layouts, and so the operators, depend on the vector width: the same on every machine here"""

Arrays = dict[str, np.ndarray]


def light(name: str) -> Path:
    return LIGHT / f"light_{name}.onnx"


def magika() -> Path:
    """Google's file type detector: trained weights, a dynamic batch and shape arithmetic, from a wheel."""
    spec = importlib.util.find_spec("magika")
    assert spec is not None, "the wheel magika is a development dependency; run: make setup"
    assert spec.origin is not None
    return Path(spec.origin).parent / "models/standard_v3_3/model.onnx"


def with_random_weights(path: Path, out: Path) -> Path:
    """The light models hold constant weights, which give the same output whatever goes wrong on the way."""
    model = onnx.load(path)
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            weight = random_weight(rng, tuple(map(int, shapes[node.input[0]])))
            model.graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
        else:
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    onnx.save(model, out)
    return out


def random_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Of a size that keeps activations in range; positive where it may be a variance."""
    values = rng.standard_normal(shape, np.float32)
    return (
        values * np.float32(2 / np.prod(shape[1:])) ** np.float32(0.5) if len(shape) > 1 else np.abs(values) * 0.1 + 0.5
    )


def our_outputs(path: Path, inputs: Arrays) -> list[np.ndarray]:
    module = load_model(path, {name: list(value.shape) for name, value in inputs.items()})
    weights = LiftedWeights()
    lifted = weights.lifted(prepare(module, TARGET)).module
    machine = relax.VirtualMachine(tvm.relax.build(lifted, TARGET), tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, inputs.values()), *weights.tensors)
    return [part.numpy() for part in ([result] if hasattr(result, "numpy") else result)]


def their_outputs(path: Path, inputs: Arrays) -> list[np.ndarray]:
    """ONNX Runtime's, as the reference: ONNX's own reads Softmax and BatchNormalization of old opsets wrongly."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [np.asarray(part) for part in session.run(None, inputs)]


def assert_same_outputs(path: Path, inputs: Arrays) -> None:
    ours, theirs = our_outputs(path, inputs), their_outputs(path, inputs)
    assert len(ours) == len(theirs)
    for mine, reference in zip(ours, theirs, strict=True):
        assert np.ptp(reference) > 0, "a constant output proves nothing"
        np.testing.assert_allclose(mine, reference, rtol=1e-3, atol=1e-5 * float(np.abs(reference).max()))


@pytest.mark.parametrize(
    "name", [name if name == "shufflenet" else pytest.param(name, marks=pytest.mark.long) for name in LIGHT_OPERATORS]
)
def test_every_light_model_yields_its_operators(name: str) -> None:
    operators = extract(prepare(load_model(light(name)), TARGET), TARGET)
    assert len(operators) == LIGHT_OPERATORS[name]
    assert sum(operator.flops * operator.weight for operator in operators) > 1e8


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("shufflenet", marks=pytest.mark.long)])
def test_a_light_model_with_random_weights_is_right(name: str, tmp_path: Path) -> None:
    path = with_random_weights(light(name), tmp_path / "model.onnx")
    image = np.random.default_rng(1).standard_normal((1, 3, 224, 224), np.float32)
    [taken] = [value.name for value in onnxruntime.InferenceSession(path).get_inputs()]
    assert_same_outputs(path, {taken: image})


def test_an_exported_model_asks_for_its_open_shape() -> None:
    with pytest.raises(BadModel, match=r"the inputs are bytes \[unk__\d+, 2048\]; fix them with --input bytes="):
        load_model(magika())
