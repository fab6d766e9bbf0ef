"""The canonical form of an operator: one for all that differ in names alone, another for all others."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import ir, s_tir, te, tirx, topi

from fractune_core.errors import BadModel
from fractune_core.operators import joined_workloads, workload_hash
from fractune_core.tir.canonical import Names, by_position, canonical_graph, names_of, read_graph
from fractune_core.tir.foreign_code import refuse_foreign_graph, refuse_foreign_steps


def module(function: Any) -> Any:
    return tvm.IRModule({"main": function.with_attr("global_symbol", "main")})


def name_of(mod: Any) -> str:
    return workload_hash(joined_workloads({"": canonical_graph(mod)}))


def scaled(
    factor: float = 2.0, dtype: str = "float32", size: int = 16, name: str = "a", index: str = "int32"
) -> tirx.PrimFunc:
    a = te.placeholder((tirx.const(size, index),), dtype, name=name)
    return te.create_prim_func([a, te.compute(a.shape, lambda i: a[i] * tirx.const(factor, dtype), name=f"{name}_y")])


def product(n: int, m: int, k: int, dtype: str = "float32", *, swapped: bool = False) -> tirx.PrimFunc:
    names = ("b", "a") if swapped else ("a", "b")
    a, b = te.placeholder((n, k), dtype, names[0]), te.placeholder((k, m), dtype, names[1])
    return te.create_prim_func([a, b, topi.nn.relu(topi.matmul(a, b))])


def softmax(axis: int) -> tirx.PrimFunc:
    x = te.placeholder((4, 8), "float32", "x")
    return te.create_prim_func([x, topi.nn.softmax(x, axis=axis)])


def pooled(kind: str) -> tirx.PrimFunc:
    x = te.placeholder((1, 4, 8, 8), "float32", "x")
    return te.create_prim_func([x, topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), kind)])


def with_value(value: Any, key: str = "x") -> tirx.PrimFunc:
    return scaled().with_attr(key, value)


def stored(value: float) -> tirx.PrimFunc:
    a = te.placeholder((16,), "float32", "a")
    bound = tirx.FloatImm("float32", value)
    return te.create_prim_func([a, te.compute(a.shape, lambda i: tirx.max(a[i], bound))])


VALUES: list[Any] = [1, 2, 1.0, "1", "2", True, [1, 2], [2, 1], [[1], 2], [1, [2]], [], {}]


@cache
def different() -> list[Any]:
    """Modules that all differ from each other."""
    numbers = np.arange(4, dtype="float32")
    functions = [
        *(scaled(factor) for factor in (2.0, 2.0000002, -2.0, 1e-30, math.inf)),
        scaled(dtype="float64"),
        scaled(dtype="float16"),
        scaled(size=17),
        scaled(index="int64"),
        *(stored(value) for value in (0.0, -0.0, math.nan, -math.inf, 2.0)),
        product(16, 16, 16),
        product(16, 16, 8),
        product(16, 8, 16),
        product(16, 16, 16, "float16"),
        *map(softmax, (0, 1)),
        *map(pooled, ("max", "avg")),
        *map(with_value, VALUES),
        *(with_value(value) for value in ({"a": 1}, {"b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1})),
        *(with_value(value) for value in (0.0, -0.0, 2**62, 2**62 + 1)),
        *(with_value(tvm.runtime.tensor(each)) for each in (numbers, numbers + 1, numbers.reshape(2, 2))),
        with_value(tvm.runtime.tensor(numbers.astype("float64"))),
        with_value(1, "y"),
    ]
    return [module(each) for each in functions]


def renamed(mod: Any, spell: Any) -> Any:
    """The module with other names of all variables and blocks, and no part that is twice the same object."""
    new: dict[Any, Any] = {}

    def variable(var: Any) -> Any:
        return new.setdefault(var, tirx.Var(spell(len(new)), var.ty))

    def block(each: Any) -> Any:
        parts = (each.iter_vars, each.reads, each.writes, spell(len(new)), each.body, each.init)
        return s_tir.SBlock(*parts, each.alloc_buffers, each.match_buffers, each.annotations)

    function = mod["main"]
    params = [variable(each) for each in function.params]
    body = tvm_ffi.structural_map(function.body, ((ir.Var, variable), (s_tir.SBlock, block)), order="pre")
    return unshared(tvm.IRModule({"main": tirx.PrimFunc(params, body, function.ret_type, function.attrs)}))


def unshared(mod: Any) -> Any:
    """The same module, in which equal numbers are different objects."""
    graph = json.loads(tvm.ir.save_json(mod))
    nodes = graph["nodes"]
    for node in list(nodes):
        for field in {"a", "b"} & node["data"].keys() if node["type"].startswith("prim.") else ():
            part = nodes[node["data"][field]]
            if part["type"] in {"ir.IntImm", "ir.FloatImm"}:
                nodes.append(dict(part))
                node["data"][field] = len(nodes) - 1
    return tvm.ir.load_json(json.dumps(graph))


def twins() -> Iterator[tuple[Any, Any]]:
    for mod in different():
        yield mod, renamed(mod, lambda at: f"z{at}")
        yield mod, renamed(mod, lambda at: f"z{99 - at}")
        yield mod, renamed(mod, lambda _: "same")
    yield module(scaled(name="a")), module(scaled(name="lv13"))
    yield module(product(16, 16, 8)), module(product(16, 16, 8, swapped=True))
    yield module(with_value({"a": 1, "b": 2})), module(with_value({"b": 2, "a": 1}))


def test_operators_that_differ_in_names_alone_have_one_name() -> None:
    for one, other in twins():
        assert tvm_ffi.structural_equal(one, other)
        assert name_of(one) == name_of(other)


def test_different_operators_have_different_names() -> None:
    for one, other in combinations(different(), 2):
        assert not tvm_ffi.structural_equal(one, other)
    assert len({name_of(each) for each in different()}) == len(different())


def test_the_form_is_the_operator_and_its_own_form() -> None:
    for mod in different():
        graph = json.loads(json.dumps(canonical_graph(mod)))
        back = read_graph(graph)
        assert tvm_ffi.structural_equal(back, mod)
        assert canonical_graph(back) == graph or "NaN" in json.dumps(graph)
        assert names_of(back).blocks == tuple((new, new) for _, new in names_of(mod).blocks)


def test_a_kernel_of_ours_is_another_operator_than_one_without_its_names() -> None:
    """A search knows our kernels by the names of their blocks, which are part of the form."""
    mod = module(product(16, 16, 16))
    ours = renamed(mod, lambda at: "matmul_blocked" if at == 12 else f"z{at}")
    assert name_of(ours) != name_of(mod)
    assert "matmul_blocked" in {new for _, new in names_of(ours).blocks}


def test_two_operators_of_one_structural_hash_have_two_names() -> None:
    """TVM reads a text as one number modulo 2**31 - 1."""
    own = "ABCDEFGH"
    number = int.from_bytes(own.encode(), "little")
    texts = ((number + (2**31 - 1) * step).to_bytes(8, "little") for step in range(1, 10_000))
    other = next(text.decode() for text in texts if text.isalnum())
    first, second = (module(with_value(text)) for text in (own, other))
    assert tvm_ffi.structural_hash(first) == tvm_ffi.structural_hash(second)
    assert not tvm_ffi.structural_equal(first, second)
    assert name_of(first) != name_of(second)


def test_every_process_gives_the_same_name() -> None:
    code = (
        "from tests.unit.core.tir.test_canonical import module, name_of, product, softmax\n"
        "print(name_of(module(softmax(1))), name_of(module(product(16, 16, 16))))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert said.stdout.split() == [name_of(module(softmax(1))), name_of(module(product(16, 16, 16)))]


def test_an_expression_may_be_nested_more_deeply_than_pythons_stack() -> None:
    a = te.placeholder((16,), "float32", "a")

    def deep(i: Any) -> Any:
        value: Any = a[i]
        for _ in range(600):
            value = value * a[i]
        return value

    mod = module(te.create_prim_func([a, te.compute(a.shape, deep)]))
    assert name_of(mod) == name_of(read_graph(canonical_graph(mod)))


def step(kind: str, *attributes: Any) -> list[Any]:
    return [[[kind, ["b0"], list(attributes), []]], []]


@pytest.mark.parametrize(
    "trace",
    [
        step("Annotate", "pragma_auto_unroll_max_step"),
        step("Annotate", "meta_schedule.parallel"),
        step("Bind", "threadIdx.x"),
        step("Bind", "vthread.x"),
        step("TransformLayout", 0, "write", json.dumps({"root_index": 0, "nodes": [{"type": "tirx.IndexMap"}]})),
    ],
    ids=str,
)
def test_steps_of_schedules_are_allowed(trace: list[Any]) -> None:
    refuse_foreign_steps(trace)


@pytest.mark.parametrize(
    ("trace", "words"),
    [
        (step("Annotate", "pragma_import_llvm"), "carries foreign code under 'pragma_import_llvm'"),
        (step("Annotate", ["pragma_import_c"]), "carries foreign code"),
        (step("Bind", "threadIdx.x); asm(0"), "binds a loop to 'threadIdx.x); asm(0'"),
        (step("TransformLayout", 0, json.dumps({"nodes": [{"type": "ffi.Module"}]})), "of the kind ffi.Module"),
        (step("TransformLayout", 0, ' {"nodes": [{"type": "ir.Op", "data": "tirx.call_extern"}]}'), "tirx.call_extern"),
        (step("TransformLayout", 0, "{nodes"), "is not a trace"),
        ([], "is not a trace"),
        ([["x"]], "is not a trace"),
        ({}, "is not a trace"),
    ],
    ids=str,
)
def test_steps_with_foreign_code_are_refused(trace: Any, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        refuse_foreign_steps(trace)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        ({"nodes": [{"type": "ffi.Module", "data": ""}]}, "of the kind ffi.Module"),
        ({"nodes": [{"type": "target.Target", "data": {}}]}, "of the kind target.Target"),
        ({"nodes": [{"type": "ir.Op", "data": "tirx.call_llvm_pure_intrin"}]}, "tirx.call_llvm_pure_intrin"),
        ({"nodes": [{"type": "ffi.String", "data": "pragma_import_llvm"}]}, "carries foreign code"),
        ({"nodes": [{"type": "ir.IRModule"}, 3]}, "is not an IRModule as JSON"),
        ({"nodes": {}}, "is not an IRModule as JSON"),
        ([], "is not an IRModule as JSON"),
    ],
    ids=str,
)
def test_a_workload_with_foreign_code_is_refused(graph: Any, words: str) -> None:
    with pytest.raises(BadModel) as caught:
        refuse_foreign_graph(graph)
    assert words in str(caught.value)


NAMES = Names(
    (
        ("root", "root"),
        ("y_sum", "block_at_1"),
        ("y_mean", "block_at_2"),
        ("y_var_sum", "block_at_3"),
        ("T_layer_norm", "block_at_4"),
        ("matmul_blocked", "matmul_blocked"),
    ),
    (("y", "buffer_at_0"), ("y_weight", "buffer_at_1"), ("y_sum", "buffer_at_2")),
)


def trace(*names: str) -> list[Any]:
    """Lookups, and a decision."""
    return [[["GetSBlock", [], [name, "main"], [f"b{at}"]] for at, name in enumerate(names)], [[0, [4, 16]]]]


@pytest.mark.parametrize(
    ("by_tvms_name", "position"),
    [
        ("y_sum", "block_at_1"),
        ("y_sum_rf", "block_at_1_rf"),
        ("T_layer_norm_o", "block_at_4_o"),
        ("y_shared", "buffer_at_0_shared"),
        ("y_weight_reindex_shared.dyn_wmma.matrix_b_o", "buffer_at_1_reindex_shared.dyn_wmma.matrix_b_o"),
        ("matmul_blocked", "matmul_blocked"),
        ("root", "root"),
    ],
)
def test_a_name_of_tvms_becomes_the_name_by_position(by_tvms_name: str, position: str) -> None:
    assert by_position(trace(by_tvms_name), NAMES) == trace(position)


def test_other_steps_and_decisions_stay() -> None:
    steps = [["Annotate", ["b0", "y_sum"], ["y_sum"], []], ["GetSBlock", [], ["y_sum", "main"], ["b0"]]]
    renamed, decisions = by_position([steps, [[1, 2]]], NAMES)
    assert renamed == [steps[0], ["GetSBlock", [], ["block_at_1", "main"], ["b0"]]]
    assert decisions == [[1, 2]]


def test_unknown_names_stay_as_they_are() -> None:
    """TVM then says which block is missing."""
    assert by_position(trace("other", "y"), NAMES) == trace("other", "y")


def test_names_by_position_stay() -> None:
    own = Names(tuple((new, new) for _, new in NAMES.blocks), tuple((new, new) for _, new in NAMES.buffers))
    names = ("root", "block_at_1", "block_at_3_rf", "buffer_at_0_shared")
    assert by_position(trace(*names), own) == trace(*names)
