"""The sizes that an ONNX graph forces on the open axes of its inputs, by `python -m fractune.models.sizes_child`.

The graph comes from a stranger, so it is read in a sandbox without files or network, and the work is bounded. ONNX's
shape inference tries sizes. Two sizes in the graph that must be equal and are not make a conflict, such as the depth of
a product and the rows of its weights. A search over the size of one open axis removes it.

Arguments are the parent's PID and the most bytes of the answer. Standard input has a line of JSON (`inputs`,
`variables`, `search`), then the model without its weights. Standard output gets one JSON object: `variables` (`size`,
`why`), `relations` (how some variables follow from others) and `notes`, or `error`.

How these sizes depend on each other, as in `total = past + s`, comes from primes: every size is a prime of its own. Two
sizes in the graph that must be equal and are not say then by their numbers from which sizes they come. A formula must
fit at three sets of primes.
"""

import json
import math
import re
import resource
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, islice
from typing import Any

from fractune.models.graph_shapes import Graph, Pair, Shape, Spent, Terms
from fractune_core.errors import first_line, one_line, shortened
from fractune_core.host.parent_death import die_with_parent
from fractune_core.host.sandbox import Sandbox

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


_MEMORY_BYTES = 4 << 30
"""of addresses: Python, NumPy and ONNX take one"""
_MOST_CHANGES = 20
_LARGEST = 1 << 20
_IMAGE_KEYS = ("imgsz", "image_size", "img_size", "input_size")
_NICE = {
    "image": (224, 256, 640, 512, 320, 384, 416, 299, 240, 112, 128, 96, 64, 48, 32, 28, 1024),
    "length": (128, 64, 256, 512, 77, 32, 16, 100, 1024),
    "audio": (16000, 512, 576, 400, 480, 8000, 1024, 1536, 32000, 48000),
    "other": (64, 128, 32, 16, 256, 512, 80, 40, 3, 1),
    "batch": (1, 2, 4, 8, 16, 32),
}
"""usual sizes by role, the likeliest first"""


@dataclass
class Group:
    """Open axes that get one size together: those of a name, or the two sides of a picture."""

    variables: list[int]
    role: str
    why: str = ""
    """the part of the graph that forces the size; empty for none"""
    hint: str = ""
    """another reason for the size, which the graph may contradict"""


@dataclass
class Search:
    """The sizes of the variables, changed until the graph has no conflict."""

    graph: Graph
    sizes: list[int]
    groups: list[Group]
    notes: list[str] = field(default_factory=list)
    pairs: dict[tuple[tuple[int, int], tuple[int, ...]], Pair] = field(default_factory=dict)
    """those of earlier trials"""

    def run(self) -> None:
        ignored: set[tuple[int, int]] = set()
        for _ in range(_MOST_CHANGES):
            key = self._conflict(self.graph.shapes(self.sizes), ignored)
            if key is None:
                break
            if not self._solve(key):
                ignored.add(key)
                if key[0] >= 0:
                    self._remark(key)
        self._confirm(ignored)

    def _conflict(self, shapes: Mapping[str, Shape], ignored: set[tuple[int, int]]) -> tuple[int, int] | None:
        found = (key for key in self.graph.conflicts(shapes) if key not in ignored)
        return next(found, None)

    def _solve(self, key: tuple[int, int]) -> bool:
        """Change the size of a group so that the two sizes of the pair `key` are equal."""
        for group in self.groups:
            if not group.why and any(self._solve_by(key, part) for part in self._parts(key, group)):
                return True
        return False

    def _parts(self, key: tuple[int, int], group: Group) -> list[Group]:
        """The group, or the one side of a picture that has influence on the pair."""
        alone = [Group([each], group.role) for each in group.variables] if len(group.variables) > 1 else []
        with_influence = [each for each in alone if self._has_influence(key, each)]
        if len(with_influence) != 1:
            return [group]
        # From now on the two sides are apart.
        at = self.groups.index(group)
        self.groups[at : at + 1] = [*with_influence, *(each for each in alone if each not in with_influence)]
        return with_influence

    def _solve_by(self, key: tuple[int, int], group: Group) -> bool:
        size = self._root(key, group)
        if size is None:
            return False
        pair = self._pair_at(key, group, size)
        group.why, group.hint = ("", pair.why) if pair.is_bound else (pair.why, "")
        for at in group.variables:
            self.sizes[at] = size
        return True

    def _has_influence(self, key: tuple[int, int], group: Group) -> bool:
        size, gap = self.sizes[group.variables[0]], self._gap(key, group)
        return gap(size * 2) != gap(size) or gap(max(size // 2, 1)) != gap(size)

    def _root(self, key: tuple[int, int], group: Group) -> int | None:
        """A size of the group at which the pair is equal, a usual one if it can be."""
        size = self.sizes[group.variables[0]]
        pair = self._pair_at(key, group, size)
        gap = self._gap(key, group)
        if not self._has_influence(key, group):
            return None
        likely = list(_likely(size, pair)) if pair.left and pair.right else []
        root = next((each for each in [*likely, *_NICE[group.role]] if gap(each) == 0), None)
        if root is None:
            root = _bisected(gap)
        if root is None or pair.is_bound:
            return root
        return next((each for each in _nicer(root, group.role) if gap(each) == 0), root)

    def _gap(self, key: tuple[int, int], group: Group) -> Callable[[int], int | None]:
        def gap(size: int) -> int | None:
            pair = self._pair_at(key, group, size)
            return None if pair.left is None or pair.right is None else pair.left - pair.right

        return gap

    def _pair_at(self, key: tuple[int, int], group: Group, size: int) -> Pair:
        """The pair with another size of the group; each is inferred once."""
        sizes = tuple(size if at in group.variables else each for at, each in enumerate(self.sizes))
        if (key, sizes) not in self.pairs:
            self.pairs[key, sizes] = self.graph.pair(key, self.graph.shapes(sizes, key[0]))
        return self.pairs[key, sizes]

    def _confirm(self, ignored: set[tuple[int, int]]) -> None:
        """Give a reason for a size that fits where half of it and twice of it do not."""
        for group in self.groups:
            if group.why or group.hint or group.role == "batch":
                continue
            size = self.sizes[group.variables[0]]
            keys = []
            for other in (size * 2, max(size // 2, 1)):
                sizes = [other if at in group.variables else each for at, each in enumerate(self.sizes)]
                shapes = self.graph.shapes(sizes)
                key = self._conflict(shapes, ignored)
                keys.append(None if key is None else self.graph.pair(key, shapes).why)
            if all(keys):
                group.why = str(keys[0])

    def _remark(self, key: tuple[int, int]) -> None:
        pair = self.graph.pair(key, self.graph.shapes(self.sizes, key[0]))
        self.notes.append(f"with these sizes {pair.left} and {pair.right} differ: {pair.why}")


def _likely(size: int, pair: Pair) -> Iterator[int]:
    """Sizes at which a pair would be equal if it grew with the size, with its square, or with that and a constant."""
    left, right = pair.left or 1, pair.right or 1
    for ratio in (right / left, left / right):
        for each in (size * ratio, size * math.sqrt(ratio), size * math.sqrt(max(right - 1, 1) / max(left - 1, 1))):
            if 1 <= each <= _LARGEST:
                yield round(each)


def _bisected(gap: Callable[[int], int | None]) -> int | None:
    """A size at which the gap is 0, if it grows or falls with the size. A gap that is not known is that of a size which
    is too small.
    """
    low, high = 1, 2
    at_high = gap(high)
    while high < _LARGEST and (at_high is None or gap(low) is None or at_high * (gap(low) or 0) > 0):
        low, high = high, high * 2
        at_high = gap(high)
    at_low = gap(low)
    if at_high is None or at_low is None or at_high * at_low > 0:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        found = gap(middle)
        if found is None:
            return None
        low, high = (low, middle) if found * at_low <= 0 and found != at_low else (middle, high)
    return next((each for each in (low, high) if gap(each) == 0), None)


def _nicer(root: int, role: str) -> Iterator[int]:
    """Usual sizes near a root, then rounder ones."""
    yield from (each for each in _NICE[role] if 0.8 * root <= each <= 1.25 * root)
    for step in (32, 16, 8):
        yield from (each for each in (round(root / step) * step, math.ceil(root / step) * step) if each > 0)


def _groups(variables: Sequence[Mapping[str, Any]], dependent: Container[int]) -> list[Group]:
    """What may change: the two sides of a picture together, and the batch last."""
    groups: list[Group] = []
    pictures: dict[str, Group] = {}
    for at, each in enumerate(variables):
        if each["fixed"] or at in dependent:
            continue
        picture = pictures.get(each["places"][0][0]) if each["role"] == "image" else None
        if picture is not None:
            picture.variables.append(at)
            continue
        groups.append(Group([at], each["role"]))
        if each["role"] == "image":
            pictures[each["places"][0][0]] = groups[-1]
    return sorted(groups, key=lambda group: group.role == "batch")


def _from_metadata(search: Search) -> None:
    """Sizes that the exporter noted, such as Ultralytics' `imgsz`: height and width."""
    for key in _IMAGE_KEYS:
        sizes = [int(each) for each in re.findall(r"\d{1,5}", search.graph.metadata.get(key, ""))][:2]
        for group in search.groups if sizes and all(sizes) else []:
            if group.role == "image":
                for at, variable in enumerate(group.variables):
                    search.sizes[variable] = sizes[at % len(sizes)]
                group.hint = f"'{key}' in the file's metadata"


def examined(order: Mapping[str, Any], data: bytes) -> dict[str, Any]:
    """The answer of the child."""
    variables = order["variables"]
    names = [each["name"] for each in variables if each["formula"] is None]
    graph = Graph(data, order["inputs"], [each["places"] for each in variables], names)
    graph.formulas = {at: each["formula"] for at, each in enumerate(variables) if each["formula"] is not None}
    find_relations(graph, len(names))
    graph.renew()
    search = Search(graph, [each["size"] for each in variables], _groups(variables, graph.formulas))
    if order["search"]:
        _search(search)
    why = {at: group.why or group.hint for group in search.groups for at in group.variables}
    return {
        "variables": [{"size": size, "why": why.get(at, "")} for at, size in enumerate(graph.completed(search.sizes))],
        "relations": [
            {"of": at, "terms": [{"factor": factor, "names": names} for factor, names in terms]}
            for at, terms in graph.formulas.items()
            if at < len(names)
        ],
        "notes": list(dict.fromkeys(search.notes)),
    }


def _search(search: Search) -> None:
    try:
        _from_metadata(search)
        search.run()
        error = search.graph.strict_error(search.sizes)
        if error:
            search.notes.append(f"ONNX's shape inference objects to these sizes: {shortened(one_line(error), 200)}")
    except Spent:
        search.notes.append("the graph is too large to try many sizes, so these may not fit")


def main() -> None:
    parent, most_bytes = map(int, sys.argv[1:])
    die_with_parent(parent)
    order, data = json.loads(sys.stdin.buffer.readline()), sys.stdin.buffer.read()
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))  # standard output is a file
    Sandbox(_MEMORY_BYTES).enter()
    try:
        answer = examined(order, data)
    except ImportError:
        answer = {"error": "the package onnx is not installed"}
    except Exception as error:  # noqa: BLE001  ONNX raises several unrelated types at a graph that it cannot read
        answer = {"error": f"{type(error).__name__}: {first_line(error)}"}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
