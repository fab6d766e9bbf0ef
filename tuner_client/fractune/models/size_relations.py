"""How the open sizes of a graph depend on each other: `total = past + s`.

Every size is a prime of its own. Two sizes in the graph that must be equal and are not say then by their numbers from
which sizes they come. A formula must fit at three sets of primes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, islice

from fractune.models.graph_shapes import Graph, Spent, Terms

_PROBES = 3
_MOST_NAMES = 200
_MOST_SUMMED = 20
"""names up to this number are tried in sums of three, more of them in sums of two"""
_LEAST_PRIME = 53


def find_relations(graph: Graph, names: int) -> None:
    """Put the formulas of sizes that follow from others into `graph.formulas`; the first `names` sizes may."""
    if not 1 < names <= _MOST_NAMES:
        return
    count = len(graph.places)
    primes = list(islice(_primes(), _PROBES * count))
    probes = [primes[at * count : (at + 1) * count] for at in range(_PROBES)]
    try:
        while _found_some(graph, probes, names) and len(graph.formulas) < count:
            pass
    except Spent:
        return


def _found_some(graph: Graph, probes: Sequence[Sequence[int]], names: int) -> bool:
    sizes = [graph.completed(each) for each in probes]
    shapes = [graph.shapes(each) for each in sizes]
    named = list(zip(*(graph.named(*each) for each in zip(shapes, sizes, strict=True)), strict=True))
    pairs = [[graph.pair(key, each)[:2] for each in shapes] for key in graph.conflicts(shapes[0])]
    before = len(graph.formulas)
    for sides in [*pairs, *named]:
        free = [at for at in range(names) if at not in graph.formulas]
        left, right = ([pair[side] for pair in sides] for side in (0, 1))
        if None in left or None in right or left == right:
            continue
        found = [*_relations(left, right, free, probes), *_relations(right, left, free, probes)]
        if found:
            # Of two equal sizes, that of fewer axes follows: a mask's from a cache's.
            at, terms = max(found, key=lambda each: (-len(graph.places[each[0]]), each))
            _add(graph, at, terms)
    return len(graph.formulas) > before


def _add(graph: Graph, at: int, terms: Terms) -> None:
    """Formulas are of free sizes: those of before that have this one get its formula in its place."""
    held = {
        other: [
            (factor * more, [*(each for each in names if each != at), *inner])
            for factor, names in formula
            for more, inner in (terms if at in names else [(1, [])])
        ]
        for other, formula in graph.formulas.items()
    }
    graph.formulas = {at: terms, **held}


def _relations(
    own: Sequence[int | None], other: Sequence[int | None], free: Sequence[int], probes: Sequence[Sequence[int]]
) -> Iterator[tuple[int, Terms]]:
    """The size that is `own` in the probes, and its formula by `other`."""
    for at in free:
        if [probe[at] for probe in probes] == list(own):
            terms = _formula([each or 0 for each in other], [each for each in free if each != at], probes)
            if terms is not None:
                yield at, terms


def _formula(values: Sequence[int], free: Sequence[int], probes: Sequence[Sequence[int]]) -> Terms | None:
    """The simplest one that fits: a size, a sum, a product, or a multiple, each with a constant."""
    for count in (1, 2, 3) if len(free) <= _MOST_SUMMED else (1, 2):
        for names in combinations(free, count):
            rest = {value - sum(probe[at] for at in names) for value, probe in zip(values, probes, strict=True)}
            if len(rest) == 1:
                return _with([(1, [at]) for at in names], rest.pop())
    for first, second in combinations(free, 2):
        rest = {value - probe[first] * probe[second] for value, probe in zip(values, probes, strict=True)}
        if len(rest) == 1:
            return _with([(1, [first, second])], rest.pop())
    for at in free:
        factor = (values[1] - values[0]) // (probes[1][at] - probes[0][at])
        rest = {value - factor * probe[at] for value, probe in zip(values, probes, strict=True)}
        if factor > 1 and len(rest) == 1:
            return _with([(factor, [at])], rest.pop())
    return None


def _with(terms: list[tuple[int, list[int]]], constant: int) -> Terms:
    return [*terms, (constant, [])] if constant else terms


def _primes() -> Iterator[int]:
    found = [2, 3]
    while True:
        if found[-1] >= _LEAST_PRIME:
            yield found[-1]
        each = found[-1] + 2
        while any(each % prime == 0 for prime in found if prime * prime <= each):
            each += 2
        found.append(each)
