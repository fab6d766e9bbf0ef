"""How a kernel of a recurrence divides its work, and the weights as it reads them. TVM's compiler is not needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from fractune_workers.children.recurrent.recurrence import Recurrence

Array = npt.NDArray[Any]

DIRECTIONS, UNITS = "directions", "units"
_PLAIN, _PACKED, _DOTS = "plain", "packed", "dots"
_NAME = re.compile(rf"({_PLAIN}|{_PACKED}|{_DOTS}(8|16)by)(\d{{1,2}})x(\d{{1,4}})(|{DIRECTIONS}|{UNITS})")
BYTES = "int8"
GROUP = 4
"""Bytes of a row that an instruction for products of bytes reads together"""
_ROLES = 4
"""place of an argument's roles in its description"""


@dataclass(frozen=True)
class Tiling:
    """How a kernel divides its work."""

    units: int = 1
    """in a block, which are computed together"""
    rows: int = 1
    parallel: str = ""
    """What several cores share: DIRECTIONS, or the blocks of UNITS of each step with a barrier behind it; empty for
    nothing"""
    packed: bool = False
    """whether the weights lie in blocks; otherwise the first axes are the unit that is read and the gate"""
    dots: int = 0
    """Sums in a register of the processor's products of bytes, for packed int8 weights; 0 for sums in float32"""

    @property
    def name(self) -> str:
        """Letters and digits, as of any implementation."""
        kind = f"{_DOTS}{self.dots}by" if self.dots else _PACKED if self.packed else _PLAIN
        return f"{kind}{self.rows}x{self.units}{self.parallel}"

    @classmethod
    def named(cls, name: str, recurrence: Recurrence | None = None) -> Self | None:
        """The tiling of this name; None for any other text, and for a tiling that the recurrence cannot have."""
        found = _NAME.fullmatch(name)
        if found is None or not (rows := int(found[3])) or not (units := int(found[4])):
            return None
        dots = int(found[2] or 0)
        if dots and (units % dots or (recurrence and recurrence.whole_weights != BYTES)):
            return None
        return cls(units, rows, found[5], packed=found[1] != _PLAIN, dots=dots)


def weights_shape(recurrence: Recurrence, gates: Sequence[int], tiling: Tiling) -> tuple[int, ...]:
    """The shape of the weights of a phase with these gates, as a kernel of the tiling reads them."""
    units = recurrence.units
    if not tiling.packed:
        return recurrence.directions, units, len(gates) * units
    blocks = -(-units // tiling.units)
    if tiling.dots:
        return recurrence.directions, blocks, -(-units // GROUP) + 1, len(gates), tiling.units * GROUP
    return recurrence.directions, blocks, units, len(gates), tiling.units


def pack(weights: Array, tiling: Tiling) -> Array:
    """A phase's plain weights (D, H, G*H) as a kernel of the tiling reads them. In blocks of units they are (D,
    H/block, H, G, block), and zeros fill up the last block.

    For products of bytes, four units that are read lie together (D, H/block, H/4 + 1, G, block*4). Behind them follow
    the sums of all weights of a unit, in the bytes of int32.
    """
    if not tiling.packed:
        return weights
    directions, read, columns = weights.shape
    by_gate = weights.reshape(directions, read, columns // read, read)
    filled = np.pad(by_gate, ((0, 0), (0, 0), (0, 0), (0, -read % tiling.units)))
    blocks = filled.reshape(directions, read, columns // read, -1, tiling.units)
    packed = np.ascontiguousarray(blocks.transpose(0, 3, 1, 2, 4))
    return _in_groups(packed) if tiling.dots else packed


def _in_groups(packed: Array) -> Array:
    """Packed weights as products of bytes read them, with their sums."""
    directions, blocks, read, gates, units = packed.shape
    sums = packed.sum(2, dtype="<i4", keepdims=True).view("int8")
    filled = np.pad(packed, ((0, 0), (0, 0), (0, -read % GROUP), (0, 0), (0, 0)))
    groups = filled.reshape(directions, blocks, -1, GROUP, gates, units).transpose(0, 1, 2, 4, 5, 3)
    return np.concatenate([groups.reshape(directions, blocks, -1, gates, units * GROUP), sums], axis=2)


def unpack(weights: Array, units: int, tiling: Tiling) -> Array:
    """The plain weights (D, H, G*H) of those that a kernel of the tiling reads; the inverse of `pack`."""
    if not tiling.packed:
        return weights
    if tiling.dots:
        directions, blocks, groups, gates, _ = weights.shape
        by_group = weights[:, :, :-1].reshape(directions, blocks, groups - 1, gates, tiling.units, GROUP)
        weights = by_group.transpose(0, 1, 2, 5, 3, 4).reshape(directions, blocks, -1, gates, tiling.units)[
            :, :, :units
        ]
    directions, blocks, _, gates, width = weights.shape
    filled = weights.transpose(0, 2, 3, 1, 4).reshape(directions, units, gates, blocks * width)
    return np.ascontiguousarray(filled[..., :units]).reshape(directions, units, gates * units)


def with_tiled_weights(name: str, arguments: Sequence[Array], described: Sequence[Any]) -> list[Array]:
    """The arguments with recurrent weights as a kernel of the tiling called `name` reads them; by any other name, as
    one of the computed tiling. `described`: as of `arguments_of`, or of another operator, which has none.
    """
    return [
        each if computed is None else pack(each, Tiling.named(name) or computed)
        for each, computed in zip(arguments, map(_computed, described), strict=True)
    ]


def with_plain_weights(arguments: Sequence[Array], described: Sequence[Any]) -> list[Array]:
    """The inverse of `with_tiled_weights` for the computed tiling."""
    return [
        each if computed is None else unpack(each, shape[1], computed)
        for each, (_, _, shape, *_), computed in zip(arguments, described, map(_computed, described), strict=True)
    ]


def _computed(description: Sequence[Any]) -> Tiling | None:
    """The tiling that was computed for an argument; None for other arguments than recurrent weights."""
    roles = description[_ROLES] if len(description) > _ROLES else ()
    return Tiling.named(roles[0]) if roles else None
