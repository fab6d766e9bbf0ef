"""Facts about a model's expressions that its passes share."""

from collections.abc import Iterable, Sequence
from math import ceil, prod
from typing import Any

import numpy.typing as npt
import tvm
import tvm_ffi
from tvm import relax

from fractune_workers.children.tvm_api.scratch_tensors import kept, numbers_in
from fractune_workers.children.tvm_api.tir import parts_of

ELEMENTWISE = frozenset({
    "abs", "add", "ceil", "clip", "cos", "divide", "erf", "exp", "floor", "log", "maximum", "minimum", "multiply",
    "negative", "nn.gelu", "nn.gelu_tanh", "nn.leakyrelu", "nn.relu", "nn.relu6", "nn.silu", "nn.softplus", "power",
    "round", "rsqrt", "sigmoid", "sign", "sin", "sqrt", "square", "subtract", "tanh",
})  # fmt: skip
"""operators that compute each element from one element of each operand"""
TAKES_AN_EPILOGUE = {"op_pattern": 4}
"""Attribute of a kernel, TVM's kOutEWiseFusable: element-wise operators after the kernel are fused with it. Two kernels
with this attribute are never fused. TVM sets it by itself for a kernel of one block."""
OPAQUE = {"op_pattern": 8}
"""attribute of a kernel, TVM's kOpaque: nothing is fused with the kernel"""
_SCHEDULED = "tirx.is_scheduled"


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of a tensor whose shape is fixed."""
    return tuple(int(dim) for dim in value.ty.shape)


def has_fixed_shapes(expr: Any) -> bool:
    """Whether a variable, or the result and all operands of a call, have shapes that are numbers; one may depend on
    data.
    """
    return all(map(_is_fixed, [expr.ty, *(getattr(operand, "ty", None) for operand in getattr(expr, "args", ()))]))


def numbers_of(builder: relax.BlockBuilder, expr: Any) -> npt.NDArray[Any] | None:
    """Of a constant, or of a variable that is bound to one; None for anything else."""
    value = builder.lookup_binding(expr) if isinstance(expr, relax.Var) else expr
    return numbers_in(value.value) if is_constant(value) else None


def operator_of(value: Any) -> str:
    """The name of the Relax operator that a call calls, without `relax.`; empty for any other expression."""
    return str(getattr(getattr(value, "op", None), "name", "")).removeprefix("relax.")


def operands_of(expr: Any) -> Iterable[Any]:
    """What a call, a tuple or one of its fields is made of."""
    if isinstance(expr, relax.Tuple):
        return expr.fields
    if isinstance(expr, relax.TupleGetItem):
        return [expr.tuple_value]
    return expr.args if isinstance(expr, tvm.ir.Call) else []


def bound_call(builder: relax.BlockBuilder, expr: Any, name: str) -> Any | None:
    """The call of the operator `name` that a variable is bound to; None for any other expression."""
    value = builder.lookup_binding(expr) if isinstance(expr, relax.Var) else None
    return value if operator_of(value) == name else None


def used_once(function: Any) -> set[Any]:
    """The variables of dataflow blocks that exactly one other variable is computed from."""
    chains = (relax.analysis.udchain(block) for block in function.body.blocks if isinstance(block, relax.DataflowBlock))
    return {
        var for users in chains for var, made in users.items() if isinstance(var, relax.DataflowVar) and len(made) == 1
    }


def relax_functions(mod: tvm.IRModule) -> dict[Any, Any]:
    """The Relax functions of a module by their variables."""
    return {name: function for name, function in mod.functions.items() if isinstance(function, relax.Function)}


def called_functions(mod: tvm.IRModule) -> list[Any]:
    """The variables of `main` and of all Relax functions that it calls, each behind those that it calls itself."""
    functions = relax_functions(mod)
    found: dict[Any, None] = {}

    def visit(name: Any) -> None:
        called: list[Any] = []

        def note(expr: Any) -> None:
            if isinstance(expr, tvm.ir.GlobalVar) and expr in functions:
                called.append(expr)

        relax.analysis.post_order_visit(functions[name], note)
        for each in called:
            if each not in found:
                visit(each)
        found[name] = None

    visit(mod.get_global_var("main"))
    return list(found)


def operators_in(mod: tvm.IRModule) -> set[str]:
    """The names of the operators that a module's Relax functions call."""
    return {operator_of(call) for each in relax_functions(mod).values() for call in parts_of(each, relax.Call)}


def bindings_of(function: Any) -> list[Any]:
    """All bindings of a Relax function, in order."""
    return [binding for block in function.body.blocks for binding in block.bindings]


def is_scheduled(function: Any) -> bool:
    """Whether a TIR function is marked as scheduled."""
    return bool(function.attrs and function.attrs.get(_SCHEDULED, False))


def finished_kernel(sch: Any) -> Any:
    """The kernel of a schedule as one that nothing is fused with, nor scheduled again."""
    return sch.mod["main"].without_attr("global_symbol").with_attrs({**OPAQUE, _SCHEDULED: True})


def legalized_by_tvm(builder: relax.BlockBuilder, call: Any) -> Any:
    """The call as TVM itself legalizes it."""
    return call.op.get_attr("FLegalize")(builder, call)


def rewritten(mod: tvm.IRModule, rewriter: Any) -> tvm.IRModule:
    """The module with all Relax functions rewritten by `rewriter`, a PyExprMutator of its clone."""
    for name, function in relax_functions(mod).items():
        rewriter.builder_.update_func(name, rewriter.visit_expr(function))
    return rewriter.builder_.get()


def bits_of(value: Any) -> int:
    """The size of a tensor of fixed shape."""
    return prod(shape_of(value)) * int(tvm.DataType(str(value.ty.dtype)).bits)


def element_bytes(dtype: Any) -> int:
    """Bytes of an element of TVM's type."""
    return ceil(tvm_ffi.dtype(str(dtype)).bits / 8)


def is_constant(expr: Any) -> bool:
    """Whether it is a tensor of known numbers."""
    return isinstance(getattr(expr, "value", None), tvm.runtime.Tensor)


def constant_of(numbers: npt.NDArray[Any]) -> tvm.ir.Constant:
    """A constant of the array's own type: without a type, TVM makes 32 bits of 64."""
    return kept(numbers)


def _is_fixed(ty: Any) -> bool:
    if hasattr(ty, "fields"):  # of a tuple
        return all(map(_is_fixed, ty.fields))
    if not isinstance(ty, relax.TensorType):
        return True
    return isinstance(ty.shape, relax.ShapeExpr) and all(isinstance(dim, tvm.tirx.IntImm) for dim in ty.shape)


def type_text(kind: Any) -> str:
    """The type of a value as users know it: `float32 [1, 3]`, with `?` for a size that is not known."""
    if isinstance(kind, relax.TupleType):
        return f"({', '.join(map(type_text, kind.fields))})"
    if not isinstance(kind, relax.TensorType):
        return "no tensor"
    dims = kind.shape if isinstance(kind.shape, relax.ShapeExpr) else ["?"] * max(0, kind.ndim)
    return f"{kind.dtype} [{', '.join(str(getattr(dim, 'value', '?')) for dim in dims)}]"


# From which node of a model's file each binding of its entry comes, kept in the module until it is lowered.

_ORIGINS = "fractune.origins"


def with_origins(mod: tvm.IRModule, origins: Sequence[tuple[Any, str]]) -> tvm.IRModule:
    """The module with an attribute that says, of each binding of `main`, which node of the file it comes from.
    `origins`: the values of the nodes' outputs, in the order of the nodes, each with a text for its node.
    """
    texts: list[str] = []
    known = dict(origins)
    bindings = bindings_of(mod["main"])
    following = ""
    for binding in reversed(bindings):
        following = known.get(binding.var) or known.get(binding.value) or following
        texts.append(following)
    return mod.with_attr(_ORIGINS, texts[::-1])


def without_origins(mod: tvm.IRModule) -> tvm.IRModule:
    return mod.without_attr(_ORIGINS) if mod.attrs and _ORIGINS in mod.attrs else mod


def origins_of(mod: tvm.IRModule) -> list[str]:
    """By binding of `main`: the text for its node. Empty where nothing is known."""
    return [str(text) for text in mod.attrs[_ORIGINS]] if mod.attrs and _ORIGINS in mod.attrs else []
