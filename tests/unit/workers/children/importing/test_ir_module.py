"""IRModules as JSON: what TVM writes is read again, and what could call out of the module is refused."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.script import ir as I, relax as R, tirx as T

from fractune_core.errors import BadModel
from fractune_core.files.model_files import SCRIPT_REFUSED
from fractune_core.tir import foreign_code
from fractune_workers.children.compiling.weights import LiftedWeights
from fractune_workers.children.importing.model_file import load_model
from fractune_workers.children.importing.passes import FROM_FILE, prepare
from fractune_workers.children.tvm_api.target import default_target

Graph = dict[str, Any]


@functools.cache
def sample() -> tvm.IRModule:
    """Parsed once: TVM's parser takes longer than all else here."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 8), "float32"), w: R.Tensor((8, 4), "float32")) -> R.Tensor((2, 4), "float32"):
            with R.dataflow():
                y = R.nn.relu(R.matmul(x, w))
                z = R.add(y, R.const([[1.0, 2, 3, 4], [5, 6, 7, 8]], "float32"))
                R.output(z)
            return z

    return Module


def write(folder: Path, text: str) -> Path:
    path = folder / "module.txt"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, shapes: dict[str, list[int]] | None = None) -> str:
    with pytest.raises(BadModel) as caught:
        load_model(path, shapes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def sorting() -> tvm.IRModule:
    """Sorts on a CPU call TVM's own library by name, once they are lowered; infinities and a mask are in it too."""

    @I.ir_module
    class Module:
        @R.function
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 3), "float32"):
            with R.dataflow():
                y = R.nn.softmax(R.maximum(x, R.const(float("-inf"), "float32")))
                z = R.topk(y, 3, ret_type="values")
                R.output(z)
            return z

    return Module


def graph(mod: tvm.IRModule) -> Graph:
    found: Graph = json.loads(tvm.ir.save_json(mod))
    return found


def add(nodes: Graph, kind: str, data: Any) -> int:
    """Add an object to the graph; its index."""
    nodes["nodes"].append({"type": kind, "data": data})
    return len(nodes["nodes"]) - 1


def first(nodes: Graph, kind: str) -> Any:
    return next(node["data"] for node in nodes["nodes"] if node["type"] == kind)


@pytest.mark.parametrize("make", [sample, sorting])
@pytest.mark.parametrize("lowered", [False, True])
def test_json_comes_back_equal(tmp_path: Path, make: Callable[[], tvm.IRModule], *, lowered: bool) -> None:
    """Also of a lowered module, which holds TIR with blocks, loops and axes."""
    target = default_target(1)
    mod = prepare(make(), target) if lowered else make()
    loaded = load_model(write(tmp_path, str(tvm.ir.save_json(mod))))
    assert tvm_ffi.structural_equal(loaded.without_attr(FROM_FILE), mod)


def test_a_script_is_not_read(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, sample().script())) == f"module.txt: {SCRIPT_REFUSED}"


def calling_out() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:
            for i in T.serial(8):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.call_extern("float32", "system", "ls")

    return Module


def with_foreign_code() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:
            for i in T.serial(8, annotations={"pragma_import_c": "int system(const char*);"}):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.float32(0)

    return Module


def packed_call() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
            y = R.call_packed("runtime.something", x, ty_args=R.Tensor((2, 8), "float32"))
            return y  # noqa: RET504  TVMScript binds before it returns

    return Module


def intrinsic_by_name() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:
            for i in T.serial(8):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.call_llvm_pure_intrin("float32", "llvm.sqrt", a[v])

    return Module


def packed_in_tir() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(_a: T.Buffer((8,), "float32")) -> None:
            T.evaluate(T.tvm_call_packed("runtime.SystemLib"))

    return Module


def closure() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((2, 8), "float32")) -> R.Tensor((2, 8), "float32"):
            _ = R.print(x, format="{}")
            return x

    return Module


def for_another_target() -> tvm.IRModule:
    """Its functions would be compiled by the tools of that target, such as NVIDIA's compiler."""
    mod = calling_nothing()
    return tvm.IRModule({var: func.with_attr("target", tvm.target.Target("c")) for var, func in mod.functions.items()})


def calling_nothing() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def kernel(a: T.Buffer((8,), "float32")) -> None:
            for i in T.serial(8):
                with T.sblock("block"):
                    v = T.axis.spatial(8, i)
                    a[v] = T.float32(0)

    return Module


def compiled() -> tvm.IRModule:
    """A module that carries a compiled one: reading it would load that."""
    return calling_nothing().with_attr("more", tvm.tirx.build(calling_nothing(), target="c"))


def for_another_compiler() -> tvm.IRModule:
    mod = sample()
    return tvm.IRModule({var: func.with_attr("Codegen", "cutlass") for var, func in mod.functions.items()})


def call_of_a_value() -> tvm.IRModule:
    @I.ir_module
    class Module:
        @R.function(pure=False)
        def main(x: R.Tensor((2, 8), "float32"), f: R.Callable) -> R.Tensor((2, 8), "float32"):
            y: R.Tensor((2, 8), "float32") = f(x)
            return y

    return Module


def named(symbol: str) -> tvm.IRModule:
    """The same of a kernel's name."""
    functions = calling_nothing().functions
    return tvm.IRModule({var: func.with_attr("global_symbol", symbol) for var, func in functions.items()})


def bound_to(tag: str) -> Graph:
    """TVM would write the tag into CUDA's source."""
    nodes = graph(calling_nothing())
    loop = first(nodes, "tirx.IterVar")
    loop["thread_tag"] = add(nodes, "ffi.String", tag)
    return nodes


def text_of(made: tvm.IRModule | Graph) -> str:
    return json.dumps(made) if isinstance(made, dict) else str(tvm.ir.save_json(made))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: bound_to("threadIdx.x); asm(0"),
            "binds a loop to 'threadIdx.x); asm(0', which is not a thread of a GPU",
        ),
        (lambda: named("f(){} void g"), "has a function of the name 'f(){} void g'; name it with letters"),
        (calling_out, "uses the operator tirx.call_extern, which is not allowed"),
        (intrinsic_by_name, "uses the operator tirx.call_llvm_pure_intrin, which is not allowed"),
        (packed_in_tir, "calls 'runtime.SystemLib' through tirx.tvm_call_packed"),
        (with_foreign_code, "carries foreign code under 'pragma_import_c'"),
        (for_another_compiler, "carries foreign code under 'Codegen'"),
        (packed_call, "calls the external function 'runtime.something'"),
        (closure, "uses the operator relax.print, which is not allowed"),
        (call_of_a_value, "which is not a function of the module"),
        (for_another_target, "holds an object of the kind target.Target"),
        (compiled, "holds an object of the kind ffi.Module"),
    ],
)
def test_calls_out_of_the_module_are_refused(
    tmp_path: Path, make: Callable[[], tvm.IRModule | Graph], words: str
) -> None:
    assert words in refusal(write(tmp_path, text_of(make())))


NAMED_OPERATORS = """
    relax.call_builtin_with_ctx relax.call_dps_packed relax.call_inplace_packed relax.call_pure_packed
    relax.call_py_func relax.call_tir_with_grad relax.invoke_closure relax.invoke_pure_closure relax.make_closure
    relax.vm.call_tir_dyn relax.vm.kill_object relax.memory.view relax.builtin.alloc_tensor relax.ccl.allreduce
    relax.dist.redistribute relax.print relax.to.nowhere te.tensor_load tirx.call_extern tirx.call_pure_extern
    tirx.call_ffi_kernel tirx.call_llvm_intrin tirx.cuda.func_call tirx.cuda.printf tirx.ptx.ld
    tirx.anylist_setitem_call_packed tirx.anylist_setitem_call_cpacked tirx.tvm_call_cpacked tirx.tvm_struct_get
    tirx.tvm_call_trace_packed tirx.tvm_call_packed_lowered tirx.tvm_struct_set tirx.TVMBackendAllocWorkspace
    tirx.tile.add tirx.lookup_param tirx.handle_add_byte_offset tirx.nvshmem.quiet
"""


@pytest.mark.parametrize("name", NAMED_OPERATORS.split())
def test_operators_that_do_more_than_arithmetic_are_refused(tmp_path: Path, name: str) -> None:
    """Put in the place of one of a good module's operators."""
    nodes = graph(sample())
    next(node for node in nodes["nodes"] if node["type"] == "ir.Op")["data"] = name
    assert f"uses the operator {name}, which is not allowed" in refusal(write(tmp_path, json.dumps(nodes)))


NAMED_KINDS = """
    ffi.Module ffi.Function ffi.OpaquePyObject ir.EnvFunc relax.PackedFuncType relax.VDevice
    runtime.Module s_tir.TensorIntrin s_tir.meta_schedule.PyDatabase s_tir.Schedule script.PrinterConfig target.Target
    transform.Pass vm.Storage nobody.knows None1 ir.IRModule2
"""


@pytest.mark.parametrize("kind", NAMED_KINDS.split())
def test_objects_that_do_more_than_describe_are_refused(tmp_path: Path, kind: str) -> None:
    nodes = graph(sample())
    add(nodes, kind, "bytes or a name")
    assert f"holds an object of the kind {kind}, which is not allowed" in refusal(write(tmp_path, json.dumps(nodes)))


def test_what_is_checked_is_what_is_loaded(tmp_path: Path) -> None:
    """A second list of objects under the same key: TVM is given the one that was looked at."""
    good, bad = (json.dumps(graph(make())["nodes"]) for make in (sample, packed_call))
    roots = [graph(make())["root_index"] for make in (sample, packed_call)]
    text = '{{"root_index": {}, "nodes": {}, "root_index": {}, "nodes": {}}}'
    path = write(tmp_path, text.format(roots[1], bad, roots[0], good))
    assert tvm_ffi.structural_equal(load_model(path).without_attr(FROM_FILE), sample())
    assert "calls the external function" in refusal(write(tmp_path, text.format(roots[0], good, roots[1], bad)))


def test_an_older_name_of_an_object_does_not_hide_it(tmp_path: Path) -> None:
    """TVM renames what older versions wrote: the check reads the new names."""
    nodes = graph(sample())
    add(nodes, "tirx.TensorIntrin", {})
    assert "holds an object of the kind s_tir.TensorIntrin" in refusal(write(tmp_path, json.dumps(nodes)))


def test_a_function_that_is_not_in_the_module_is_not_looked_for_elsewhere(tmp_path: Path) -> None:
    nodes = graph(sample())
    variable = dict(first(nodes, "ir.GlobalVar"))
    add(nodes, "ir.GlobalVar", {**variable, "name_hint": add(nodes, "ffi.String", "vm.builtin.copy")})
    assert "calls the function 'vm.builtin.copy', which is not in the module" in refusal(
        write(tmp_path, json.dumps(nodes))
    )


def test_the_lists_name_only_what_tvm_has() -> None:
    """A name with a mistake in it would refuse a good model."""
    kinds = set(tvm_ffi.registry.get_registered_type_keys())
    assert kinds >= foreign_code._KINDS
    assert foreign_code._TIR_OPERATORS | foreign_code._RELAX_CALLS | {foreign_code._CALL_BY_NAME} <= set(
        tvm.ir.Op.list_op_names()
    )


@pytest.mark.parametrize(
    "text",
    ["{}", "{", '{"root_index": 0, "nodes": 3}', '{"root_index": 7, "nodes": []}', '{"nodes": [1]}', '{"a": {}}'],
)
def test_json_that_is_no_module(tmp_path: Path, text: str) -> None:
    assert "is not an IRModule as JSON" in refusal(write(tmp_path, text))


@pytest.mark.parametrize(("part", "shape"), [("type", [{}]), ("data", [{}]), ("data", 3)])
def test_objects_of_a_strange_shape_are_refused(tmp_path: Path, part: str, shape: Any) -> None:
    nodes = graph(sample())
    next(node for node in nodes["nodes"] if node["type"] == "ffi.String")[part] = shape
    assert "is not an IRModule as JSON" in refusal(write(tmp_path, json.dumps(nodes)))


def test_json_of_something_else(tmp_path: Path) -> None:
    text = str(tvm.ir.save_json(tvm.runtime.convert([1, 2])))
    assert "not an IRModule" in refusal(write(tmp_path, text))


def test_a_module_without_main(tmp_path: Path) -> None:
    mod = tvm.IRModule({"other": sample()["main"].without_attr("global_symbol")})
    assert "no Relax function named 'main'" in refusal(write(tmp_path, str(tvm.ir.save_json(mod))))


def test_a_module_with_an_open_dimension(tmp_path: Path) -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType([tvm.tirx.Var("n", "int64"), 8], "float32"))
    with builder.function("main", [x]):
        builder.emit_func_output(builder.emit(relax.op.nn.relu(x)))
    text = str(tvm.ir.save_json(builder.get()))
    assert "input 'x' has open dimensions" in refusal(write(tmp_path, text))


def test_shapes_are_not_taken_for_a_module(tmp_path: Path) -> None:
    text = str(tvm.ir.save_json(sample()))
    assert "leave out --input" in refusal(write(tmp_path, text), {"x": [1, 8]})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\0b", r"has the text 'a\x00b', which is not printable"),
        ("two\nlines", r"has the text 'two\nlines', which is not printable"),
        ("\x1b[2J", r"has the text '\x1b[2J', which is not printable"),
        ("half \ud800", r"has the text 'half \ud800', which is not printable"),
        ("n" * 10_001, "has a text of 10,001 characters, and 10,000 is the limit: 'nnn"),
    ],
)
def test_names_are_printable(tmp_path: Path, text: str, words: str) -> None:
    nodes = graph(sample())
    name = first(nodes, "ir.Var")["name"]
    nodes["nodes"][name]["data"] = text
    assert words in refusal(write(tmp_path, json.dumps(nodes)))


def test_the_source_of_a_program_has_several_lines(tmp_path: Path) -> None:
    nodes = graph(sample())
    text, name = add(nodes, "ffi.String", "def main():\n    pass\n"), add(nodes, "ir.SourceName", "main.py")
    add(nodes, "ir.Source", {"source_name": name, "source": text})
    load_model(write(tmp_path, json.dumps(nodes)))


def peeking(claim: list[str] | None) -> tvm.IRModule:
    """Its loops read beyond a constant of 16 numbers; `claim`: the attribute as a file may bring it."""

    @I.ir_module(check_well_formed=False)
    class Module:
        @T.prim_func(s_tir=True)
        def peek(x: T.Buffer((T.int64(16),), "int64"), y: T.Buffer((T.int64(1024),), "int64")) -> None:
            for i in T.serial(T.int64(1024)):
                with T.sblock("block"):
                    v = T.axis.spatial(T.int64(1024), i)
                    y[v] = x[v]

    loops: Any = Module
    builder = relax.BlockBuilder(loops)
    a = relax.Var("a", relax.TensorType((1024,), "int64"))
    constant = relax.const(list(range(16)), "int64")
    with builder.function("main", [a]):
        with builder.dataflow():
            call = relax.op.call_tir(loops.get_global_var("peek"), [constant], relax.TensorType((1024,), "int64"))
            out = builder.emit_output(relax.op.add(a, builder.emit(call)))
        builder.emit_func_output(out)
    mod = builder.get()
    return mod if claim is None else mod.with_attr(FROM_FILE, claim)


@pytest.mark.parametrize("claim", [None, []])
def test_loops_of_a_file_are_not_run_where_it_is_read(tmp_path: Path, claim: list[str] | None) -> None:
    """TVM folds calls with constants by running them: what they read beyond would be a weight of the bundle."""
    loaded = load_model(write(tmp_path, str(tvm.ir.save_json(peeking(claim)))))
    weights = LiftedWeights()
    weights.lifted(prepare(loaded, default_target(1)))
    assert [tuple(tensor.shape) for tensor in weights.tensors] == [(16,)]
