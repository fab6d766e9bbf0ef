"""Weights apart from code: a compiled variant takes them as arguments, so that all share one copy."""

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from fractune_core.files.manifests import ALIGNMENT_BYTES
from fractune_workers.children.rewriting.expressions import called_functions, element_bytes
from fractune_workers.children.tvm_api.scratch_tensors import pieces_of

_SMALLEST = 16
"""Constants of fewer elements stay in the code, where the compiler can see their values"""


@dataclass(frozen=True)
class Lifted:
    """A module whose `main` takes its weights after its inputs."""

    module: tvm.IRModule
    weights: list[int]
    """in their order: where in `LiftedWeights.tensors` each is"""


class LiftedWeights:
    """The weights of several modules that are variants of one model; equal weights are kept once."""

    def __init__(self) -> None:
        self.tensors: list[tvm.runtime.Tensor] = []
        self._known: dict[Any, int] = {}
        """by tensor: its place"""
        self._places: dict[Any, int] = {}
        """by type, shape and digest"""

    def lifted(self, mod: tvm.IRModule) -> Lifted:
        """The module with its constants as parameters of `main`, named `weight0`, `weight1` and so on. Functions that
        `main` calls take theirs from their callers.
        """
        lifter = _Lifter(mod)
        for name in called_functions(mod):
            lifter.lift(name)
        return Lifted(lifter.builder_.get(), [self._place(tensor) for tensor in lifter.constants])

    def _place(self, tensor: tvm.runtime.Tensor) -> int:
        if tensor not in self._known:
            digest = hashlib.sha256()
            for piece in pieces_of(tensor):
                digest.update(piece)
            key = str(tensor.dtype), tuple(map(int, tensor.shape)), digest.digest()
            if key not in self._places:
                self._places[key] = len(self.tensors)
                self.tensors.append(tensor)
            self._known[tensor] = self._places[key]
        return self._known[tensor]


class PackedWeights(Iterable[bytes | memoryview]):
    """All weights in one run of bytes, each at a multiple of ALIGNMENT_BYTES, piece by piece."""

    def __init__(self, weights: Sequence[Any]) -> None:
        self._weights = weights
        self.layout: list[dict[str, Any]] = []
        """the place of each"""
        end = 0
        for weight in weights:
            shape = [int(dim) for dim in weight.shape]
            size = math.prod(shape) * element_bytes(weight.dtype)
            offset = end + -end % ALIGNMENT_BYTES
            self.layout.append({"dtype": str(weight.dtype), "shape": shape, "offset": offset, "size": size})
            end = offset + size

    def __iter__(self) -> Iterator[bytes | memoryview]:
        end = 0
        for weight, place in zip(self._weights, self.layout, strict=True):
            yield bytes(place["offset"] - end)
            yield from pieces_of(weight)
            end = place["offset"] + place["size"]


@mutator
class _Lifter(PyExprMutator):
    def __init__(self, mod: tvm.IRModule) -> None:
        super().__init__(mod.clone())
        self._mod = mod
        self.constants: dict[Any, Any] = {}
        """of the last function that was lifted: by tensor, the constant"""
        self._params: dict[Any, relax.Var] = {}
        """by the tensor that it stands for; one that is used twice is one parameter"""
        self._lifted: dict[Any, tuple[Any, list[Any]]] = {}
        """by the variable of a function: that of the lifted one, and the constants that it takes"""

    def lift(self, name: Any) -> None:
        """Lift a function behind those that it calls."""
        function = self._mod[name]
        self.constants, self._params = {}, {}
        body = self.visit_expr(function.body)
        params = [*function.params, *self._params.values()]
        lifted = relax.Function(params, body, function.ret_ty, function.is_pure, function.attrs)
        if name.name_hint == "main":
            self.builder_.update_func(name, lifted)
        else:
            made = self.builder_.add_func(lifted, name.name_hint)
            self._lifted[name] = made, list(self.constants.values())

    def visit_call_(self, op: Any) -> Any:
        visited = super().visit_call_(op)
        if op.op not in self._lifted:
            return visited
        function, constants = self._lifted[op.op]
        return relax.Call(function, [*visited.args, *map(self.visit_expr, constants)], visited.attrs, visited.ty_args)

    def visit_generic_const_(self, op: Any) -> Any:
        if not hasattr(op.value, "shape") or math.prod(op.value.shape) < _SMALLEST:
            return op
        if op.value not in self._params:
            self._params[op.value] = relax.Var(f"weight{len(self._params)}", op.ty)
            self.constants[op.value] = op
        return self._params[op.value]
