"""Steps of one cell that follow each other: step t reads the state of step t - 1, with the same weights.

A chain is rolled up as a whole: all its inputs are there before its first step, and of what it computes only the states
are read by other nodes. Where a step is read in another place, the chain ends before it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from fractune_workers.children.importing.rolling.cells import Cells, Entries, Gate, Step
from fractune_workers.children.importing.rolling.places import Array, Place, Vector
from fractune_workers.children.importing.rolling.values import Values

_LEAST_STEPS = 2
_MOST_CHAINS = 1_000
_MOST_NODES_OF_A_STEP = 100
_OUTSIDE = -1
"""the reader of a result of the graph"""


@dataclass(frozen=True)
class Chain:
    steps: tuple[Step, ...]
    """the first may begin with zeros, and then lacks what they leave out"""
    state: Entries
    """the products with the state"""
    inputs: tuple[Entries, ...]
    """the products with each of the inputs"""

    @property
    def cell(self) -> Step:
        """A complete step."""
        return self.steps[-1]

    @property
    def before(self) -> Place | None:
        """The state before the first step; None for zeros."""
        return _read_by(self.steps[0], self.state)

    def read(self, entries: Entries) -> list[Place]:
        """What each step reads as this input."""
        first, *others = self.steps
        known = next(place for place in first.entries if _agree(first, first.entries[place], entries))
        return [known, *(each for step in others if (each := _read_by(step, entries)) is not None)]

    @property
    def places(self) -> set[Place]:
        """All that is there before the chain begins."""
        states = {place for place in (self.before, self.steps[0].memory_before) if place is not None}
        return states.union(*(self.read(entries) for entries in self.inputs))


def chains_of(values: Values, graph: onnx.GraphProto) -> Iterator[list[Chain]]:
    """The chains that can be rolled up, in groups: a group needs no results but those of groups before it."""
    found = _Links(values).chains()
    usage = _Usage(values, graph)
    parts = [part for chain in found for part in usage.parts(chain)][:_MOST_CHAINS]
    needed = usage.needed(parts)
    left = {at for at in range(len(parts)) if not needed[at] >> at & 1}
    while left:
        waiting = sum(1 << at for at in left)
        ready = [at for at in sorted(left) if not needed[at] & waiting]
        if not ready:
            return
        left.difference_update(ready)
        yield [parts[at] for at in ready]


class _Links:
    def __init__(self, values: Values) -> None:
        self._values = values
        self._by_result: dict[Place, list[Step]] = defaultdict(list)
        self._groups: dict[object, list[Step]] = defaultdict(list)
        cells = Cells(values)
        for node in values.nodes:
            for name in node.output:
                for step in cells.steps(name) if values.place(name) == name else ():
                    self._by_result[name].append(step)
                    if step.is_complete:
                        self._groups[step.key].append(step)

    def chains(self) -> list[Chain]:
        taken = set[str]()
        made = []
        for group in self._groups.values():
            links = {entries: self._links(group, entries) for entries in group[0].entries.values()}
            if not links:
                continue
            state = max(links, key=lambda entries: len(links[entries]))
            inputs = tuple(entries for entries in group[0].entries.values() if entries != state)
            for found in self._sequences(group, links[state]):
                steps = found if _is_state(found[0], state) else found[1:]
                if len(steps) >= _LEAST_STEPS and inputs and not taken & {step.result for step in steps}:
                    taken.update(step.result for step in steps)
                    made.append(Chain(tuple(steps), state, inputs))
        return made

    def _links(self, group: Sequence[Step], state: Entries) -> dict[str, Step]:
        """By result: the step before it."""
        found = {step.result: self._before(step, state) for step in group}
        return {result: before for result, before in found.items() if before is not None}

    def _before(self, step: Step, state: Entries) -> Step | None:
        place = _read_by(step, state)
        if place is None or step.before not in (None, place) or (step.mask and step.kept not in (None, place)):
            return None
        candidates = [each for each in self._by_result.get(place, ()) if each.memory == step.memory_before]
        alike = [each for each in candidates if each.is_complete and each.key == step.key]
        first = [each for each in candidates if self._begins(each, step, state)]
        return next((each for each in (*alike, *first) if _is_state(each, state)), None)

    def _begins(self, first: Step, step: Step, state: Entries) -> bool:
        """Whether `first` is the same cell as `step`, from zeros."""
        if (first.cell, first.out_function, first.negated) != (step.cell, step.out_function, step.negated):
            return False
        couples = first.memory_before is None or first.couples_forget == step.couples_forget
        if not couples or first.resets_product not in (None, step.resets_product):
            return False
        if first.inside and not self._equal(first.inside, step.inside):
            return False
        pairs = [(own, other) for own, other in zip(first.gates, step.gates, strict=True) if own is not None]
        if not all(other is not None and self._is_alike(own, other, first) for own, other in pairs):
            return False
        roles = [
            next((e for e in step.entries.values() if _agree(first, own, e)), None) for own in first.entries.values()
        ]
        needed = set(step.entries.values()) - {state}
        return None not in roles and len(set(roles)) == len(roles) and needed <= set(roles)

    def _is_alike(self, own: Gate, other: Gate, first: Step) -> bool:
        if own.function != other.function or not self._equal(own.bias, other.bias):
            return False
        peepholes = list(other.peepholes.values())
        return list(own.peepholes.values()) == peepholes or (first.memory_before is None and not own.peepholes)

    def _equal(self, one: Mapping[Vector | None, float], other: Mapping[Vector | None, float]) -> bool:
        return one == other or np.array_equal(bias_of(self._values, one), bias_of(self._values, other))

    def _sequences(self, group: Sequence[Step], links: Mapping[str, Step]) -> Iterator[list[Step]]:
        after: dict[str, Step] = {}
        for step in group:
            if step.result in links:
                after.setdefault(links[step.result].result, step)
        own = {step.result for step in group}
        for step in group:
            before = links.get(step.result)
            follows = before is not None and after[before.result] is step
            if follows and before is not None and before.result in own:
                continue
            steps = [before] if follows and before is not None else []
            at: Step | None = step
            while at is not None:
                steps.append(at)
                at = after.get(at.result)
            yield steps


class _Usage:
    """Who reads what a step computes."""

    def __init__(self, values: Values, graph: onnx.GraphProto) -> None:
        self._values = values
        self._readers: dict[Place, set[int]] = defaultdict(set)
        for at, node in enumerate(values.nodes):
            views = {values.place(name) for name in node.output}
            for name in values.reads[at]:
                if values.place(name) not in views:
                    self._readers[values.place(name)].add(at)
        for value in graph.output:
            self._readers[values.place(value.name)].add(_OUTSIDE)

    def parts(self, chain: Chain) -> Iterator[Chain]:
        """The longest parts of the chain that others read the states of alone."""
        inner = [self._inner(step, chain.state) for step in chain.steps]
        part = list[Step]()
        for at, step in enumerate(chain.steps):
            if inner[at] is None:
                yield from self._long(chain, part)
                part = []
                continue
            part.append(step)
            after = inner[at + 1] if at + 1 < len(inner) else None
            around = set(inner[at] or ()).union(after or ())
            if step.memory is not None and not self._readers[step.memory] <= around:
                yield from self._long(chain, part)
                part = []
        yield from self._long(chain, part)

    def _long(self, chain: Chain, part: Sequence[Step]) -> Iterator[Chain]:
        if len(part) >= _LEAST_STEPS:
            yield Chain(tuple(part), chain.state, chain.inputs)

    def _inner(self, step: Step, state: Entries) -> dict[int, bool] | None:
        """The nodes of a step, and whether they follow from the states before it; None where other nodes read what does
        so, beside the states after it.
        """
        states = {_read_by(step, state), step.memory_before} - {None}
        ends, found = states | set(step.entries), set[int]()
        results = {step.result, step.memory, step.shown}
        waiting = [each for each in results if isinstance(each, str)]
        while waiting:
            name = waiting.pop()
            place = self._values.place(name)
            if (
                place in ends
                or isinstance(place, tuple)
                or name not in self._values.makers
                or self._values.makers[name] in found
            ):
                continue
            found.add(self._values.makers[name])
            waiting += self._values.reads[self._values.makers[name]]
            if len(found) > _MOST_NODES_OF_A_STEP:
                return None
        inner, follows = dict[int, bool](), set[str]()
        for at in sorted(found):
            node = self._values.nodes[at]
            inner[at] = any(name in follows or self._values.place(name) in states for name in node.input)
            if inner[at]:
                follows.update(node.output)
        read = set(map(self._values.place, follows)) - {*states, *results}
        return inner if all(self._readers[place] <= found for place in read) else None

    def needed(self, chains: Sequence[Chain]) -> list[int]:
        """By chain: the chains that must run before it, as bits."""
        made: dict[int, int] = defaultdict(int)
        for number, chain in enumerate(chains):
            for step in chain.steps:
                for at, follows in (self._inner(step, chain.state) or {}).items():
                    if follows or step.result in self._values.nodes[at].output:
                        made[at] |= 1 << number
                if step.memory is not None:
                    made[self._values.makers[str(step.memory)]] |= 1 << number
        bits: dict[str, int] = {}
        for at, node in enumerate(self._values.nodes):
            own = made[at]
            for name in self._values.reads[at]:
                own |= bits.get(name, 0)
            bits.update(dict.fromkeys(node.output, own))
        needed = []
        for chain in chains:
            own = 0
            for place in chain.places:
                own |= bits.get(place if isinstance(place, str) else place[0], 0)
            needed.append(own)
        return needed


def bias_of(values: Values, bias: Mapping[Vector | None, float]) -> Array:
    """The numbers of a bias: a vector, or one number."""
    total: Array = np.zeros(1)
    for vector, factor in bias.items():
        numbers = 1.0 if vector is None else values.vectors[vector.key][vector.low : vector.high]
        total = total + np.multiply(numbers, factor, dtype=np.float64)
    return total


def _is_state(step: Step, state: Entries) -> bool:
    """Whether the result is the state after the step: what its mask keeps is the state before."""
    return step.mask is None or step.kept == _read_by(step, state)


def _read_by(step: Step, entries: Entries) -> Place | None:
    """What the step reads by these products."""
    return next((place for place, each in step.entries.items() if _agree(step, each, entries)), None)


def _agree(step: Step, own: Entries, entries: Entries) -> bool:
    """Whether products are the same, but for gates that the step lacks."""
    pairs = zip(step.gates, own, entries, strict=True)
    return all(gate is None or one == other for gate, one, other in pairs)
