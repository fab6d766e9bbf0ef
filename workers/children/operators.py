"""One operator to measure with: a convolution made here, or the heaviest operator of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from tuner_core.errors import BadModel
from tuner_core.jobs import is_among
from workers.children.ingest import load_model
from workers.children.intrinsics import keep_out_gpu_intrinsics
from workers.children.passes import Operator, extract, prepare
from workers.children.target import default_target

_CHANNELS = 32
_SIZE = 14
"""A convolution of a small image network: most schedules take some hundred microseconds on one core"""


def builtin() -> dict[str, Any]:
    """The convolution as an operator for this host."""
    target = default_target(1)
    (operator,) = extract(prepare(_convolution(), target), target)
    return _told(operator, target)


def heaviest(path: str, inputs: dict[str, list[int]], only: str) -> dict[str, Any]:
    """The operator of the model file at `path` that computes most in one run of the model, for this host.

    `only`: among those whose name contains one of these texts, separated by commas. Raises BadModel.
    """
    target = default_target(1)
    operators = extract(prepare(load_model(Path(path), inputs), target), target)
    chosen = [operator for operator in operators if is_among(only, operator.name)]
    if not chosen:
        names = ", ".join(sorted(operator.name for operator in operators))
        raise BadModel(f"no operator has '{only}' in its name; there are {names}")
    return _told(max(chosen, key=lambda operator: operator.flops * operator.weight), target)


def _convolution() -> Any:
    """3 x 3 with padding, as a model would bring it."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType([1, _CHANNELS, _SIZE, _SIZE], "float32"))
    weight = relax.Var("weight", relax.TensorType([_CHANNELS, _CHANNELS, 3, 3], "float32"))
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(data, weight, padding=(1, 1)))
        builder.emit_func_output(out)
    return builder.get()


def _told(operator: Operator, target: tvm.target.Target) -> dict[str, Any]:
    return {
        "name": operator.name,
        "workload_hash": operator.workload_hash,
        "workload": operator.workload_json,
        "target": str(target),
    }


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    keep_out_gpu_intrinsics()
    return {"builtin": builtin, "heaviest": heaviest}
