"""The steps of an LSTM, a GRU or an RNN, recognised by the sum that their result is.

Gates and activations are in ONNX's order. A step from a state of zeros lacks what zeros leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from fractune_workers.children.importing.rolling import places
from fractune_workers.children.importing.rolling.values import Condition, Values
from fractune_workers.children.recurrent.recurrence import GRU, LSTM, RNN, Activation

_SIGMOID = "sigmoid"
_FORGET = 2
"""the place of an LSTM's forget gate"""
Entry = tuple[places.Matrix, float]
Entries = tuple[Entry | None, ...]
"""by gate: the matrix and the factor of a product"""


@dataclass(frozen=True)
class Gate:
    """What goes into the activation of a gate."""

    function: Activation
    products: Mapping[places.Place, Entry]
    bias: Mapping[places.Vector | None, float]
    """by vector, and of None the number that is added to all: factors"""
    peepholes: Mapping[places.Place, tuple[places.Vector, float]] = field(default_factory=dict)

    @property
    def additions(self) -> Any:
        """What is added to the products."""
        return frozenset(self.bias.items()), tuple(self.peepholes.values())

    def negated(self) -> Gate:
        """The gate whose sigmoid is 1 - this gate's."""
        products = {place: (matrix, -factor) for place, (matrix, factor) in self.products.items()}
        peepholes = {place: (vector, -factor) for place, (vector, factor) in self.peepholes.items()}
        return Gate(self.function, products, {each: -factor for each, factor in self.bias.items()}, peepholes)


@dataclass(frozen=True)
class Step:
    cell: str
    result: str
    gates: tuple[Gate | None, ...]
    """None for one that zeros leave out"""
    before: places.Place | None = None
    """the state before, where the cell names it: a GRU's"""
    memory: places.Place | None = None
    memory_before: places.Place | None = None
    """of an LSTM: the state of the cell after the step and before it; None for zeros before it"""
    out_function: Activation | None = None
    """of an LSTM"""
    couples_forget: bool = False
    resets_product: bool | None = None
    """None where it makes no difference: the state before is zeros"""
    inside: Mapping[places.Vector | None, float] = field(default_factory=dict)
    """of a GRU: the bias inside the reset"""
    mask: Condition | None = None
    """for each row to have the new state; another row keeps `kept`"""
    kept: places.Place | None = None
    """The state before; None for zeros, which are it before the first step, and else stand in the outputs only"""
    shown: places.Place | None = None
    """the result with zeros in other rows, where it is computed beside the result"""

    @property
    def negated(self) -> bool | None:
        """Of the mask; None without one."""
        return None if self.mask is None else self.mask[1]

    @cached_property
    def entries(self) -> Mapping[places.Place, Entries]:
        """The products by what they read."""
        places = dict.fromkeys(place for gate in self.gates if gate for place in gate.products)
        return {place: tuple(gate.products.get(place) if gate else None for gate in self.gates) for place in places}

    @cached_property
    def key(self) -> Any:
        """Equal for steps of the same cell with the same weights."""
        gates = [gate and (gate.function, gate.additions) for gate in self.gates]
        form = self.cell, self.out_function, self.couples_forget, self.resets_product, self.negated
        return (*form, tuple(gates), frozenset(self.inside.items()), frozenset(self.entries.values()))

    @property
    def is_complete(self) -> bool:
        """Whether it has all gates, and products that differ."""
        gates = self.gates[:_FORGET] + self.gates[_FORGET + 1 :] if self.couples_forget else self.gates
        return None not in gates and len(set(self.entries.values())) == len(self.entries)


class Cells:
    """Reads steps from the sums of a graph's values."""

    def __init__(self, values: Values) -> None:
        self._values, self._sums = values, values.sums
        self._chosen = {side: name for name, choice in values.choices.items() for side in choice.sides}
        self._keep_states = {(mask, new) for mask, new, kept in self._chosen if kept}
        """masks and new states for which a value keeps the states of other rows"""

    def steps(self, name: str) -> Iterator[Step]:
        """The steps that a value may be the result of."""
        yield from self._of_masked_rows(name)
        terms = self._sums.terms(self._values.sum_of(name) or places.ZERO)
        readers: Sequence[Callable[..., Iterator[Step]]] = (self._rnn, self._lstm, self._gru)
        for read in readers:
            yield from read(name, terms)

    def _of_masked_rows(self, name: str) -> Iterator[Step]:
        """Steps of the rows for which a condition holds."""
        choice = self._values.choices.get(name)
        for mask, new, kept in choice.sides if choice else ():
            for step in self.steps(new) if isinstance(new, str) else ():
                shown = self._chosen.get((mask, new, None)) if kept else None
                if step.mask is None and (kept or (mask, new) not in self._keep_states):
                    memory = self._chosen.get((mask, step.memory, step.memory_before))
                    yield replace(step, result=name, mask=mask, kept=kept, shown=shown, memory=memory)

    # ---- the plain RNN

    def _rnn(self, name: str, terms: Sequence[tuple[list[places.Factor], float]]) -> Iterator[Step]:
        gate = self._gate(terms[0][0][0]) if len(terms) == 1 and len(terms[0][0]) == 1 and terms[0][1] == 1 else None
        if gate is not None and not gate.peepholes:
            yield Step(RNN, name, (gate,))

    # ---- the LSTM: o * h(c), c = f * c' + i * g

    def _lstm(self, name: str, terms: Sequence[tuple[list[places.Factor], float]]) -> Iterator[Step]:
        if len(terms) != 1 or len(terms[0][0]) != 2 or terms[0][1] != 1:
            return
        one, other = terms[0][0]
        for gated, squashed in ((one, other), (other, one)):
            if isinstance(squashed, places.Activated) and isinstance(gated, places.Activated):
                yield from self._lstm_of(name, self._gate(gated), squashed)

    def _lstm_of(self, name: str, out: Gate | None, squashed: places.Activated) -> Iterator[Step]:
        memory = self._values.memories.get(self._sums.of(squashed))
        if memory is None:
            return
        for update, candidate, forget, before in self._memories(squashed.argument):
            if out is None or update is None or candidate is None or candidate.peepholes:
                continue
            early = [gate for gate in (update, forget) if gate is not None]
            if {gate.function for gate in early} != {out.function}:
                continue
            if {*out.peepholes} <= {memory} and all({*gate.peepholes} <= {before} for gate in early):
                gates = update, out, forget, candidate
                coupled = forget is None and before is not None
                yield Step(LSTM, name, gates, None, memory, before, squashed.function, couples_forget=coupled)

    def _memories(
        self, argument: places.Sum
    ) -> Iterator[tuple[Gate | None, Gate | None, Gate | None, places.Place | None]]:
        """The gates of a cell's state: update, candidate, forget, and the state before."""
        pairs, forgotten, rest = [], [], []
        for factors, factor in self._sums.terms(argument):
            active = [each for each in factors if isinstance(each, places.Activated)]
            states = [place for each in factors if (place := self._state(each)) is not None]
            if factor == 1 and len(active) == 2:
                pairs.append(active)
            elif factor == 1 and active and states:
                forgotten.append((active[0], states[0]))
            else:
                rest.append((factors, factor))
        if len(pairs) != 1 or len(forgotten) > 1:
            return
        for update, candidate in (pairs[0], pairs[0][::-1]):
            kept = self._kept(forgotten, rest, update)
            if kept is not None:
                yield self._gate(update), self._gate(candidate), *kept

    def _kept(
        self,
        forgotten: Sequence[tuple[places.Activated, places.Place]],
        rest: Sequence[tuple[list[places.Factor], float]],
        update: places.Activated,
    ) -> tuple[Gate | None, places.Place | None] | None:
        """The forget gate, which a coupled cell lacks, and the state before; None for another form."""
        if not rest and not forgotten:
            return None, None
        if not rest:
            gate = self._gate(forgotten[0][0])
            return None if gate is None else (gate, forgotten[0][1])
        before = None if forgotten else self._coupled(rest, update)
        return None if before is None else (None, before)

    def _coupled(
        self, rest: Sequence[tuple[list[places.Factor], float]], update: places.Activated
    ) -> places.Place | None:
        """The state c' of `c' - i * c'`."""
        whole = next((parts[0] for parts, factor in rest if len(parts) == 1 and factor == 1), None)
        taken = next((parts for parts, factor in rest if len(parts) == 2 and factor == -1), [])
        return self._state(whole) if len(rest) == 2 and whole in taken and update in taken else None

    # ---- the GRU: z * h' + (1 - z) * n

    def _gru(self, name: str, terms: Sequence[tuple[list[places.Factor], float]]) -> Iterator[Step]:
        for keep, candidate, before in self._mixed(terms):
            if keep is None or keep.peepholes:
                continue
            made = self._candidate(candidate, before)
            if made is None:
                continue
            new, reset, inside, resets_product = made
            if reset is not None and (reset.function != keep.function or reset.peepholes):
                continue
            yield Step(GRU, name, (keep, reset, new), before, resets_product=resets_product, inside=inside)

    def _mixed(
        self, terms: Sequence[tuple[list[places.Factor], float]]
    ) -> Iterator[tuple[Gate | None, places.Activated, places.Place | None]]:
        """The gate that keeps the state, the candidate, and the state before."""
        single = [(factors[0], factor) for factors, factor in terms if len(factors) == 1]
        pairs = {frozenset(factors): factor for factors, factor in terms if len(factors) == 2}
        if len(single) + len(pairs) != len(terms) or len(terms) > 3:
            return
        if not single and len(pairs) == 1:  # u * n
            (both, factor), *_ = pairs.items()
            for one, other in _ordered(both):
                if factor == 1 and isinstance(one, places.Activated) and isinstance(other, places.Activated):
                    yield self._reversed(one), other, None
        if len(single) != 1 or single[0][1] != 1:
            return
        alone = single[0][0]
        taken = [both for both, factor in pairs.items() if factor == -1 and alone in both]
        mixed = [both for both, factor in pairs.items() if factor == 1]
        gate = _other(taken[0], alone) if taken else None
        if len(taken) != 1 or len(taken) + len(mixed) != len(pairs) or not isinstance(gate, places.Activated):
            return
        more = _other(mixed[0], gate) if mixed else None
        if isinstance(alone, places.Activated):  # n - z * n + z * h'
            before = self._state(more)
            if not mixed or before is not None:
                yield self._gate(gate), alone, before
        elif isinstance(more, places.Activated) and (before := self._state(alone)) is not None:  # h' - u * h' + u * n
            yield self._reversed(gate), more, before

    def _reversed(self, factor: places.Activated) -> Gate | None:
        gate = self._gate(factor)
        return gate.negated() if gate is not None and gate.function.name == _SIGMOID else None

    def _candidate(
        self, candidate: places.Activated, before: places.Place | None
    ) -> tuple[Gate, Gate | None, Mapping[places.Vector | None, float], bool | None] | None:
        """The gate of the candidate, the reset gate, the bias inside the reset, and whether the reset scales the
        product; None for another form.
        """
        resets, inside = set[places.Activated](), dict[places.Vector | None, float]()
        products, bias = dict[places.Place, Entry](), dict[places.Vector | None, float]()
        scales: bool | None = None
        for factors, factor in self._sums.terms(candidate.argument):
            active = [each for each in factors if isinstance(each, places.Activated)]
            of = next((each for each in factors if not isinstance(each, places.Activated)), None)
            if (
                len(active) > 1
                or len(factors) > len(active) + (of is not None)
                or isinstance(of, places.Part | places.Mask)
            ):
                return None
            resets.update(active)
            if not isinstance(of, places.Product):
                (inside if active else bias)[of] = factor
                continue
            place, reset = (of.place, None) if active else self._scaled(of.place, before)
            is_state = bool(active) or reset is not None
            if place in products or is_state != (place == before):
                return None
            products[place] = of.matrix, factor
            if is_state:
                scales = bool(active)
                resets.update([] if reset is None else [reset])
        gate = self._gate(resets.pop()) if len(resets) == 1 else None
        if resets or (before is not None and scales is None) or (inside and scales is False):
            return None
        return (
            None
            if gate is None and (inside or scales is not None)
            else (Gate(candidate.function, products, bias), gate, inside, scales)
        )

    def _scaled(self, place: places.Place, before: places.Place | None) -> tuple[places.Place, places.Activated | None]:
        """The state and the reset gate where the place is their product; else the place itself."""
        known = self._sums.terms(self._values.sum_of(place) or places.ZERO) if isinstance(place, str) else []
        if len(known) == 1 and len(known[0][0]) == 2 and known[0][1] == 1:
            for reset, state in _ordered(known[0][0]):
                if isinstance(reset, places.Activated) and before is not None and self._state(state) == before:
                    return before, reset
        return place, None

    # ---- what goes into an activation

    def _gate(self, factor: places.Factor | None) -> Gate | None:
        """None unless it is an activation of products, biases and peepholes."""
        if not isinstance(factor, places.Activated):
            return None
        products, bias = dict[places.Place, Entry](), dict[places.Vector | None, float]()
        peepholes = dict[places.Place, tuple[places.Vector, float]]()
        for factors, each in self._sums.terms(factor.argument):
            vectors = [part for part in factors if isinstance(part, places.Vector)]
            parts = [part for part in factors if isinstance(part, places.Part)]
            if not factors:
                bias[None] = each
            elif len(factors) == 1 and isinstance(factors[0], places.Product) and factors[0].place not in products:
                products[factors[0].place] = factors[0].matrix, each
            elif len(factors) == 1 and vectors:
                bias[vectors[0]] = each
            elif vectors and (place := self._state(*parts)) is not None and place not in peepholes:
                peepholes[place] = vectors[0], each
            else:
                return None
        return Gate(factor.function, products, bias, peepholes)

    def _state(self, factor: places.Factor | None = None) -> places.Place | None:
        """The tensor that a part is all of."""
        return factor.place if self._values.is_whole(factor) else None


def _other(both: frozenset[places.Factor], one: places.Factor) -> places.Factor | None:
    """The other of two factors; None where there is none."""
    return next(iter(both - {one}), None) if one in both else None


def _ordered(both: Any) -> list[tuple[places.Factor, places.Factor]]:
    """Two factors in both orders."""
    factors = list(both)
    one, other = factors if len(factors) == 2 else factors * 2
    return [(one, other), (other, one)]
