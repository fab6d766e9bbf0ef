"""Names in a trace's lookups of blocks: names by position.

A trace of an older log, or of stock TVM, has the names of the model that it was tuned for. If that is the model at
hand, its names are known. Otherwise their order identifies them: MetaSchedule looks up blocks in the order of the
function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import takewhile
from typing import Any

from fractune_core.tir.positions import ROOT, Names

Trace = list[Any]
"""MetaSchedule's JSON: [steps, decisions]; a step is [kind, inputs, attributes, outputs]"""

_LOOKUP, _POSTPROC = "GetSBlock", "EnterPostproc"
_NO_PLACE = -1
_OF_BLOCK = re.compile(r"_(rf|init|update|o)(?![a-z0-9])")
_OF_BUFFER = re.compile(r"_(reindex|global|shared|local|warp|wmma|m16n8k8)(?![a-z0-9])")
"""what TVM appends to the name of a block, or of a buffer, for a block that a schedule adds"""


@dataclass(frozen=True)
class _Table:
    """New names by old ones."""

    blocks: Mapping[str, str]
    buffers: Mapping[str, str]

    def name(self, old: str) -> str | None:
        """The new name of a block of the function, or of one that a schedule adds; None for an unknown one."""
        if old in self.blocks:
            return self.blocks[old]
        for parts, appended in ((self.blocks, _OF_BLOCK), (self.buffers, _OF_BUFFER)):
            bases = [part for part in parts if old.startswith(part) and appended.match(old, len(part))]
            if bases:
                base = max(bases, key=len)
                return parts[base] + old[len(base) :]
        return None


def by_position(trace: Trace, names: Names) -> Trace:
    """The trace with lookups by position, for a function whose parts have these `names`."""
    positions = _Table({new: new for _, new in names.blocks}, {new: new for _, new in names.buffers})
    looked_up = _looked_up(trace[0])
    if all(map(positions.name, looked_up)):
        return trace
    own = _Table(dict(names.blocks), dict(names.buffers))
    known = all(map(own.name, looked_up))
    return _renamed(trace, own if known else _by_order(trace[0], names))


def _looked_up(steps: Iterable[Any]) -> list[str]:
    """Names of blocks, each once."""
    return list(dict.fromkeys(attributes[0] for kind, _, attributes, _ in steps if kind == _LOOKUP))


def _renamed(trace: Trace, table: _Table) -> Trace:
    steps, decisions = trace
    return [[_renamed_step(step, table) for step in steps], decisions]


def _renamed_step(step: Any, table: _Table) -> Any:
    kind, inputs, attributes, outputs = step
    if kind != _LOOKUP:
        return step
    name, *function = attributes
    return [kind, inputs, [table.name(name) or name, *function], outputs]


def _by_order(steps: Sequence[Any], names: Names) -> _Table:
    """The blocks and buffers that the names of another model stand for. The steps are: (1) Blocks that the design space
    looks up. (2) Blocks that only the postprocs look up. (3) Buffers with names that occur in the names of blocks that
    a schedule adds.
    """
    end = next((at for at, step in enumerate(steps) if step[0] == _POSTPROC), len(steps))
    sketched = [name for name in _looked_up(steps[:end]) if name != ROOT]
    blocks = {ROOT: ROOT, **_placed(sketched, names.blocks[1:])}
    unknown = [name for name in _looked_up(steps) if _Table(blocks, {}).name(name) is None]
    added = [found for name in unknown if (found := _OF_BUFFER.search(name)) is not None]
    left = [each for each in names.blocks[1:] if each[1] not in blocks.values()]
    blocks |= _placed([name for name in unknown if _OF_BUFFER.search(name) is None], left)
    return _Table(blocks, _placed(list(dict.fromkeys(each.string[: each.start()] for each in added)), names.buffers))


def _placed(theirs: Sequence[str], own: Sequence[tuple[str, str]]) -> dict[str, str]:
    """New names of `theirs`, which are some of the `own` in their order; none where there are too many."""
    places = _aligned(tuple(theirs), tuple(name for name, _ in own)) if len(theirs) <= len(own) else ()
    return {name: own[at][1] for name, at in zip(theirs, places, strict=False)}


@lru_cache(maxsize=256)
def _aligned(theirs: tuple[str, ...], own: tuple[str, ...]) -> tuple[int, ...]:
    """Rising places among `own` with the largest sum of common name endings: the next model's `lv24_sum` was
    `lv13_sum`. Needleman and Wunsch's alignment, in which each of `theirs` has a place.
    """
    scores = [[0] * (len(own) + 1)]
    for count, name in enumerate(theirs, 1):
        row = [_NO_PLACE] * (len(own) + 1)
        for at in range(count, len(own) + 1):
            row[at] = max(row[at - 1], scores[-1][at - 1] + _likeness(name, own[at - 1]))
        scores.append(row)
    places, at = [], len(own)
    for count in range(len(theirs), 0, -1):
        while scores[count][at - 1] == scores[count][at]:
            at -= 1
        at -= 1
        places.append(at)
    return tuple(reversed(places))


def _likeness(one: str, other: str) -> int:
    """How many letters they end with in common; one more for equal names."""
    pairs = zip(reversed(one), reversed(other), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) + (one == other)
