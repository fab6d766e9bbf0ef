"""Recognises attention in a TIR function: scores, softmax over their last axis, and the product with the values.

Scores are sums of products with element-wise operators behind them, such as a scale and a mask. The output may have
such operators too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fractune_workers.children.triton_kernels.finishes import finish_lines, value_lines
from fractune_workers.children.triton_kernels.sums import (
    Factor,
    Sums,
    Unfit,
    is_zero,
    kind_of,
    products_of,
    stores_of,
    sums_in,
    uncast,
)

_REDUCTIONS = 4
"""scores, the largest score of a row, the sum of a row, and the product with the values"""
_FLOATS = ("float16", "bfloat16", "float32")
_SPATIAL = 0


@dataclass(frozen=True)
class Attention:
    scores: Sums
    """of queries (rows) and keys (columns)"""
    masked: Any
    """the buffer of scores that the softmax reads, with all operators behind the sums"""
    outputs: Sums
    """of weights (rows) and values (columns); the depth are the keys"""

    @property
    def query(self) -> Factor:
        return self.scores.factors[0]

    @property
    def key(self) -> Factor:
        return self.scores.factors[1]

    @property
    def value(self) -> Factor:
        return self.outputs.factors[1]

    @property
    def dtype(self) -> str:
        """of queries, keys and values"""
        return self.scores.dtype

    def score_lines(self) -> list[str]:
        """Lines of a function that returns the scores that the softmax reads, from sums."""
        return value_lines(self.scores, self.masked)

    def finish_lines(self) -> list[str]:
        """Lines of a function that stores the output, from sums that were divided by the sum of their weights."""
        return finish_lines(self.outputs)


def attention_of(function: Any) -> Attention:
    """The attention that a TIR function computes. Raises Unfit for another operator."""
    made = stores_of(function)
    reductions = [block for block in made.values() if block.init is not None]
    if len(reductions) != _REDUCTIONS:
        raise Unfit
    scores, largest, total, product = reductions
    softmax = _Softmax(made, largest, total)
    weights = next((each for each in map(_loaded, products_of(product)) if softmax.made_by(each)), None)
    if weights is None:
        raise Unfit
    found = Attention(sums_in(function, made, scores), softmax.read, sums_in(function, made, product, [weights]))
    _check_axes(found, product, weights)
    if found.dtype not in _FLOATS or found.outputs.dtype != found.dtype:
        raise Unfit
    found.score_lines()
    found.finish_lines()
    return found


def _loaded(value: Any) -> Any:
    """The buffer that a value comes from, unchanged but for its type; None for another value."""
    value = uncast(value)
    return value.source if kind_of(value) == "TensorLoad" else None


class _Softmax:
    """exp(x - max(x)) / sum(exp(x - max(x))) over the last axis of x, as TVM writes it."""

    def __init__(self, made: Mapping[Any, Any], largest: Any, total: Any) -> None:
        self._made = made
        self._largest = largest
        self._total = total
        (maximum,) = _operands(largest.body.value, "Max", largest)
        if not _is_row(largest, maximum):
            raise Unfit
        self.read = maximum.source
        """the buffer x"""

    def made_by(self, buffer: Any) -> bool:
        """Whether a buffer holds the softmax, possibly in another type."""
        while (block := self._made.get(buffer)) is not None and block.init is None:
            value = uncast(block.body.value)
            if kind_of(value) == "Div":
                return self._is_quotient(block, value)
            if not _is_same_place(block, value):
                return False
            buffer = value.source
        return False

    def _is_quotient(self, block: Any, value: Any) -> bool:
        exponential, total = uncast(value.a), uncast(value.b)
        if not _is_same_place(block, exponential) or not _is_of_row(block, total, self._total.body.buffer):
            return False
        (added,) = _operands(self._total.body.value, "Add", self._total)
        return bool(
            is_zero(self._total.init.value)
            and _is_row(self._total, added)
            and added.source.same_as(exponential.source)
            and self._is_exponential(self._made.get(exponential.source))
        )

    def _is_exponential(self, block: Any) -> bool:
        value: Any = uncast(block.body.value) if block is not None and block.init is None else None
        if kind_of(value) != "Call" or value.op.name.rpartition(".")[2] != "exp":
            return False
        difference = uncast(value.args[0])
        return bool(
            kind_of(difference) == "Sub"
            and _is_same_place(block, uncast(difference.a))
            and uncast(difference.a).source.same_as(self.read)
            and _is_of_row(block, uncast(difference.b), self._largest.body.buffer)
        )


def _operands(value: Any, kind: str, block: Any) -> tuple[Any]:
    """What a reduction takes in beside its own earlier value."""
    for own, other in ((value.a, value.b), (value.b, value.a)) if kind_of(value) == kind else ():
        if _loaded(own) is not None and uncast(own).source.same_as(block.body.buffer):
            return (uncast(other),)
    raise Unfit


def _is_row(block: Any, value: Any) -> bool:
    """Whether a reduction over one axis reads a buffer whose last axis that is, and whose others are its own."""
    reduced = [each.var for each in block.iter_vars if int(each.iter_type) != _SPATIAL]
    return kind_of(value) == "TensorLoad" and _same(value.indices, [*block.body.indices, *reduced])


def _is_same_place(block: Any, value: Any) -> bool:
    return kind_of(value) == "TensorLoad" and _same(value.indices, block.body.indices)


def _is_of_row(block: Any, value: Any, buffer: Any) -> bool:
    """Whether it is the element of the row, in a buffer with one for each row."""
    is_load = kind_of(value) == "TensorLoad" and value.source.same_as(buffer)
    return is_load and _same(value.indices, list(block.body.indices)[:-1])


def _same(indices: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(indices) == len(others) and all(one.same_as(other) for one, other in zip(indices, others, strict=True))


def _check_axes(found: Attention, product: Any, weights: Any) -> None:
    """Raises Unfit unless rows and batches of both sums are the same axes of the scores, and the keys are the last."""
    if found.outputs.factors[0].argument != len(found.outputs.function.params):
        raise Unfit
    (load,) = (uncast(each) for each in products_of(product) if _is(each, weights))
    columns = [axis for axis, _ in found.scores.groups["column"]]
    depths = [axis for axis, _ in found.outputs.groups["depth"]]
    if len(columns) != 1 or len(depths) != 1 or len(load.indices) != len(found.scores.indices):
        raise Unfit
    if not columns[0].same_as(found.scores.indices[-1]):
        raise Unfit
    if not load.indices[-1].same_as(depths[0]):
        raise Unfit
    for group in ("batch", "row"):
        if _places(found.scores, group, found.scores.indices) != _places(found.outputs, group, load.indices):
            raise Unfit


def _is(value: Any, buffer: Any) -> bool:
    source = _loaded(value)
    return source is not None and bool(source.same_as(buffer))


def _places(sums: Sums, group: str, indices: Sequence[Any]) -> list[tuple[int, int]]:
    """The dimensions of the scores that the axes of a group are, and their extents, the outermost axis first."""
    places = []
    for axis, extent in sums.groups[group]:
        found = [place for place, index in enumerate(indices) if index is not None and axis.same_as(index)]
        if len(found) != 1:
            raise Unfit
        places.append((found[0], extent))
    return places
