"""The operator of a Relax module that no kernel computes. TVM's error names neither the operator nor its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tvm
from tvm import relax

from fractune_workers.children.rewriting.expressions import relax_functions, type_text

_PREFIX = "relax."


def why_unlowered(mod: tvm.IRModule, target: tvm.target.Target) -> str:
    """The reason and a remedy for a module whose lowering has failed: each operator is lowered alone."""
    for call in _calls(mod):
        alone = _alone(call)
        try:
            with target:
                relax.transform.LegalizeOps(enable_warning=False)(alone)
        except Exception:  # noqa: BLE001  whatever it is, it is the operator's
            given = ", ".join(type_text(each.ty) for each in alone["main"].params)
            name = str(call.op.name).removeprefix(_PREFIX)
            return f"no kernel computes {name} of {given or 'constants'}; export it with other shapes or types"
    return "no kernels can be made of its operators; export it with other shapes or types"


def _calls(mod: tvm.IRModule) -> Iterator[Any]:
    for function in relax_functions(mod).values():
        for block in function.body.blocks:
            for binding in block.bindings:
                if isinstance(binding.value, relax.Call) and isinstance(binding.value.op, tvm.ir.Op):
                    yield binding.value


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
