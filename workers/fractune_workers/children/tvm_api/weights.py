"""Weights apart from code: a compiled variant takes them as arguments, so that all share one copy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.files.manifests import ALIGNMENT_BYTES
from fractune_workers.children.tvm_api.arrays import numpy_dtype

_SMALLEST = 16
"""Constants of fewer elements stay in the code, where the compiler can see their values"""


@dataclass(frozen=True)
class Lifted:
    """A module whose `main` takes its weights after its inputs."""

    module: tvm.IRModule
    weights: list[int]
    """in their order: where in `LiftedWeights.tensors` each is"""


class LiftedWeights:
    """The weights of several modules that are variants of one model; a weight of several modules is kept once."""

    def __init__(self) -> None:
        self.tensors: list[tvm.runtime.Tensor] = []
        self._places: dict[Any, int] = {}

    def lifted(self, mod: tvm.IRModule) -> Lifted:
        """The module with its constants as parameters of `main`, named `weight0`, `weight1` and so on."""
        lifter = _Lifter(mod)
        main = mod["main"]
        body = lifter.visit_expr(main.body)
        params = [*main.params, *lifter.params.values()]
        lifted = mod.clone()
        lifted.update_func(
            lifted.get_global_var("main"),
            relax.Function(params, body, main.ret_ty, main.is_pure, main.attrs),
        )
        return Lifted(lifted, [self._place(tensor) for tensor in lifter.params])

    def _place(self, tensor: tvm.runtime.Tensor) -> int:
        if tensor not in self._places:
            self._places[tensor] = len(self.tensors)
            self.tensors.append(tensor)
        return self._places[tensor]


def pack_weights(weights: Sequence[Any]) -> tuple[bytes, list[dict[str, Any]]]:
    """All weights in one run of bytes, each at a multiple of ALIGNMENT_BYTES, and the place of each."""
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
        self.params: dict[Any, relax.Var] = {}
        """by the constant that it stands for; one that is used twice is one parameter"""

    def visit_generic_const_(self, op: Any) -> Any:
        if not hasattr(op.value, "shape") or math.prod(op.value.shape) < _SMALLEST:
            return op
        if op.value not in self.params:
            self.params[op.value] = relax.Var(f"weight{len(self.params)}", op.ty)
        return self.params[op.value]
