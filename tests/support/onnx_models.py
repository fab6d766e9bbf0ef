"""Small ONNX models, made here and run as the importer understands them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tvm
from onnx import compose, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from fractune_runtime.tvm_runtime.runtime import with_denormals
from fractune_workers.children.importing.limits import Limits
from fractune_workers.children.importing.onnx_models.onnx_model import load_onnx
from fractune_workers.children.importing.passes import prepare
from tests.support.unoptimized import machine_of

Array = npt.NDArray[Any]
OPSET = 21
TARGET = tvm.target.Target("llvm")


def onnx_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
    opset: int = OPSET,
    outputs: Sequence[str] = (),
) -> onnx.ModelProto:
    """A model with inputs shaped as these arrays; `outputs`: those of the last node by default."""
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in inputs.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs or nodes[-1].output if name]
    graph = helper.make_graph(nodes, "g", values, results)
    graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in (weights or {}).items())
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def together(cases: Sequence[tuple[onnx.ModelProto, Mapping[str, Array]]]) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """One model that computes what each of these does, and its inputs: it takes half the time of as many models."""
    whole, inputs = onnx.ModelProto(), dict[str, Array]()
    for number, (model, given) in enumerate(cases):
        prefix = f"m{number}_"
        part = compose.add_prefix(model, prefix)
        if number:
            for field in ("node", "input", "output", "initializer"):
                getattr(whole.graph, field).extend(getattr(part.graph, field))
        else:
            whole = part
        inputs |= {prefix + name: value for name, value in given.items()}
    return whole, inputs


def imported(model: onnx.ModelProto) -> tvm.IRModule:
    data = model.SerializeToString()
    return load_onnx(data, {}, Limits(len(data)))


def run_imported(
    model: onnx.ModelProto, inputs: Mapping[str, Array], target: tvm.target.Target = TARGET
) -> list[Array]:
    """The outputs of the model as it is imported, planned and compiled without a schedule or an optimization. As in a
    bundle, denormals are zero.
    """
    mod = prepare(imported(model), target)
    run = with_denormals(machine_of(mod, target)["main"], kept=False)
    results = run(*[tvm.runtime.tensor(np.array(value, order="C")) for value in inputs.values()])
    return [each.numpy() for each in (results if hasattr(results, "__len__") else [results])]


def run_reference(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs by ONNX's own reference implementation."""
    return list(ReferenceEvaluator(model).run(None, dict(inputs)))


def run_by_onnxruntime(model: onnx.ModelProto | Path, inputs: Mapping[str, Array]) -> list[Array]:
    """The outputs by ONNX Runtime on one thread, not optimised and with exact integer products."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.log_severity_level = 3
    given = str(model) if isinstance(model, Path) else model.SerializeToString()
    return list(onnxruntime.InferenceSession(given, options).run(None, dict(inputs)))
