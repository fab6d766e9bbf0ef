"""Names by position in TVM's functions: they follow from the structure, which they leave as it is."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax
from tvm.relax import op
from tvm.script import tirx as T

from fractune_core.implementations import DIRECT
from fractune_core.tir.positions import named_by_position, names_of
from fractune_workers.children.importing.passes import extract, prepare, workload_hash
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import read_workload
from tests.support.models_in_common import MODELS, shared_model
from tests.unit.workers.children.layouts.networks import network

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)


def workloads(mod: tvm.IRModule, implementation: str = DIRECT) -> dict[str, Any]:
    operators = extract(prepare(mod, TARGET, implementation), TARGET)
    return {operator.workload_hash: read_workload(operator.workload_json) for operator in operators}


def own_names(mod: tvm.IRModule) -> list[str]:
    """The names that the parts of its `main` have."""
    found = names_of(mod["main"])
    return [name for name, _ in (*found.blocks, *found.buffers)]


def test_equal_hashes_have_equal_names() -> None:
    one, other = (workloads(shared_model(model)) for model in (MODELS[0], MODELS[6]))
    shared = one.keys() & other.keys()
    assert len(shared) == 5
    for name in shared:
        assert own_names(one[name].original) != own_names(other[name].original)
        assert own_names(one[name].mod) == own_names(other[name].mod)
        assert len(set(own_names(one[name].mod))) == len(own_names(one[name].mod))
        assert workload_hash(one[name].mod) == name


def test_names_by_position_stay_when_they_are_given_again() -> None:
    for workload in workloads(shared_model(MODELS[0])).values():
        assert own_names(named_by_position(workload.mod)) == own_names(workload.mod)


def test_blocks_of_our_kernels_keep_their_names() -> None:
    def body(net: Any, x: Any) -> Any:
        return net.emit(op.nn.relu(net.conv(x, 32, padding=(1, 1))))

    for name in (DIRECT, *IMPLEMENTATIONS):
        found = workloads(network([(1, 16, 8, 8)], body), name).values()
        (kernel,) = (each for each in found if any("blocked" in own or "gemm" in own for own, _ in each.names.blocks))
        kept = {own for own, new in kernel.names.blocks if own == new}
        if name == DIRECT:
            assert kept == {"root", "conv2d_blocked"}
        else:
            assert {"root", "pad_temp", "winograd_gemm", "winograd_output"} <= kept
        assert "compute" not in kept


def test_blocks_inside_blocks_come_after_the_one_around_them() -> None:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((8, 8), "float32"), b: T.Buffer((8, 8), "float32")) -> None:
        for i in T.serial(8):
            with T.sblock("around"):
                v = T.axis.spatial(8, i)
                for j in T.serial(8):
                    with T.sblock("root"):
                        w = T.axis.spatial(8, j)
                        b[v, w] = a[v, w]
        for i, j in T.grid(8, 8):
            with T.sblock("after"):
                v, w = T.axis.remap("SS", [i, j])
                b[v, w] = b[v, w] + T.float32(1.0)

    mod = tvm.IRModule({"main": main})
    named = named_by_position(mod)
    assert own_names(named) == ["root", "block_at_1", "block_at_2", "block_at_3", "buffer_at_0", "buffer_at_1"]
    assert [own for own, _ in names_of(mod["main"]).blocks] == ["root", "around", "root", "after"]
    assert workload_hash(named) == workload_hash(mod)


def test_a_function_without_blocks_and_relax_stay() -> None:
    mod = prepare(shared_model(MODELS[0]), TARGET)
    named = named_by_position(mod)
    assert named["main"].same_as(mod["main"])
    assert isinstance(named["main"], relax.Function)
