"""The size of a module, counted before a pass folds its constants or lowers it; the memory of one inference by its
types. A malformed module is refused.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from fractune_core.errors import BadModel, first_line
from fractune_workers.children.importing.limits import MOST_NODES, ComputedConstants, Limits, check_tensor
from fractune_workers.children.rewriting.expressions import element_bytes, operands_of

_ANALYZER = tvm.sym.Analyzer()
_MOST_FIELDS = 4 * MOST_NODES
"""Tensors in the types of all values: a tuple may hold a tuple twice, which holds another twice"""
_OPEN_SIZE = "has a tensor whose size is known only when the model runs; export it with fixed shapes"


def check_sizes(mod: tvm.IRModule, limits: Limits) -> None:
    """Raises BadModel for too many operators, for a too large tensor, for too large constants, and for an inference
    that needs too much memory.
    """
    walk = _Walk(limits)
    for name, function in mod.functions.items():
        if isinstance(function, relax.Function):
            walk.function(function, f"function '{name.name_hint}'")
        elif isinstance(function, tvm.tirx.PrimFunc):
            _check_buffers(function, f"function '{name.name_hint}'", limits)


def refuse_malformed(mod: tvm.IRModule, *, imported: bool) -> None:
    """Raises BadModel for nested calls and for values without a type: their results are not counted. `imported`:
    whether an importer made the module. Then the reason is a size that depends on numbers.

    TVM looks at each type as a tree: count the parts of types before.
    """
    try:
        relax.analysis.well_formed(mod)
    except Exception as error:
        why = f"is not a well-formed IRModule: {first_line(error)}; write it with tvm.ir.save_json"
        raise BadModel(_OPEN_SIZE if imported else why) from error


def _check_buffers(function: Any, name: str, limits: Limits) -> None:
    """Check a function of loops. Its type does not show the buffers that it takes and allocates."""
    buffers: dict[Any, None] = {}

    def note(var: Any) -> None:
        if isinstance(var.ty, tvm.tirx.BufferType):
            buffers[var] = None

    tvm_ffi.structural_walk(function, (tvm.ir.Var, note))
    sizes = [_buffer_bytes(var.ty, f"buffer '{var.name}' of {name}") for var in buffers]
    limits.check_inference(sum(sizes), f"{name} has buffers of")


def _buffer_bytes(buffer: Any, what: str) -> int:
    width = element_bytes(buffer.dtype)
    size = check_tensor(_fixed(buffer.shape), width, what)
    outermost = [*buffer.shape[:1], *buffer.strides[:1]] if buffer.strides else []
    return max(size, check_tensor(_fixed(outermost), width, f"{what}, as its strides place it,"))


class _Walk:
    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._computed = ComputedConstants(limits)
        self._nodes = 0
        self._fields = 0
        self._constant: dict[Any, int] = {}
        """bytes of the variables that follow from constants alone, until they are counted as kept"""
        self._kept = 0
        """bytes of weights, and of computed constants that other values are computed from"""
        self._weights: set[Any] = set()
        self._needed = 0
        """bytes of an inference in the functions so far: one may call another"""

    def function(self, function: Any, name: str) -> None:
        self._name = name
        self._memory = InferenceMemory()
        for param in function.params:
            self._memory.keep(self._bytes(param.ty, f"input '{param.name}'"))
        peak, at = self._memory.peak(self._sequence(function.body))
        self._needed += peak
        what = f"up to {at} in {name}, an inference holds inputs, weights and results of"
        self._limits.check_inference(self._needed, what)

    def _sequence(self, body: Any) -> list[Any]:
        """Count the values that are computed there; return the variables of the result."""
        if not isinstance(body, relax.SeqExpr):
            self._is_constant(body)
            return list(_variables(body))
        for block in body.blocks:
            for binding in block.bindings:
                self._binding(binding.var, binding.value)
        self._is_constant(body.body)
        results = list(_variables(body.body))
        self._keep_constants(results)
        return results

    def _keep_constants(self, read: Iterable[Any]) -> None:
        """Count the constants that are in the bundle, because values that are no constants are computed from them."""
        for var in read:
            if size := self._constant.get(var, 0):
                self._constant[var] = 0
                self._keep(size, f"'{var.name}'")

    def _keep(self, size: int, what: str) -> None:
        self._kept += size
        self._limits.check_kept(self._kept, f"up to {self._name}, {what}")

    def _binding(self, var: Any, value: Any) -> None:
        if isinstance(value, relax.Function):
            self._count()
            self._sequence(value.body)
            return
        what = f"'{var.name}' ({_operator(value)})"
        size = self._bytes(var.ty, what)
        is_constant = self._is_constant(value)  # counts the operators in it, before TVM looks at it as a tree
        read = list(_variables(value))
        if isinstance(value, relax.If):
            read += self._sequence(value.true_branch) + self._sequence(value.false_branch)
        self._memory.compute(var, read, size if isinstance(value, tvm.ir.Call) else 0, what)
        if not is_constant:
            self._keep_constants(read)
        else:
            self._constant[var] = size
            if isinstance(value, tvm.ir.Call):
                self._computed.take(size, what)

    def _is_constant(self, expr: Any) -> bool:
        """Whether a value follows from constants alone; counts the operators in it."""
        if isinstance(expr, relax.Var):
            return expr in self._constant
        if isinstance(expr, relax.If):
            return False
        if isinstance(expr, tvm.ir.Constant) and expr not in self._weights:
            self._weights.add(expr)
            size = self._bytes(expr.ty, "a weight")
            self._memory.keep(size)
            self._keep(size, "a weight")
        if isinstance(expr, relax.Tuple | relax.TupleGetItem | tvm.ir.Call):
            self._count()
        constant = [self._is_constant(operand) for operand in operands_of(expr)]
        return all(constant)

    def _count(self) -> None:
        self._nodes += 1
        self._limits.check_nodes(self._nodes, f"the module, up to {self._name},")

    def _bytes(self, ty: Any, what: str) -> int:
        return sum(check_tensor(*_shape_and_element_bytes(tensor), what) for tensor in self._tensors(ty))

    def _tensors(self, ty: Any) -> Iterator[Any]:
        self._fields += 1
        if self._fields > _MOST_FIELDS:
            raise BadModel(f"its values have more than {_MOST_FIELDS:,} tensors in all; tune a part of the model")
        if isinstance(ty, relax.TupleType):
            for field in ty.fields:
                yield from self._tensors(field)
        elif isinstance(ty, relax.TensorType):
            yield ty


@dataclass(frozen=True)
class _SizedValue:
    var: Hashable
    read: Sequence[Hashable]
    size: int
    """bytes; 0 for one that only names the memory of those that it reads"""
    what: str


class InferenceMemory:
    """The values of one function, in the order of computation. Each is kept until it is last read."""

    def __init__(self) -> None:
        self._kept = 0
        self._values: list[_SizedValue] = []

    def keep(self, size: int) -> None:
        """Count an input or a weight, which is there all the time."""
        self._kept += size

    def compute(self, var: Hashable, read: Sequence[Hashable], size: int, what: str) -> None:
        """Count a value that is computed from others; `size` 0 = it refers to the others, like a tuple of them."""
        self._values.append(_SizedValue(var, read, size, what))

    def peak(self, results: Sequence[Hashable]) -> tuple[int, str]:
        """The most bytes that exist at once, and the value that is computed then. `results` are never dropped."""
        ends = self._ends(results)
        dropped = [0] * (len(self._values) + 1)
        held, peak, at = self._kept, self._kept, "its inputs and weights"
        for place, value in enumerate(self._values):
            held += value.size
            if held > peak:
                peak, at = held, value.what
            dropped[ends.get(value.var, place)] += value.size
            held -= dropped[place]
        return peak, at

    def _ends(self, results: Sequence[Hashable]) -> dict[Hashable, int]:
        """By value, at which place it is last read; a result behind all places."""
        ends: dict[Hashable, int] = dict.fromkeys(results, len(self._values))
        for place, value in reversed(list(enumerate(self._values))):
            until = place if value.size else ends.get(value.var, place)
            for var in value.read:
                ends[var] = max(until, ends.get(var, until))
        return ends


def _variables(expr: Any) -> Iterator[Any]:
    """The variables that a value is computed from."""
    if isinstance(expr, relax.Var):
        yield expr
    for operand in operands_of(expr):
        yield from _variables(operand)


def _operator(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", type(value).__name__))


def _shape_and_element_bytes(tensor: Any) -> tuple[list[int], int]:
    """Dimensions (none where one is not fixed), and bytes of an element."""
    dims = tensor.shape if isinstance(tensor.shape, relax.ShapeExpr) else []
    return _fixed(dims), element_bytes(tensor.dtype)


def _fixed(dims: Iterable[Any]) -> list[int]:
    """Dimensions; none where one is not fixed. A dimension may be a product of numbers."""
    simplified = [_ANALYZER.simplify(dim) for dim in dims]
    fixed = [int(dim) for dim in simplified if isinstance(dim, tvm.tirx.IntImm)]
    return fixed if len(fixed) == len(simplified) else []
