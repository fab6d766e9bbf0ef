"""Arguments by which an operator quantizes its output, as its blocks show them."""

from __future__ import annotations

import math
from typing import Any

import tvm_ffi
from tvm import s_tir

SCALE, LOW, HIGH, STEP, QUANTIZED = "scale", "low", "high", "step", "quantized"
"""Roles of arguments: `clip(round(x / scale), low, high) * step` is the quantized output, or a part of it. There may be
several steps, and values are added.
"""
_ROUND, _SELECT = "tirx.nearbyint", "prim.if_then_else"
_LIMITS = {"Min": HIGH, "Max": LOW}


_Roles = dict[int, list[str]]


def quantizing_roles(mod: Any) -> _Roles:
    """The roles of arguments by their place; empty where the output is not quantized.

    The output is quantized where it is a rounded value, perhaps limited, times steps, with other values added. A limit,
    scale or step that is an argument of one element has a role, or two.
    """
    function = mod["main"]
    blocks: list[Any] = []
    tvm_ffi.structural_walk(function.body, (s_tir.SBlock, blocks.append))
    params = list(function.params)
    made = {block.writes[0].source: block for block in blocks if len(block.writes) == 1}
    found = _Finder(params, made).of_buffer(params[-1])
    return {} if found is None else {**found, len(params) - 1: [QUANTIZED]}


class _Finder:
    """Follows values back to a rounding. The methods return roles of arguments, None where no rounding is found."""

    def __init__(self, params: list[Any], made: dict[Any, Any]) -> None:
        self._params = params
        self._made = made
        """blocks by the buffer that they write"""
        self._known: dict[Any, _Roles | None] = {}

    def of_buffer(self, buffer: Any) -> _Roles | None:
        if buffer not in self._known:
            self._known[buffer] = None  # a sum may read the buffer that it writes
            value = self._value_of(buffer)
            self._known[buffer] = None if value is None else self._of_value(value)
        return self._known[buffer]

    def _value_of(self, buffer: Any) -> Any:
        """What a block writes into the buffer; None for sums."""
        block = self._made.get(buffer)
        return None if block is None or block.init is not None else getattr(block.body, "value", None)

    def _of_value(self, value: Any) -> _Roles | None:
        kind = type(value).__name__
        if kind == "TensorLoad":
            return self.of_buffer(value.source)
        if kind == "Cast":
            return self._of_value(value.value)
        if kind == "Call":
            return self._of_call(value)
        return self._of_pair(kind, value) if kind in ("Add", "Sub", "Mul", "Min", "Max") else None

    def _of_call(self, call: Any) -> _Roles | None:
        if call.op.name == _SELECT:
            return self._of_value(call.args[1])
        return self._scale(call.args[0]) if call.op.name == _ROUND else None

    def _of_pair(self, kind: str, value: Any) -> _Roles | None:
        sides = [(self._of_value(one), other) for one, other in ((value.a, value.b), (value.b, value.a))]
        rounded = [(roles, other) for roles, other in sides if roles is not None]
        if len(rounded) != 1:
            return None
        ((roles, other),) = rounded
        place = self._single(other)
        if kind == "Mul":
            return None if place is None else _with(roles, place, STEP)
        return roles if place is None or kind not in _LIMITS else _with(roles, place, _LIMITS[kind])

    def _scale(self, value: Any) -> _Roles:
        """Of a value that is rounded."""
        while type(value).__name__ == "TensorLoad" and (before := self._value_of(value.source)) is not None:
            value = before
        place = self._single(value.b) if type(value).__name__ == "Div" else None
        return {} if place is None else {place: [SCALE]}

    def _single(self, value: Any) -> int | None:
        """The place of an argument of one element."""
        if type(value).__name__ != "TensorLoad" or value.source not in self._params:
            return None
        is_single = math.prod(int(dim) for dim in value.source.shape) == 1
        return self._params.index(value.source) if is_single else None


def _with(roles: _Roles, place: int, role: str) -> _Roles:
    return {**roles, place: [*roles.get(place, []), role]}
