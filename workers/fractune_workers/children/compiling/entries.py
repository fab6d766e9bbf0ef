"""A second entry of a model, which computes its outputs in memory of the caller.

`main` allocates its outputs. `main_into` takes tensors for them after the inputs and weights, and returns nothing.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from fractune_core.files.manifests import MAIN_INTO
from fractune_workers.children.rewriting.expressions import has_fixed_shapes, operator_of, shape_of

_ALLOCATION = "builtin.alloc_tensor"
_VIEW = "reshape"
"""a tensor of another shape over the same memory"""


def with_entry_for_outputs(mod: tvm.IRModule) -> tvm.IRModule:
    """The module with `main_into`. Its tensors must be allocated already, and not planned. Unchanged if `main`
    has branches, or an output that it does not allocate: an input, or a tensor whose shape depends on data.
    """
    main = mod["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    values = {binding.var: binding.value for binding in bindings}
    outputs = list(tensors_of(main.body.body, values))
    allocations = [allocation_of(output, values) for output in outputs]
    has_branches = any(isinstance(value, relax.If) for value in values.values())
    if None in allocations or len(set(allocations)) < len(allocations) or not allocations or has_branches:
        return mod
    params = [relax.Var(f"output{at}", output.ty) for at, output in enumerate(outputs)]
    given = dict(zip(allocations, params, strict=True))
    placed = [_given(binding, given) for binding in bindings]
    returned = relax.Tuple([])
    body = relax.SeqExpr([relax.BindingBlock(placed)], returned)
    into = relax.Function([*main.params, *params], body, relax.TupleType([]), main.is_pure, main.attrs)
    changed = mod.clone()
    # Copies of the variables: no two functions may bind the same ones.
    changed[MAIN_INTO] = relax.utils.copy_with_new_vars(into).with_attr("global_symbol", MAIN_INTO)
    return relax.transform.Normalize()(changed)


def _given(binding: Any, given: dict[Any, Any]) -> Any:
    """The binding in the second function. The caller's tensor replaces an allocation, in the allocation's shape."""
    param, value = given.get(binding.var), binding.value
    if param is None:
        # TVM plans memory by calls, so no call may be in two functions.
        own = relax.Call(value.op, value.args, value.attrs, value.ty_args) if isinstance(value, relax.Call) else value
        return relax.VarBinding(binding.var, own) if isinstance(binding, relax.VarBinding) else binding
    is_same = shape_of(binding.var) == shape_of(param)
    return relax.VarBinding(binding.var, param if is_same else relax.op.reshape(param, binding.var.ty.shape))


def tensors_of(result: Any, values: dict[Any, Any]) -> Any:
    """The tensors of a result: one, or a (nested) tuple of them."""
    while result in values and isinstance(values[result], relax.Var | relax.Tuple):
        result = values[result]
    if isinstance(result, relax.Tuple):
        for field in result.fields:
            yield from tensors_of(field, values)
    else:
        yield result


def allocation_of(output: Any, values: dict[Any, Any]) -> Any | None:
    """The variable of the allocation whose memory the output is."""
    while output in values:
        value = values[output]
        name = operator_of(value)
        if name == _ALLOCATION:
            return output if has_fixed_shapes(value) else None
        output = value.args[0] if name == _VIEW else value
    return None
