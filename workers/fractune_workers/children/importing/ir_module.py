"""A TVM IRModule from a file, as the JSON that TVM writes.

An IRModule is a program that will be compiled and run. Like any native code, its loops may write past their buffers;
then the measuring process dies, which is what this process is for. But the program may not call out of the module by
name, nor carry code of another language. So a file may hold only the kinds of objects that are listed here, and call
only the operators that are listed here. Additions of a later TVM stay out until somebody has read them.
"""

from __future__ import annotations

import json
from typing import Any

import tvm
from tvm import relax
from tvm.ir import json_compact
from tvm_ffi.serialization import from_json_graph_str

from fractune_core.codec.plain_json import is_storable
from fractune_core.errors import BadModel, first_line, shortened
from fractune_workers.children.importing.passes import FROM_FILE
from fractune_workers.children.importing.raw_tensors import TensorHeader, read_header

_VALUES = """
    None bool int float DataType ffi.Array ffi.Dict ffi.List ffi.Map ffi.Shape ffi.String ffi.Tensor
    ir.Call ir.Constant ir.DictAttrs ir.FloatImm ir.FuncType ir.GenericConst ir.GlobalVar ir.IRModule ir.IntImm ir.Op
    ir.PointerType ir.PrimType ir.Range ir.SequentialSpan ir.Source ir.SourceMap ir.SourceName ir.Span ir.StringImm
    ir.StringType ir.TensorLoad ir.TensorRegion ir.Tuple ir.TupleGetItem ir.TupleType ir.Type ir.Var
"""
_RELAX = """
    relax.AnyType relax.FuncType relax.ShapeType relax.TensorType relax.expr.BindingBlock relax.expr.DataflowBlock
    relax.expr.DataflowVar relax.expr.Function relax.expr.If relax.expr.MatchCast relax.expr.SeqExpr
    relax.expr.ShapeExpr relax.expr.VarBinding
"""
_TIR = """
    s_tir.MatchBufferRegion s_tir.SBlock s_tir.SBlockRealize te.CommReducer te.Reduce tirx.AllocBuffer tirx.AssertStmt
    tirx.AttrStmt tirx.Axis tirx.Bind tirx.Break tirx.BufferRegionType tirx.BufferStore tirx.BufferType tirx.Continue
    tirx.DeclBuffer tirx.Evaluate tirx.For tirx.IfThenElse tirx.IndexMap tirx.Iter tirx.IterVar tirx.PrimFunc
    tirx.SeqStmt tirx.TileLayout tirx.While
"""
_KINDS = frozenset(f"{_VALUES}{_RELAX}{_TIR}".split())
"""Objects that describe a program. Left out are compiled modules, external functions, functions of TVM's registry,
patterns, schedules, and targets (a function with its own target would choose its compiler)."""
_KINDS_BELOW = ("prim.", "relax.attrs.")

_ARITHMETIC = """
    acos acosh asin asinh assume atan atan2 atanh buffer_data buffer_offset copysign cos cosh ctpop erf exp exp10 exp2
    fabs floor fma fmod hypot ignore_loop_partition isfinite isinf isnan ldexp log log10 log1p nearbyint nextafter
    popcount pow q_multiply_shift q_multiply_shift_per_axis reinterpret round rsqrt sigmoid sin sinh sqrt tan tanh
    trunc tvm_access_ptr tvm_stack_make_array tvm_stack_make_shape tvm_thread_invariant undef vectorcombine vectorhigh
    vectorlow
"""
_TIR_OPERATORS = frozenset(f"tirx.{name}" for name in _ARITHMETIC.split())
_RELAX_NAMESPACES = frozenset({"nn", "image", "vision"})
_RELAX_CALLS = frozenset({"relax.call_tir", "relax.call_tir_inplace"})
"""The two `relax.call_*` that call a function of the module"""
_NO_ARITHMETIC = frozenset({"relax.invoke_closure", "relax.invoke_pure_closure", "relax.make_closure", "relax.print"})

_CALL_BY_NAME = "tirx.tvm_call_packed"
_LIBRARY = "tvm.contrib.sort."
"""TVM's own lowering of sorts and of prefix sums calls these functions by name."""

_PRAGMA = "pragma_"
_PRAGMAS = frozenset({"pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_loop_partition_hint"})
_FOREIGN_CODE = frozenset({"external_mods", "Codegen", "system_lib_prefix"})
"""Attributes that hand functions over to another compiler, or bring its results"""
_MOST_TEXT_CHARACTERS = 10_000
_SHOWN = 80
_HINT = "export the model without it"
_OPEN_SIZE = "has a tensor whose size is known only when the model runs; export it with fixed shapes"
_WRITE_AGAIN = "write it with tvm.ir.save_json"
_NO_MODULE = f"is not an IRModule as JSON; {_WRITE_AGAIN}"

Node = dict[str, Any]


def load_json(text: str) -> tvm.IRModule:
    """The IRModule that `tvm.ir.save_json` wrote, with the names of its loops as an attribute (`passes.FROM_FILE`).
    Nothing of another kind is read. Raises BadModel.
    """
    current = _current(text)
    nodes = _graph(current)
    _refuse_external_functions(nodes)
    _refuse_foreign_code(nodes)
    _refuse_wrong_tensors(nodes)
    _refuse_unprintable_texts(nodes)
    try:
        mod = from_json_graph_str(current)
    except Exception as error:
        raise BadModel(f"is not an IRModule as JSON: {first_line(error)}; {_WRITE_AGAIN}") from error
    if not isinstance(mod, tvm.IRModule):
        raise BadModel(f"holds a {type(mod).__name__}, not an IRModule; save the whole module")
    _refuse_missing_functions(nodes, {var.name_hint for var in mod.functions})
    loops = [var.name_hint for var, function in mod.functions.items() if isinstance(function, tvm.tirx.PrimFunc)]
    return mod.with_attr(FROM_FILE, loops)


def refuse_malformed(mod: tvm.IRModule, *, imported: bool) -> None:
    """Raises BadModel for nested calls and for values without a type: their results are not counted. `imported`:
    whether an importer made the module. Then the reason is a size that depends on numbers.

    TVM looks at each type as a tree: count the parts of types before.
    """
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        why = f"is not a well-formed IRModule: {first_line(error)}; {_WRITE_AGAIN}"
        raise BadModel(_OPEN_SIZE if imported else why) from error


def _current(text: str) -> str:
    """The text as TVM writes it today, and as Python's parser read it: the checked text is the loaded one."""
    try:
        return str(json_compact.upgrade_json(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadModel(_NO_MODULE) from error


def _graph(text: str) -> list[Node]:
    """The objects in TVM's JSON: one flat list, in which nothing can hide."""
    found = json.loads(text).get("nodes")
    if not isinstance(found, list) or not all(isinstance(node, dict) for node in found):
        raise BadModel(_NO_MODULE)
    return found


def _refuse_external_functions(nodes: list[Node]) -> None:
    """Their kind is not listed either; this error has the name, which the user will look for."""
    for node in nodes:
        if node.get("type") == "relax.expr.ExternFunc":
            name = _at(nodes, _field(node.get("data"), "global_symbol")).get("data")
            raise BadModel(f"calls the external function '{name}'; {_HINT}")


def _refuse_foreign_code(nodes: list[Node]) -> None:
    for node in nodes:
        kind, data = str(node.get("type")), node.get("data")
        if kind not in _KINDS and not kind.startswith(_KINDS_BELOW):
            raise BadModel(f"holds an object of the kind {kind}, which is not allowed in a model file; {_HINT}")
        if kind == "ffi.String" and _is_foreign(str(data)):
            raise BadModel(f"carries foreign code under '{data}'; {_HINT}")
        if kind == "ir.Op" and data != _CALL_BY_NAME and not _computes(str(data)):
            raise BadModel(f"uses the operator {data}, which is not allowed in a model file; {_HINT}")
        if kind == "ir.Call":
            _check_call(nodes, data)


def _is_foreign(text: str) -> bool:
    return text in _FOREIGN_CODE or (text.startswith(_PRAGMA) and text not in _PRAGMAS)


def _computes(operator: str) -> bool:
    """Whether all that the operator does is arithmetic, or a call of a function in the module."""
    if operator.startswith("prim.") or operator in _TIR_OPERATORS or operator in _RELAX_CALLS:
        return True
    package, *namespace, name = operator.split(".")
    if package != "relax" or operator in _NO_ARITHMETIC or name.startswith("call_"):
        return False
    return not namespace or (len(namespace) == 1 and namespace[0] in _RELAX_NAMESPACES)


def _check_call(nodes: list[Node], call: Any) -> None:
    """An operator or a function of the module is called; by name TVM's sorting alone."""
    operator = _at(nodes, _field(call, "op"))
    if operator.get("type") not in ("ir.Op", "ir.GlobalVar"):
        raise BadModel(f"calls a {operator.get('type')}, which is not a function of the module; {_HINT}")
    if operator.get("data") == _CALL_BY_NAME:
        callee = _callee(nodes, call)
        if not callee.startswith(_LIBRARY):
            raise BadModel(f"calls '{callee}' through {_CALL_BY_NAME}; {_HINT}")


def _callee(nodes: list[Node], call: Any) -> str:
    """The first argument of the call, where that is a string."""
    arguments = _at(nodes, _field(call, "args")).get("data")
    first = _at(nodes, arguments[0] if isinstance(arguments, list) and arguments else None)
    text = _at(nodes, _field(first.get("data"), "value")).get("data")
    return text if first.get("type") == "ir.StringImm" and isinstance(text, str) else "?"


def _refuse_wrong_tensors(nodes: list[Node]) -> None:
    headers: dict[int, TensorHeader] = {}
    for index, node in enumerate(nodes):
        if node.get("type") == "ffi.Tensor":
            headers[index] = read_header(node.get("data"), f"tensor {len(headers)}")
    for node in nodes:
        if node.get("type") == "ir.GenericConst":
            place = _field(node.get("data"), "value")
            header = headers.get(place) if type(place) is int else None
            if header is None:
                raise BadModel(f"has a constant that is not a tensor; {_WRITE_AGAIN}")
            if header != _declared(nodes, _field(node.get("data"), "ty")):
                raise BadModel(
                    f"has a constant whose numbers are {header.dtype} {list(header.shape)}, which its type does not "
                    f"say; {_WRITE_AGAIN}"
                )


def _refuse_unprintable_texts(nodes: list[Node]) -> None:
    """Texts are names, and C reads some of them up to the first NUL. Only the source of a program has several lines."""
    sources = {id(_at(nodes, _field(node.get("data"), "source"))) for node in nodes if node.get("type") == "ir.Source"}
    for node in nodes:
        if node.get("type") != "ffi.String":
            continue
        text = node.get("data")
        if not isinstance(text, str):
            raise BadModel(_NO_MODULE)
        if not is_storable(text) or not (text.isprintable() or id(node) in sources):
            raise BadModel(f"has the text {shortened(ascii(text), _SHOWN)}, which is not printable; {_HINT}")
        if len(text) > _MOST_TEXT_CHARACTERS and id(node) not in sources:
            raise BadModel(
                f"has a text of {len(text):,} characters, and {_MOST_TEXT_CHARACTERS:,} is the limit: "
                f"'{shortened(text, _SHOWN)}'; shorten it"
            )


def _declared(nodes: list[Node], index: Any) -> TensorHeader | None:
    """The type of a constant; None where it is not that of a tensor of fixed shape."""
    kind = _at(nodes, index)
    shape = _at(nodes, _field(kind.get("data"), "shape"))
    dims = _at(nodes, _field(shape.get("data"), "values")).get("data")
    if kind.get("type") != "relax.TensorType" or not isinstance(dims, list):
        return None
    dtype = _field(_at(nodes, _field(kind.get("data"), "dtype")).get("data"), "dtype")
    sizes: list[Any] = [_at(nodes, _field(_at(nodes, dim).get("data"), "value")).get("data") for dim in dims]
    return TensorHeader(str(dtype), tuple(sizes))


def _refuse_missing_functions(nodes: list[Node], functions: set[str]) -> None:
    for node in nodes:
        if node.get("type") == "ir.GlobalVar":
            name = _at(nodes, _field(node.get("data"), "name_hint")).get("data")
            if name not in functions:
                raise BadModel(f"calls the function '{name}', which is not in the module; {_HINT}")


def _field(data: Any, name: str) -> Any:
    return data.get(name) if isinstance(data, dict) else None


def _at(nodes: list[Node], index: Any) -> Node:
    return nodes[index] if isinstance(index, int) and 0 <= index < len(nodes) else {}
