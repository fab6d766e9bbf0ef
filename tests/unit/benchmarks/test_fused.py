"""What `benchmarks.fused` makes of its figures, and its variants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from benchmarks.fused import Arrangement, ratios, variant_of
from benchmarks.support.models import Model
from tests.support.processes.cli_process import write_model


def test_ratios_are_fused_over_the_others() -> None:
    found = {
        "processes": {"requests_per_s": 10.0, "p99_s": 0.4, "resident_bytes": 400},
        "in_turn": {"requests_per_s": 5.0, "p99_s": 0.5, "resident_bytes": 100},
        "fused": {"requests_per_s": 8.0, "p99_s": 0.2, "resident_bytes": 100},
    }
    alone = {name: each for name, each in found.items() if name != "fused"}
    (of_two,) = ratios({"net": {1: alone, 2: found}})["net"].values()
    assert of_two == {"of_processes": 0.8, "of_in_turn": 1.6, "p99_of_processes": 0.5, "memory": 0.25}


def test_rounds_come_together() -> None:
    made = Arrangement("fused", [], waits_s=[0.1] * 99 + [1.0], per_s=[1.0, 3.0, 2.0], resident_bytes=[5, 7, 6])
    told = made.to_json()
    assert (told["requests_per_s"], told["resident_bytes"], told["requests"]) == (2.0, 6, 100)
    assert 0.1 < told["p99_s"] < 1.0


def test_weights_that_a_file_only_fills_with_a_number_are_drawn(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("ConstantOfShape", ["s"], ["w"]),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    tensors = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in "xy"]
    shape = onnx.numpy_helper.from_array(np.array([4, 4]), "s")
    path = tmp_path / "filled.onnx"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", tensors[:1], tensors[1:], [shape])), path)
    nets = [onnx.load(variant_of(Model("filled", path), tmp_path / f"{seed}.onnx", seed)) for seed in (0, 1)]
    assert [node.op_type for node in nets[0].graph.node] == ["MatMul"]
    first, second = (onnx.numpy_helper.to_array(net.graph.initializer[-1]) for net in nets)
    assert first.shape == (4, 4)
    assert np.abs(first - second).min() > 0


def test_a_variant_has_weights_of_its_own_and_the_same_graph(tmp_path: Path) -> None:
    model = Model("small", write_model(tmp_path / "small.onnx"))
    nets = [onnx.load(variant_of(model, tmp_path / f"{seed}.onnx", seed)) for seed in (0, 1, 1)]
    first, second, again = ([onnx.numpy_helper.to_array(t) for t in net.graph.initializer] for net in nets)
    assert nets[0].graph.node == nets[1].graph.node
    for one, other, same in zip(first, second, again, strict=True):
        assert 0 < np.abs(one - other).max() < 0.5
        np.testing.assert_array_equal(other, same)
