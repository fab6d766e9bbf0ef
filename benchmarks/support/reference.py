"""The expected outputs of a model: ONNX's reference evaluator in plain NumPy, against every variant of a bundle."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import fractune


class GlobalMaxPool(OpRun):
    """As the standard has it. The evaluator's own (onnx 1.23) takes two axes whatever the rank, which is right for
    images only.
    """

    def _run(self, x: Any) -> tuple[Any]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class BatchNormalization(OpRun):
    """As the standard has it for a node with one output, which only applies the statistics it is given. The evaluator's
    own (onnx 1.23) mixes those of the input in, before opset 14.
    """

    def _run(
        self, x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float = 1e-5, **_training: Any
    ) -> tuple[Any]:
        by_channel = (-1, *(1,) * (x.ndim - 2))
        factor = (scale / np.sqrt(var + epsilon)).reshape(by_channel)
        return ((x - mean.reshape(by_channel)) * factor + bias.reshape(by_channel),)


def expected_outputs(model: Path, inputs: Mapping[str, Any]) -> list[Any]:
    """Of ONNX's reference evaluator."""
    return list(ReferenceEvaluator(str(model), new_ops=[GlobalMaxPool, BatchNormalization]).run(None, dict(inputs)))


def differences(model: Path, bundle: Path) -> dict[str, float]:
    """By variant: the largest difference of an output to the reference's, over the largest value of that output.

    Of inputs between 0.1 and 1, integers 0 or 1. Raises SystemExit where an output is constant: it would prove nothing.
    """
    loaded = fractune.load(bundle)
    inputs = loaded.random_inputs()
    expected = expected_outputs(model, inputs)
    for spec, wanted in zip(loaded.outputs, expected, strict=True):
        if np.ptp(wanted) == 0:
            raise SystemExit(f"benchmarks: the output {spec.name} of {model.name} is constant: nothing to compare")
    return {
        entry["name"]: max(map(_difference, loaded.run(inputs, entry["name"]), expected))
        for entry in loaded.bundle.variants
    }


def _difference(output: Any, wanted: Any) -> float:
    return float(np.abs(output - wanted).max() / np.abs(wanted).max())
