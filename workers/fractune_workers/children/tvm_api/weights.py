"""Weights apart from code: a compiled variant takes them as arguments, so that all share one copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.bundles import ALIGNMENT_BYTES
from fractune_workers.children.tvm_api.arrays import numpy_dtype

_SMALLEST = 16
"""Constants of fewer elements stay in the code, where the compiler can see their values"""


def lift_weights(mod: tvm.IRModule) -> tuple[tvm.IRModule, list[tvm.runtime.Tensor]]:
    """A module whose `main` takes its weights after its inputs, and these weights in that order.

    The parameters are named `weight0`, `weight1` and so on. A constant used twice is one weight.
    """
    lifter = _Lifter(mod)
    main = mod["main"]
    body = lifter.visit_expr(main.body)
    params = [*main.params, *lifter.params]
    lifted = mod.clone()
    lifted.update_func(
        lifted.get_global_var("main"),
        relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs),
    )
    return lifted, lifter.weights


def pack_weights(weights: Sequence[Any]) -> tuple[bytes, list[dict[str, Any]]]:
    """All weights in one run of bytes, each from a multiple of ALIGNMENT_BYTES on, and where each of them lies."""
    packed, layout = bytearray(), []
    for weight in weights:
        packed.extend(bytes(-len(packed) % ALIGNMENT_BYTES))
        payload = weight.numpy().tobytes()
        shape = [int(dim) for dim in weight.shape]
        layout.append({"dtype": str(weight.dtype), "shape": shape, "offset": len(packed), "size": len(payload)})
        packed.extend(payload)
    return bytes(packed), layout


def unpack_weights(
    packed: bytes, layout: Sequence[Mapping[str, Any]], place: Callable[[Any], tvm.runtime.Tensor]
) -> list[tvm.runtime.Tensor]:
    """The weights as they were before `pack_weights`, each array put into a tensor by `place`."""
    return [place(_array(packed, weight)) for weight in layout]


def _array(packed: bytes, weight: Mapping[str, Any]) -> Any:
    payload = packed[weight["offset"] : weight["offset"] + weight["size"]]
    return np.frombuffer(payload, numpy_dtype(weight["dtype"])).reshape(weight["shape"])


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod)
        self.weights: list[tvm.runtime.Tensor] = []
        self.params: list[relax.Var] = []
        self._seen: dict[Any, relax.Var] = {}

    def visit_generic_const_(self, op: Any) -> Any:
        if not hasattr(op.value, "shape") or math.prod(op.value.shape) < _SMALLEST:
            return op
        known = self._seen.get(op.value)
        if known is None:
            known = relax.Var(f"weight{len(self.params)}", op.ty)
            self._seen[op.value] = known
            self.params.append(known)
            self.weights.append(op.value)
        return known
