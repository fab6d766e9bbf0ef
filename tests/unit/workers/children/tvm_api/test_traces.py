"""Workloads and traces of others, from an imported log: foreign code in them is refused where they are read. And what
is known of a workload's arguments.
"""

import json
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import helper
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import ir as I, tirx as T

from fractune_core.errors import BadModel
from fractune_core.operators import DIRECT
from fractune_workers.children.importing.passes import extract, prepare
from fractune_workers.children.tvm_api.arrays import random_args
from fractune_workers.children.tvm_api.artifacts import load_objects
from fractune_workers.children.tvm_api.compiled import build_object
from fractune_workers.children.tvm_api.processor import cpu_processor
from fractune_workers.children.tvm_api.traces import (
    Workload,
    args_of,
    read_trace,
    read_workload,
    read_workloads,
    write_trace,
    write_workloads,
)
from tests.support.onnx_models import TARGET, imported, onnx_model


def sums() -> tvm.IRModule:
    x = te.placeholder((64,), name="x")
    return tvm.IRModule({"main": te.create_prim_func([x, te.compute((64,), lambda i: x[i] + 1.0, name="y")])})


def test_a_workload_comes_back_as_it_was_written() -> None:
    found = read_workloads(write_workloads({DIRECT: Workload.of(sums())}))
    assert tvm_ffi.structural_equal(found[DIRECT].mod, sums())


def test_a_workload_with_foreign_code_is_not_read() -> None:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.Buffer((8,), "float32")) -> None:
            for i in T.serial(8):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.call_llvm_pure_intrin("float32", "llvm.sqrt", a[v])

    with pytest.raises(BadModel, match=r"uses the operator tirx\.call_llvm_pure_intrin"):
        read_workloads(write_workloads({DIRECT: Workload.of(Module)}))


def test_a_trace_with_foreign_code_is_not_applied() -> None:
    workload = Workload.of(sums())
    sch = Schedule(workload.mod)
    (loop,) = sch.get_loops(sch.get_sblock("block_at_1"))
    sch.annotate(loop, "pragma_auto_unroll_max_step", 16)
    text = write_trace(sch.trace)
    assert "pragma_auto_unroll_max_step" in read_trace(text, workload).mod.script()
    assert json.loads(text)
    with pytest.raises(BadModel, match="carries foreign code under 'pragma_import_llvm'"):
        read_trace(text.replace("pragma_auto_unroll_max_step", "pragma_import_llvm"), workload)


def workloads_of(operator: str, given: dict[str, Any], **attributes: Any) -> list[Workload]:
    """Those of a model with one node."""
    model = onnx_model([helper.make_node(operator, list(given), ["y"], **attributes)], given)
    return [read_workload(each.workload_json) for each in extract(prepare(imported(model), TARGET), TARGET)]


TABLE, ROW = np.zeros((40, 50, 6), np.float32), np.zeros((3, 50, 6), np.float32)
INDEXED: list[tuple[str, dict[str, Any], dict[str, Any], int]] = [
    ("Gather", {"x": TABLE, "i": np.zeros((3, 2), np.int64)}, {"axis": 1}, 49),
    ("Gather", {"x": TABLE.astype(np.int64), "i": np.zeros(3, np.int32)}, {}, 39),
    ("GatherElements", {"x": TABLE, "i": np.zeros((40, 7, 6), np.int64)}, {"axis": 1}, 49),
    ("GatherND", {"x": TABLE, "i": np.zeros((3, 2), np.int64)}, {}, 39),
    ("ScatterElements", {"x": TABLE, "i": np.zeros((3, 50, 6), np.int64), "u": ROW}, {"reduction": "add"}, 39),
    ("ScatterND", {"x": TABLE, "i": np.zeros((3, 1), np.int64), "u": ROW}, {}, 39),
]


@pytest.mark.parametrize(("operator", "given", "attributes", "last"), INDEXED)
def test_indices_are_of_the_whole_axis(
    operator: str, given: dict[str, Any], attributes: dict[str, Any], last: int
) -> None:
    """Random ones of 0 and 1 would use two rows: these stay in a cache, and a wrong place in another is not seen."""
    described = [each for workload in workloads_of(operator, given, **attributes) for each in args_of(workload)]
    bounds = [more[0] for _, dtype, _, *more in described if dtype in ("int32", "int64") and more]
    assert bounds == [[0, last]]
    (drawn,) = [
        arg.numpy() for arg, each in zip(random_args(described, 0, cpu_processor()), described, strict=True) if each[3:]
    ]
    assert 0 <= drawn.min() < drawn.max() <= last
    assert drawn.max() > 1


def test_other_integers_have_no_range() -> None:
    (workload,) = workloads_of("Add", {"x": np.zeros((4, 4), np.int64), "z": np.zeros((4, 4), np.int64)})
    assert [len(each) for each in args_of(workload)] == [3, 3, 3]


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_a_divisor_is_safe_on_random_arguments(operator: str) -> None:
    """The numbers that replace a divisor of 0 are no arguments: a measurement draws 0 for these as well."""
    for workload in workloads_of(operator, {"x": np.zeros((8, 16), np.int64), "by": np.zeros((8, 16), np.int64)}):
        described = args_of(workload)
        assert [shape for _, _, shape, *_ in described] == [[8, 16]] * len(described)
        kernel = load_objects([build_object(workload.mod, TARGET)])["main"]
        for seed in range(4):
            kernel(*random_args(described, seed, cpu_processor()))
