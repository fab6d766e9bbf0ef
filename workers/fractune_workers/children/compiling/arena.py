"""Models without control flow: a function that calls their kernels one after the other, over one arena.

All sizes of such a model are known, so the place of each tensor is too, and TVM's virtual machine has nothing left to
decide. The machine code has two functions for each entry in its place. `main` takes the address of the arguments of all
calls, which the runtime prepares once. `main_plan` gives the text of the plan that says what they are: code and plan
cannot come apart. The entry for caches has a plan of its own: its buffers may have more rows than the plan says.

Tensors that are never needed at the same time share memory. The largest get their places first, each at the lowest
address that is free while it is needed (greedy by size, Pisarchyk and Lee, 2020).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.tirx import PrimFunc

from fractune_core.files.manifests import ALIGNMENT_BYTES, ITEM_BYTES, MAIN, MAIN_CACHED, MAIN_LAST
from fractune_core.files.plans import ARENA, Plan, PlannedCache, PlannedCall, PlannedConstant, PlannedTensor, plan_name
from fractune_workers.children.compiling.cache_in_place import rows_of
from fractune_workers.children.rewriting.concats import caches_of, counts_unused, tells_token
from fractune_workers.children.rewriting.expressions import is_constant, operator_of

_ENTRIES = {MAIN, MAIN_CACHED, MAIN_LAST}
_MONOTONIC = 1
"""Linux's number for the clock that no one sets"""
_TIMESPEC_BYTES = 16
_PACKED = "__tvm_ffi_"
"""how the symbols of functions in TVM's calling convention begin"""
_SAME_MEMORY = ("reshape", "memory.view", "memory.ensure_zero_offset")
"""operators that give a tensor over the memory of their first operand"""


class _NotStraight(Exception):
    """The model has control flow, or sizes that depend on data."""


@dataclass(frozen=True)
class _View:
    """A tensor over a part of some memory."""

    memory: Any
    """the variable of a parameter or of an allocation, or the bytes of a constant"""
    offset: int
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    def placed(self, place: int = 0, begin: int = 0) -> PlannedTensor:
        return PlannedTensor(self.dtype, self.shape, place, begin + self.offset)


@dataclass(frozen=True)
class _Call:
    kernel: str
    arguments: list[_View]


def in_arena(mod: tvm.IRModule) -> tvm.IRModule | None:
    """The module of the kernels that its entries call, of functions that call them in order, and of their plans.

    Its tensors must be allocated already, and not planned. None for a model with branches, loops, or sizes that depend
    on data: it needs the virtual machine.
    """
    names = {str(var.name_hint) for var in mod.functions}
    made, called = dict[str, Any](), set[str]()
    try:
        for entry in sorted(names & _ENTRIES):
            line = _Line(mod, entry)
            made.update(_entry_of(line, entry))
            called.update(call.kernel for call in line.calls)
    except _NotStraight:
        return None
    if names & made.keys() - _ENTRIES:
        return None
    functions = {var: each for var, each in mod.functions.items() if str(var.name_hint) in called}
    functions.update({tvm.ir.GlobalVar(name): each for name, each in made.items()})
    return tvm.IRModule({var: each.with_attr("global_symbol", var.name_hint) for var, each in functions.items()})


def with_parameters(mod: tvm.IRModule, finalized: tvm.IRModule) -> tvm.IRModule:
    """A module for TVM's virtual machine, with a function that gives the parameters of `main` in `mod`."""
    line = _Line(mod, MAIN)
    plan = Plan(0, (), tuple(view.placed() for view in line.params), (), (), ())
    name = plan_name(MAIN)
    text = _text(json.dumps(plan.to_json(), separators=(",", ":")))
    of_host = text.with_attrs({"global_symbol": name, "tirx.is_host_func": 1})
    return tvm.IRModule({**finalized.functions, tvm.ir.GlobalVar(name): of_host}, attrs=finalized.attrs)


def _entry_of(line: _Line, entry: str) -> dict[str, Any]:
    """The function of an entry, that of its plan, and kernels that copy outputs without memory of their own."""
    outputs, copies = line.outputs(), dict[str, Any]()
    given = dict[Any, int]()
    for number, output in enumerate(outputs):
        whole = _View(output.memory, 0, output.dtype, output.shape)
        if output == whole and line.sizes.get(output.memory) == output.size and output.memory not in given:
            given[output.memory] = number
            continue
        memory = relax.Var(f"output{number}", relax.TensorType(output.shape, output.dtype))
        given[memory] = number
        name = f"{entry}_output{number}_copy"
        copies[name] = _copy(output)
        line.calls.append(_Call(name, [output, _View(memory, 0, output.dtype, output.shape)]))
    plan = _plan(line, outputs, given)
    text = json.dumps(plan.to_json(), separators=(",", ":"))
    return {**copies, entry: _entry(line.calls), plan_name(entry): _text(text)}


class _Line:
    """The calls of an entry in their order. Raises _NotStraight if there is anything else to do."""

    def __init__(self, mod: tvm.IRModule, entry: str) -> None:
        self._mod = mod
        self._main = mod[entry]
        self._rows = rows_of(self._main)
        self._known: dict[Any, Any] = {}
        """by variable: a view, or a list of them"""
        self.calls: list[_Call] = []
        self.unused: list[_View] = []
        self.tokens: list[_View] = []
        """the numbers that the caller of an entry for caches writes: rows that are not in use, and the last token's"""
        self.params = [self._own_memory(param) for param in self._main.params]
        self.sizes: dict[Any, int] = {}
        """bytes of each allocation"""
        self.caches = [
            PlannedCache(cache.input, cache.axis - len(self.params[cache.input].shape))
            for cache in (caches_of(mod) if self._rows else ())
        ]

    def outputs(self) -> list[_View]:
        """The tensors that the model returns. Call it once."""
        for block in self._main.body.blocks:
            for binding in block.bindings:
                self._follow(binding.var, getattr(binding, "value", None))
        return list(_flat(self._value(self._main.body.body)))

    def _own_memory(self, var: Any) -> _View:
        view = self._known[var] = _View(var, 0, str(var.ty.dtype), self._shape(var))
        return view

    def _shape(self, var: Any) -> tuple[int, ...]:
        """That of a tensor, where a buffer for a cache has the rows that the entry uses."""
        shape = getattr(var.ty, "shape", None)
        if not isinstance(shape, relax.ShapeExpr) or str(var.ty.dtype) not in ITEM_BYTES:
            raise _NotStraight
        dims = [self._rows if isinstance(dim, tirx.Var) else dim for dim in shape]
        if not all(isinstance(dim, int | tirx.IntImm) for dim in dims):
            raise _NotStraight
        return tuple(int(dim) for dim in dims if dim is not None)

    def _follow(self, var: Any, value: Any) -> None:
        name = operator_of(value)
        if name == "builtin.alloc_tensor":
            self.sizes[var] = self._own_memory(var).size
        elif name in _SAME_MEMORY:
            self._known[var] = self._view(var, value)
        elif name == "null_value":  # of a view: the type stays
            self._known[var] = None
        elif isinstance(value, relax.Call):
            self._call(var, value)
        else:
            self._known[var] = self._value(value)

    def _view(self, var: Any, value: Any) -> _View:
        of = self._value(value.args[0])
        if not isinstance(of, _View):
            raise _NotStraight
        further = value.args[3] if operator_of(value) == "memory.view" else 0
        return _View(
            of.memory, of.offset + int(getattr(further, "value", further)), str(var.ty.dtype), self._shape(var)
        )

    def _call(self, var: Any, value: Any) -> None:
        is_kernel = isinstance(value.op, tvm.ir.GlobalVar) and isinstance(self._mod[value.op], PrimFunc)
        if not is_kernel or not isinstance(var.ty, relax.TupleType) or var.ty.fields:
            raise _NotStraight
        arguments = [view for each in value.args for view in _flat(self._value(each))]
        for tells, told in ((counts_unused, self.unused), (tells_token, self.tokens)):
            if self._rows and tells(self._mod[value.op]):
                told.append(arguments[-1])
                return
        self.calls.append(_Call(str(value.op.name_hint), arguments))

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return [self._value(field) for field in expr.fields]
        if isinstance(expr, relax.TupleGetItem):
            return self._value(expr.tuple_value)[expr.index]
        if is_constant(expr):
            return _View(expr.value.numpy().tobytes(), 0, str(expr.value.dtype), tuple(map(int, expr.value.shape)))
        if expr in self._known:
            return self._known[expr]
        raise _NotStraight


def _flat(value: Any) -> Iterator[_View]:
    if isinstance(value, list):
        for each in value:
            yield from _flat(each)
    else:
        yield value


def _plan(line: _Line, outputs: Sequence[_View], given: dict[Any, int]) -> Plan:
    """`given`: the number of the output by the memory that it is computed in."""
    arguments = [each for call in line.calls for each in call.arguments]
    uses = dict[Any, list[int]]()
    for number, call in enumerate(line.calls):
        for each in call.arguments:
            uses.setdefault(each.memory, []).append(number)
    constants = [memory for memory in uses if isinstance(memory, bytes)]
    numbers = [*line.unused, *line.tokens]
    told = [each.memory for each in numbers]
    if any((each.dtype, each.shape) != ("int64", (1,)) or each.memory in given for each in numbers):
        raise _NotStraight
    own = [memory for memory in uses if memory in line.sizes and memory not in (*given, *told)]
    needs = [_Need(line.sizes[memory], uses[memory][0], uses[memory][-1]) for memory in own]
    lengths = [*map(len, constants), *(line.sizes[memory] for memory in told)]
    always = [_Need(length, 0, len(line.calls)) for length in lengths]
    offsets, arena_bytes = _offsets([*needs, *always])
    begins = dict(zip([*own, *constants, *told], offsets, strict=True))
    places = {view.memory: number for number, view in enumerate(line.params, ARENA + 1)}
    places.update({memory: ARENA + 1 + len(line.params) + number for memory, number in given.items()})
    tensors = {view: number for number, view in enumerate(dict.fromkeys(arguments))}
    return Plan(
        arena_bytes,
        tuple(PlannedConstant(begins[constant], constant.hex()) for constant in constants),
        tuple(view.placed() for view in line.params),
        tuple(PlannedTensor(view.dtype, view.shape) for view in outputs),
        tuple(view.placed(places.get(view.memory, ARENA), begins.get(view.memory, 0)) for view in tensors),
        tuple(PlannedCall(call.kernel, tuple(tensors[each] for each in call.arguments)) for call in line.calls),
        tuple(line.caches),
        tuple(begins[each.memory] for each in line.unused),
        tuple(begins[each.memory] for each in line.tokens),
    )


@dataclass(frozen=True)
class _Need:
    """Memory, and the first and the last call that need it."""

    size: int
    first: int
    last: int


def _offsets(needs: Sequence[_Need]) -> tuple[list[int], int]:
    """The offset of each in the arena, at multiples of ALIGNMENT_BYTES, and the arena's size."""
    placed = list[tuple[int, int, _Need]]()
    """begin and end, by begin"""
    offsets, size = [0] * len(needs), 0
    for number in sorted(range(len(needs)), key=lambda number: -needs[number].size):
        need, begin = needs[number], 0
        room = need.size + -need.size % ALIGNMENT_BYTES
        for taken, free, other in placed:
            if other.first <= need.last and need.first <= other.last:
                if taken - begin >= room:
                    break
                begin = max(begin, free)
        offsets[number] = begin
        placed.append((begin, begin + room, need))
        placed.sort(key=lambda each: each[:2])
        size = max(size, begin + room)
    return offsets, size


def _entry(calls: Sequence[_Call]) -> Any:
    """The function of all calls. It takes the address of their arguments, with room for a result behind those of each
    call. It also takes 0, or an address for the times of a clock: before each call, and after the last one.
    """
    arguments, times = tirx.Var("arguments", "handle"), tirx.Var("times", "int64")
    body, begin, known = list[Any](), 0, set[str]()
    for number, call in enumerate(calls):
        # TVM declares the symbol at the first call, and finds it by the kernel's name at others.
        symbol = call.kernel if call.kernel in known else _PACKED + call.kernel
        known.add(call.kernel)
        end = begin + len(call.arguments)
        callee = [tvm.ir.StringImm(symbol), arguments, begin, end]
        body += [
            _look(times, number),
            tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_call_cpacked_lowered", *callee)),
        ]
        begin = end + 1
    return PrimFunc([arguments, times], tirx.SeqStmt([*body, _look(times, len(calls))]), None)


def _look(times: Any, number: int) -> Any:
    clock = tirx.call_extern("int32", "clock_gettime", _MONOTONIC, times + _TIMESPEC_BYTES * number)
    return tirx.IfThenElse(times != 0, tirx.Evaluate(clock), None)


def _text(text: str) -> Any:
    """The function that returns the length of the text, and writes the text to an address that is not 0."""
    to, size = tirx.Var("to", "int64"), tirx.const(len(text), "int64")
    copied = tirx.Evaluate(tirx.call_extern("int64", "memcpy", to, tvm.ir.StringImm(text), size))
    body = tirx.SeqStmt([tirx.IfThenElse(to != 0, copied, None), tirx.Return(size)])
    return PrimFunc([to], body, tvm.ir.PrimType("int64"))


def _copy(view: _View) -> Any:
    source = te.placeholder(view.shape, view.dtype, name="source")
    return te.create_prim_func([source, te.compute(view.shape, lambda *at: source[at], name="copy")])
