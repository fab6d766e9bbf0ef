"""What ingest tells the server of a model's operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import TensorProto, helper, numpy_helper
from tvm.script import ir as I
from tvm.script import relax as R
from tvm.script import tirx as T

from fractune_core.errors import BadModel
from fractune_workers.children.compiling.child import ingest
from fractune_workers.children.tvm_api.target import host_cpu

ROWS, COLUMNS, INNER = 4, 16, 32
SIZES = (2**30,) * 35


def product(path: Path, element: int) -> str:
    """A model of one matrix product of two inputs."""
    a = helper.make_tensor_value_info("a", element, [ROWS, INNER])
    b = helper.make_tensor_value_info("b", element, [INNER, COLUMNS])
    out = helper.make_tensor_value_info("out", element, [ROWS, COLUMNS])
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["out"])], "product", [a, b], [out])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def test_a_model_that_computes_nothing_from_its_inputs_is_named(tmp_path: Path) -> None:
    """Its constant is too large to be folded as shape arithmetic."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [70_000])
    graph = helper.make_graph([helper.make_node("Add", ["w", "w"], ["y"])], "constants", [x], [y])
    graph.initializer.append(numpy_helper.from_array(np.ones(70_000, np.float32), "w"))
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with pytest.raises(BadModel, match=r"^m\.onnx: has nothing to tune: no kernel of it can be tuned; tune a"):
        ingest(str(path), {}, "", host_cpu())


@pytest.mark.parametrize(("element", "element_bytes"), [(TensorProto.FLOAT, 4), (TensorProto.FLOAT16, 2)])
def test_operations_are_told_of_float32_alone_and_bytes_of_all(
    tmp_path: Path, element: int, element_bytes: int
) -> None:
    (operator,) = ingest(product(tmp_path / "m.onnx", element), {}, "", host_cpu())["operators"]
    assert operator["io_bytes"] == element_bytes * (ROWS * INNER + INNER * COLUMNS + ROWS * COLUMNS)
    assert operator["written_bytes"] == element_bytes * ROWS * COLUMNS
    assert operator["flops"] == (2 * ROWS * INNER * COLUMNS if element_bytes == 4 else 0)


def endless() -> tvm.IRModule:
    """Its loops run 2^1053 times, and a float64 holds no number above 2^1024."""

    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")) -> None:
            for loops in T.grid(8, *SIZES):
                with T.sblock("block"):
                    v = T.axis.spatial(8, loops[0])
                    y[v] = x[v] * T.float32(2)

        @R.function
        def main(x: R.Tensor((8,), "float32")) -> R.Tensor((8,), "float32"):
            cls = Module
            with R.dataflow():
                y = R.call_tir(cls.kernel, (x,), out_ty=R.Tensor((8,), "float32"))
                R.output(y)
            return y

    return Module


def test_loops_that_take_more_operations_than_a_number_holds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(tvm.ir.save_json(endless()))
    with pytest.raises(BadModel, match=r"^m\.json: operator 'kernel' takes inf operations, which cannot be; "):
        ingest(str(path), {}, "", host_cpu())
