"""Workloads and traces of others, from an imported log: foreign code in them is refused where they are read."""

from __future__ import annotations

import json

import pytest
import tvm
import tvm_ffi
from tvm import te
from tvm.s_tir import Schedule
from tvm.script import ir as I
from tvm.script import tirx as T

from fractune_core.errors import BadModel
from fractune_core.implementations import DIRECT
from fractune_workers.children.tvm_api.traces import Workload, read_trace, read_workloads, write_trace, write_workloads


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
