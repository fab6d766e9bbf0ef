"""One operator to measure with: a convolution made here, or the heaviest operator of a model."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from fractune_core.errors import BadModel, some_of
from fractune_core.jobs import is_among
from fractune_workers.children.importing.model_file import load_model, named
from fractune_workers.children.importing.passes import Operator, extract, prepare
from fractune_workers.children.tvm_api.intrinsics import keep_out_gpu_intrinsics
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.target import parse_target

_CHANNELS_AND_SIZE = {"llvm": (32, 14), "cuda": (64, 56)}
"""Convolutions, by the kind of target. The CPU's is from a small image network: most schedules take some hundred
microseconds on one core. The GPU's is from ResNet-50, with 64 times as much to compute. The time of a kernel of a few
microseconds would be its launch."""


def builtin(target: str) -> dict[str, Any]:
    """The convolution as an operator for `target`; empty = this host."""
    parsed = parse_target(target, 1)
    (operator,) = extract(prepare(_convolution(*_CHANNELS_AND_SIZE[parsed.kind.name]), parsed), parsed)
    return _to_json(operator, parsed)


def heaviest(path: str, inputs: dict[str, list[int]], only: str, target: str) -> dict[str, Any]:
    """The operator of the model file at `path` that computes most in one run of the model, for `target`; empty = this
    host.

    `only`: texts separated by commas; the name of the operator contains one of them. Raises BadModel.
    """
    parsed = parse_target(target, 1)
    prepared = prepare(load_model(Path(path), inputs, recurrences=parsed.kind.name == "llvm"), parsed)
    with named(Path(path).name):
        operators = extract(prepared, parsed)
    chosen = [operator for operator in operators if is_among(only, operator.name)]
    if not chosen:
        names = some_of(sorted(operator.name for operator in operators))
        raise BadModel(f"no operator has '{only}' in its name; there are {names}")
    return _to_json(max(chosen, key=lambda operator: operator.flops * operator.weight), parsed)


def _convolution(channels: int, size: int) -> Any:
    """3 x 3 with padding, as a model would bring it."""
    builder = relax.BlockBuilder()
    data = relax.Var("data", relax.TensorType([1, channels, size, size], "float32"))
    weight = relax.Var("weight", relax.TensorType([channels, channels, 3, 3], "float32"))
    with builder.function("main", [data, weight]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.nn.conv2d(data, weight, padding=(1, 1)))
        builder.emit_func_output(out)
    return builder.get()


def _to_json(operator: Operator, target: tvm.target.Target) -> dict[str, Any]:
    return {
        "name": operator.name,
        "workload_hash": operator.workload_hash,
        "workload": operator.workload_json,
        "target": str(target),
    }


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    keep_out_gpu_intrinsics()
    stay_off_gpus()
    return {"builtin": builtin, "heaviest": heaviest}
