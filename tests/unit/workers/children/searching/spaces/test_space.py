"""The design space of a CPU: loops vectorized as wide as a register, all other rules MetaSchedule's own."""

from __future__ import annotations

import pytest
import tvm
from tvm import te
from tvm.s_tir import meta_schedule as ms

from fractune_workers.children.searching.operator_search import space_for
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics
from fractune_workers.children.tvm_api.target import vector_unit
from fractune_workers.children.tvm_api.traces import Workload


@pytest.mark.parametrize(("mcpu", "lanes"), [("x86-64", 4), ("x86-64-v3", 8), ("skylake-avx512", 16)])
def test_vectors_are_as_wide_as_the_processors(mcpu: str, lanes: int) -> None:
    target = tvm.target.Target({"kind": "llvm", "mcpu": mcpu, "num-cores": 1})
    load_intrinsics(target)
    data = te.placeholder((8, 64, 64), name="data")
    mod = tvm.IRModule({"main": te.create_prim_func([data, te.compute(data.shape, lambda *at: data(*at) + 1.0)])})
    context = ms.TuneContext(mod=mod, target=target, space_generator=space_for(Workload.of(mod), target), rand_state=1)
    (sch,) = context.generate_design_space()
    sch.enter_postproc()
    assert all(rule.apply(sch) for rule in context.space_generator.postprocs)
    assert f"T.vectorized(T.int64({lanes}))" in sch.mod.script() or f"T.vectorized({lanes})" in sch.mod.script()
    assert vector_unit(target).lanes == lanes


def test_a_plain_vector_unit_has_sixteen_registers_and_a_wide_one_more() -> None:
    registers = {
        mcpu: vector_unit(tvm.target.Target({"kind": "llvm", "mcpu": mcpu})).registers
        for mcpu in ("x86-64", "x86-64-v3", "skylake-avx512")
    }
    assert registers == {"x86-64": 16, "x86-64-v3": 16, "skylake-avx512": 32}


def test_zen_4_begins_one_multiplication_of_512_bits_a_cycle() -> None:
    units = {
        mcpu: vector_unit(tvm.target.Target({"kind": "llvm", "mcpu": mcpu})).multiplies
        for mcpu in ("znver3", "znver4", "znver5", "sapphirerapids")
    }
    assert units == {"znver3": 2, "znver4": 1, "znver5": 2, "sapphirerapids": 2}
