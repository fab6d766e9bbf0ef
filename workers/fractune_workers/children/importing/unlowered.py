"""The operator of a Relax module that no kernel computes. TVM's error names neither the operator nor its tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from fractune_workers.children.rewriting.expressions import relax_functions, type_text
from fractune_workers.children.rewriting.origins import bindings_of, origins_of

_PREFIX = "relax."


def why_unlowered(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """The reason and a remedy for a module whose lowering has failed: each operator is lowered alone."""
    origins = origins_of(mod)
    for call, at in _calls(mod):
        alone = _alone(call)
        try:
            with target:
                relax.transform.LegalizeOps(enable_warning=False)(alone)
        except Exception:  # noqa: BLE001  whatever it is, it is the operator's
            given = ", ".join(type_text(each.ty) for each in alone["main"].params)
            name = str(call.op.name).removeprefix(_PREFIX)
            origin = origins[at] if at < len(origins) else ""
            return f"{origin}no kernel computes {name} of {given or 'constants'}; export it with other shapes or types"
    return "no kernels can be made of its operators; export it with other shapes or types"


def _calls(mod: tvm.IRModule) -> Iterator[tuple[Any, int]]:
    """The calls of operators. Of those in `main`: the number of the binding, else a number beyond."""
    for name, function in relax_functions(mod).items():
        bindings = bindings_of(function)
        for at, binding in enumerate(bindings):
            if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.Op):
                yield binding.value, at if name.name_hint == "main" else sys.maxsize


def _alone(call: Any) -> tvm.IRModule:
    """A module of the call alone, whose variables are its inputs."""
    inputs = {
        each: relax.Var(f"input{at}", each.ty) for at, each in enumerate(call.args) if isinstance(each, relax.Var)
    }
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs.values())):
        given = [inputs.get(each, each) if isinstance(each, relax.Var) else each for each in call.args]
        builder.emit_func_output(builder.emit(relax.Call(call.op, given, call.attrs, call.ty_args)))
    return builder.get()
