"""Operators of a module: their names to the log, and weights lifted out of the code."""

import itertools
import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax, topi
from tvm.relax import op
from tvm.script import ir as I, relax as R, tirx as T

from fractune_core.errors import BadModel
from fractune_core.operators import DIRECT, is_workload_hash, workload_hash
from fractune_core.tir.canonical import Names, canonical_graph, names_of, read_graph
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.passes import direct_hash, extract, prepare
from fractune_workers.children.layouts.kernels.implementations import IMPLEMENTATIONS
from fractune_workers.children.rewriting.expressions import is_scheduled
from fractune_workers.children.tvm_api.target import default_target, parse_target, vector_unit
from fractune_workers.children.tvm_api.traces import read_workload
from tests.support.unoptimized import outputs_of
from tests.unit.workers.children.layouts.networks import Network, network, outputs

TARGET = default_target(1)


def layers(widths: list[int]) -> tvm.IRModule:
    """Dense layers with a ReLU each; layers of equal shape are the same operator."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, widths[0]], "float32"))
    rng = np.random.default_rng(0)
    with builder.function("main", [x]):
        with builder.dataflow():
            out = x
            for before, after in itertools.pairwise(widths):
                weight = relax.const(rng.standard_normal((before, after), np.float32))
                out = builder.emit(relax.op.nn.relu(builder.emit(relax.op.matmul(out, weight))))
            result = builder.emit_output(out)
        builder.emit_func_output(result)
    return builder.get()


def test_equal_operators_are_one_with_their_weights_added() -> None:
    # Its vectors have 16 lanes, and so the network's output is no more than a block: nothing is unpacked at the end.
    target = parse_target("llvm -mcpu=skylake-avx512", 1)
    operators = extract(prepare(layers([16, 16, 16, 16, 8]), target), target)
    assert sorted(operator.weight for operator in operators) == [1, 3]
    assert len({operator.workload_hash for operator in operators}) == 2


def test_products_of_scales_are_one_operator_whatever_the_constants() -> None:
    def body(net: Network, x: Any) -> Any:
        total = net.emit(relax.op.sum(x))
        scales = [net.emit(relax.op.multiply(total, relax.const(scale))) for scale in (0.25, 0.5, 0.75)]
        return net.emit(relax.op.concat([net.emit(relax.op.reshape(scale, [1])) for scale in scales]))

    mod = prepare(network([(4, 16)], body), TARGET)
    assert [each.weight for each in extract(mod, TARGET) if "multiply" in each.name] == [3]
    given = np.ones((4, 16), "float32")
    np.testing.assert_array_equal(outputs(mod, TARGET, [given]), [16, 32, 48])


def test_an_operator_has_the_same_hash_in_two_models() -> None:
    """Whatever it is called there, and whatever the weights hold."""
    small = {operator.workload_hash for operator in extract(prepare(layers([3, 4]), TARGET), TARGET)}
    large = {operator.workload_hash for operator in extract(prepare(layers([2, 5, 3, 4]), TARGET), TARGET)}
    assert len(small) == 1
    assert small < large


def test_hashes_are_the_same_in_another_process() -> None:
    program = (
        "from tests.unit.workers.children.importing.test_passes import *\n"
        "print(*[o.workload_hash for o in extract(prepare(layers([16, 32, 8]), default_target(2)), default_target(2))])"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()
    assert printed == [operator.workload_hash for operator in extract(prepare(layers([16, 32, 8]), TARGET), TARGET)]
    assert all(is_workload_hash(name) for name in printed)


def kernel_with(constant: float) -> tvm.IRModule:
    @T.prim_func(s_tir=True)
    def main(a: T.Buffer((8,), "float32")) -> None:
        for i in T.serial(8):
            with T.sblock("block"):
                v = T.axis.spatial(8, i)
                a[v] = T.float32(constant)

    return tvm.IRModule({"main": main})


def test_constants_inside_an_operator_tell_it_apart() -> None:
    assert direct_hash(kernel_with(1.0)) == direct_hash(kernel_with(1.0))
    assert direct_hash(kernel_with(1.0)) != direct_hash(kernel_with(2.0))


def test_an_operator_is_named_by_its_text() -> None:
    operator = extract(prepare(layers([3, 4]), TARGET), TARGET)[0]
    assert workload_hash(operator.workload_json) == operator.workload_hash
    assert direct_hash(read_workload(operator.workload_json).mod) == operator.workload_hash
    assert operator.flops >= 2 * 3 * 4
    assert operator.io_bytes == 4 * (3 + 3 * 4 + 4)
    assert not operator.narrow


@pytest.mark.parametrize(("dtype", "element_bytes"), [("float32", 4), ("float16", 2), ("int8", 1), ("int64", 8)])
def test_arguments_are_counted_in_bytes_of_their_type(dtype: str, element_bytes: int) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([4, 8], dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            out = builder.emit_output(relax.op.negative(x))
        builder.emit_func_output(out)
    (operator,) = extract(prepare(builder.get(), TARGET), TARGET)
    assert (operator.io_bytes, operator.narrow) == (2 * 4 * 8 * element_bytes, element_bytes < 4)


def test_a_name_of_any_length_is_shortened() -> None:
    """An IRModule may call its functions anything."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([2, 3], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(
            builder.emit(builder.call_te(topi.nn.relu, x, primfunc_name_hint="relu_" + "x" * 100_000))
        )
    (operator,) = extract(builder.get(), TARGET)
    assert len(operator.name) == 200
    assert operator.name.startswith("relu_xxx")


def test_a_shape_that_depends_on_data_leaves_the_traffic_unknown() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor(("n", 8), "float32")) -> R.Tensor(("n", 8), "float32"):
            with R.dataflow():
                out = R.nn.relu(x)
                R.output(out)
            return out

    (operator,) = extract(prepare(Module, TARGET), TARGET)
    assert operator.io_bytes == 0


@pytest.mark.parametrize("estimate", [-1.0, float("nan")])
def test_an_estimate_that_cannot_be_is_none(monkeypatch: pytest.MonkeyPatch, estimate: float) -> None:
    monkeypatch.setattr("tvm.s_tir.analysis.estimate_tir_flops", lambda _: estimate)
    (operator, *_) = extract(prepare(layers([3, 4]), TARGET), TARGET)
    assert operator.flops == 0


@pytest.mark.parametrize("target", ["", "cuda:sm_90"])
def test_sorting_and_prefix_sums_become_functions_and_tvm_s_own_kernels_are_not_tuned(target: str) -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((4, 64), "float32")) -> R.Tensor((4, 64), "float32"):
            with R.dataflow():
                sums = R.cumsum(x, axis=1)
                ordered = R.sort(sums, axis=1)
                out = R.nn.relu(ordered)
                R.output(out)
            return out

    parsed = parse_target(target, 1)
    prepared = prepare(Module, parsed)
    assert not [op for op in ("R.cumsum", "R.sort") if op in prepared["main"].script()]
    names = [operator.name for operator in extract(prepared, parsed)]
    assert any("relu" in name for name in names)
    assert any(map(is_scheduled, prepared.functions.values())) is (parsed.kind.name == "cuda")
    scheduled = [v.name_hint for v, function in prepared.functions.items() if is_scheduled(function)]
    assert not set(scheduled) & set(names)


def test_a_model_without_operators_has_nothing_to_tune() -> None:
    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
            return x

    with pytest.raises(BadModel, match="nothing to tune"):
        extract(prepare(Module, TARGET), TARGET)


def test_lifted_weights_give_the_same_output() -> None:
    """Of these two, the first is large enough to be packed in blocks."""
    prepared = prepare(layers([16, 64, 4]), TARGET)
    weights = LiftedWeights()
    lifted = weights.lifted(prepared).module
    lanes = vector_unit(TARGET).lanes
    assert [list(weight.shape) for weight in weights.tensors] == [[64 // lanes, 16, lanes], [64, 4]]
    assert [param.name for param in lifted["main"].params] == ["x", "weight0", "weight1"]
    x = np.random.default_rng(1).standard_normal((1, 16), np.float32)
    (before,) = outputs_of(prepared, TARGET, x)
    (after,) = outputs_of(lifted, TARGET, x, *(weight.numpy() for weight in weights.tensors))
    np.testing.assert_array_equal(before, after)
    assert before.any()


def test_weights_of_bfloat16_are_lifted() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([1, 16], "bfloat16"))
    with builder.function("main", [x]):
        weight = relax.const(np.ones((16, 16), ml_dtypes.bfloat16))
        builder.emit_func_output(builder.emit(relax.op.matmul(x, weight)))
    weights = LiftedWeights()
    weights.lifted(builder.get())
    assert [str(tensor.dtype) for tensor in weights.tensors] == ["bfloat16"]


def test_lifting_changes_no_operator() -> None:
    prepared = prepare(layers([16, 32, 4]), TARGET)
    lifted = LiftedWeights().lifted(prepared).module
    assert extract(lifted, TARGET) == extract(prepared, TARGET)


HOST_TARGET = parse_target("llvm -mcpu=x86-64-v3", 1)


def blocks_of(mod: tvm.IRModule, implementation: str) -> list[list[str]]:
    """The names of the blocks of each operator."""
    operators = extract(prepare(mod, HOST_TARGET, implementation), HOST_TARGET)
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
