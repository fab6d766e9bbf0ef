"""Schedule transfer: known good schedules of one operator, adapted to another operator of the same kind.

An operator's design space is a few sketches: traces whose sampling steps are open. A schedule of another operator fits
a sketch that tiles the same loops in the same way. Three differences are ignored: how the fused neighbours are inlined,
the names of blocks, and the loops' extents. The tiles are scaled to the extents.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod
from typing import Any

import tvm_ffi

from fractune_core.records import UNTUNED
from fractune_workers.children.searching.spaces.sketches import AT_ROOT, CATEGORICAL, TILE, Sketch, applied, sketches_of

_OF_NEIGHBOURS = frozenset({
    "GetSBlock", "GetLoops", "GetConsumers", "GetProducers", "GetChildBlocks",
    "ComputeInline", "ReverseComputeInline",
    "CacheWrite",  # replaces a missing consumer
})  # fmt: skip
"""Steps that depend on the operators fused with the main computation, and not on its tiles."""


def seeds(traces: Iterable[str], mod: Any, spaces: Iterable[Any], postprocs: Iterable[Any]) -> list[Any]:
    """Schedules of `mod` adapted from the traces, in their order; none twice."""
    sketches, rules = sketches_of(spaces), list(postprocs)
    found: dict[int, Any] = {}
    for trace in traces:
        sch = adapt(trace, mod, sketches, rules)
        if sch is not None:
            found.setdefault(int(tvm_ffi.structural_hash(sch.mod)), sch)
    return list(found.values())


def adapt(trace: str, mod: Any, sketches: Iterable[Sketch], postprocs: Iterable[Any]) -> Any | None:
    """A schedule of `mod`, after `postprocs`, that follows the trace of another operator; None when it does not fit.

    `sketches` are of the design space of `mod`, `postprocs` are of its space generator.
    """
    if trace == UNTUNED:
        return None
    source = _before_postproc(json.loads(trace))
    fitting = [sketch for sketch in sketches if _signature(sketch) == _signature(source)]
    if not fitting:
        return None
    nearest = min(fitting, key=lambda sketch: _distance(_steps(sketch), _steps(source)))
    return applied([nearest[0], _decide(nearest, source)], mod, postprocs)


def scale_tile(tile: list[int], extent: int, max_innermost: int) -> list[int]:
    """The tile for a loop of another extent. Each inner factor becomes the divisor of the remaining extent that is
    nearest in ratio, and the outermost factor takes the rest.
    """
    inner: list[int] = []
    for wanted in reversed(tile[1:]):
        limit = extent if inner else min(extent, max_innermost)
        divisors = [factor for factor in range(1, limit + 1) if extent % factor == 0]
        inner.insert(0, min(divisors, key=lambda divisor: max(divisor / wanted, wanted / divisor)))
        extent //= inner[0]
    return [extent, *inner]


def _before_postproc(trace: Sketch) -> Sketch:
    steps, decisions = trace
    end = next((at for at, step in enumerate(steps) if step[0] == "EnterPostproc"), len(steps))
    return [steps[:end], [[at, decision] for at, decision in decisions if at < end]]


def _signature(trace: Sketch) -> tuple[list[Any], list[Any]]:
    """The parts that must agree: the number of levels of each tiled loop, and the choices of each categorical step."""
    decided = [trace[0][at] for at, _ in trace[1]]
    return (
        [attrs[0] for kind, _, attrs, _ in decided if kind == TILE],
        [attrs[0] for kind, _, attrs, _ in decided if kind == CATEGORICAL],
    )


def _steps(trace: Sketch) -> Counter[str]:
    """The steps as text that does not depend on the numbering of variables: `ReverseComputeAt Split4.1`.

    Blocks are left out (neighbours have other names), and numbers (they follow from the device and the extents).
    """
    words: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    origin: dict[str, str] = {}
    for kind, inputs, attrs, outputs in trace[0]:
        origin.update({name: f"{kind}{numbers[kind]}.{at}" for at, name in enumerate(outputs)})
        numbers[kind] += 1
        if kind not in _OF_NEIGHBOURS:
            used = [origin.get(name, name) for name in inputs if isinstance(name, str) and name[0] != "b"]
            words[" ".join([kind, *used, *(text for text in attrs if isinstance(text, str))])] += 1
    return words


def _distance(one: Counter[str], other: Counter[str]) -> int:
    return ((one - other) + (other - one)).total()


def _decide(sketch: Sketch, source: Sketch) -> Sketch:
    """A decision for each sampling step of the sketch: the source's decision in its n-th step of that kind."""
    chosen: dict[str, list[Any]] = defaultdict(list)
    for at, decision in source[1]:
        chosen[source[0][at][0]].append(decision)
    decisions = []
    for at, own in sketch[1]:
        kind, _, attrs, _ = sketch[0][at]
        # Only a location may have no partner: by the signature, the other kinds have equal counts.
        theirs: Any = chosen[kind].pop(0) if chosen[kind] else AT_ROOT
        # The sketch's own tile is of no worth, but its product is the loop's extent.
        decisions.append([at, scale_tile(theirs, prod(own), attrs[1]) if kind == TILE else theirs])
    return decisions
