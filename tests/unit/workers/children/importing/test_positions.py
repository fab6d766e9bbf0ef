"""Names by position in TVM's functions."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.relax import op
from tvm.script import tirx as T

from fractune_core.tir.canonical import canonical_graph, names_of, read_graph
from fractune_core.tir.lookups import Names
from fractune_core.workloads import DIRECT
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS
from fractune_workers.children.tvm_api.target import parse_target
from fractune_workers.children.tvm_api.traces import read_workload
from tests.unit.workers.children.layouts.networks import network

TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)


def blocks_of(mod: tvm.IRModule, implementation: str) -> list[list[str]]:
    """The names of the blocks of each operator."""
    operators = extract(prepare(mod, TARGET, implementation), TARGET)
    modules = (read_workload(operator.workload_json).mod for operator in operators)
    return [[name for name, _ in names_of(mod).blocks] for mod in modules]


def test_blocks_of_our_kernels_keep_their_names() -> None:
    def body(net: Any, x: Any) -> Any:
        return net.emit(op.nn.relu(net.conv(x, 32, padding=(1, 1))))

    for name in (DIRECT, *IMPLEMENTATIONS):
        found = blocks_of(network([(1, 16, 8, 8)], body), name)
        (kernel,) = (each for each in found if any("blocked" in own or "gemm" in own for own in each))
        kept = {own for own in kernel if not own.startswith("block_at_")}
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
    assert names_of(mod) == Names(
        (("root", "root"), ("around", "block_at_1"), ("root", "block_at_2"), ("after", "block_at_3")),
        (("a", "buffer_at_0"), ("b", "buffer_at_1")),
    )
    assert direct_hash(read_graph(canonical_graph(mod))) == direct_hash(mod)
