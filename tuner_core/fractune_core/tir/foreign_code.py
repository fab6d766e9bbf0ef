"""Programs of others as TVM's JSON: arithmetic, and calls of their own functions. Whatever calls out of the module, or
brings code of another language, is refused before TVM makes objects of the text.
"""

import json
from collections.abc import Iterator
from typing import Any

from fractune_core.errors import BadModel, shortened

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
_PRAGMAS = frozenset(
    {"pragma_auto_unroll_max_step", "pragma_unroll_explicit", "pragma_loop_partition_hint", "pragma_scope"}
)
"""TVM's own lowering of a scatter carries the last one, which no pass reads"""
_FOREIGN_CODE = frozenset({"external_mods", "Codegen", "system_lib_prefix"})
"""Attributes that hand functions over to another compiler, or bring its results"""
_THREADS = frozenset(
    {"", "cthread", *(f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx", "vthread") for axis in "xyz"), "vthread"}
)
"""TVM writes the tag of a thread into CUDA's source as it is"""
_SHOWN = 80
HINT = "export the model without it"

Node = dict[str, Any]


def objects_of(text: str) -> list[Node]:
    """The objects in TVM's JSON: one flat list, in which nothing can hide. Raises BadModel."""
    return _objects(json.loads(text))


def _objects(graph: Any) -> list[Node]:
    found = field(graph, "nodes")
    if not isinstance(found, list) or not all(isinstance(node, dict) for node in found):
        raise BadModel("is not an IRModule as JSON; write it with tvm.ir.save_json")
    return found


def refuse_foreign_code(nodes: list[Node]) -> None:
    """Raises BadModel for an object, an operator or a call that is not listed here."""
    _refuse_external_functions(nodes)
    for node in nodes:
        kind, data = str(node.get("type")), node.get("data")
        if kind not in _KINDS and not kind.startswith(_KINDS_BELOW):
            raise BadModel(f"holds an object of the kind {kind}, which is not allowed in a model file; {HINT}")
        if kind == "ffi.String" and _is_foreign(str(data)):
            raise BadModel(f"carries foreign code under '{data}'; {HINT}")
        if kind == "ir.Op" and data != _CALL_BY_NAME and not _computes(str(data)):
            raise BadModel(f"uses the operator {data}, which is not allowed in a model file; {HINT}")
        if kind == "ir.Call":
            _check_call(nodes, data)
        if kind == "tirx.IterVar":
            _check_thread(nodes, data)


def _check_thread(nodes: list[Node], loop: Any) -> None:
    tag = at(nodes, field(loop, "thread_tag")).get("data")
    if tag not in _THREADS:
        raise BadModel(f"binds a loop to {shortened(ascii(tag), _SHOWN)}, which is not a thread of a GPU; {HINT}")


def _refuse_external_functions(nodes: list[Node]) -> None:
    """Their kind is not listed either; this error has the name, which the user will look for."""
    for node in nodes:
        if node.get("type") == "relax.expr.ExternFunc":
            name = at(nodes, field(node.get("data"), "global_symbol")).get("data")
            raise BadModel(f"calls the external function '{name}'; {HINT}")


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
    operator = at(nodes, field(call, "op"))
    if operator.get("type") not in ("ir.Op", "ir.GlobalVar"):
        raise BadModel(f"calls a {operator.get('type')}, which is not a function of the module; {HINT}")
    if operator.get("data") == _CALL_BY_NAME:
        callee = _callee(nodes, call)
        if not callee.startswith(_LIBRARY):
            raise BadModel(f"calls '{callee}' through {_CALL_BY_NAME}; {HINT}")


def _callee(nodes: list[Node], call: Any) -> str:
    """The first argument of the call, where that is a string."""
    arguments = at(nodes, field(call, "args")).get("data")
    first = at(nodes, arguments[0] if isinstance(arguments, list) and arguments else None)
    text = at(nodes, field(first.get("data"), "value")).get("data")
    return text if first.get("type") == "ir.StringImm" and isinstance(text, str) else "?"


def refuse_foreign_graph(graph: Any) -> None:
    """The same for TVM's JSON of a module, as Python's parser read it."""
    refuse_foreign_code(_objects(graph))


def refuse_foreign_steps(trace: Any) -> None:
    """Raises BadModel for MetaSchedule's JSON of a trace whose steps bring foreign code, or bind a loop to anything but
    a thread. TVM keeps some attributes of a step as JSON of their own.
    """
    try:
        for kind, _, attributes, _ in trace[0]:
            if kind == "Bind" and attributes[0] not in _THREADS:
                raise BadModel(
                    f"binds a loop to {shortened(ascii(attributes[0]), _SHOWN)}, which is not a thread of a GPU"
                )
            for text in _texts(attributes):
                if _is_foreign(text):
                    raise BadModel(f"carries foreign code under '{shortened(text, _SHOWN)}'")
                if text.lstrip().startswith("{"):
                    refuse_foreign_code(objects_of(text))
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise BadModel("is not a trace of MetaSchedule") from error


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            yield name
            yield from _texts(each)


def field(data: Any, name: str) -> Any:
    """A field of an object's data; None where it has none."""
    return data.get(name) if isinstance(data, dict) else None


def at(nodes: list[Node], index: Any) -> Node:
    """The object at this place; one without anything where there is none."""
    return nodes[index] if isinstance(index, int) and 0 <= index < len(nodes) else {}
