"""The kernel of attention over a cache, in vectors: the keys and the values in use are read once for some queries.

One task has a few queries of one head of the keys. It computes their scores, their weights and then the weighted sum of
the values, and keeps the scores in memory of its own. Keys that no query of the task sees are not read. The schedule is
computed from the sizes and the vector unit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import ceil
from typing import Any

from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script.builder import ir as builder

from fractune_workers.children.rewriting.expressions import OPAQUE
from fractune_workers.children.tvm_api.target import VectorUnit

_FLOAT, _WHOLE = "float32", "int32"
UNSEEN = float("-inf")
"""the score of a key that a query does not see"""
LOWEST = -3.4028234663852886e38
"""The largest score of no key. A mask may add it to all scores of a query, and then each key has the same weight."""
MOST_ROWS, _MOST_VECTORS = 4, 4
"""of a task, and of the values at a time: the sums stay in registers"""
_LEAST_POWER = -87.0
"""of the exponential: below, it is 0"""
_LOG2_E, _LN2_HIGH, _LN2_LOW = 1.44269504088896341, 0.693359375, -2.12194440e-4
_POLYNOMIAL = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""of Cephes"""


@dataclass(frozen=True)
class Attention:
    """Queries (batch, tokens, heads, width), keys and values (batch, their heads, keys, width)."""

    batch: int
    tokens: int
    heads: int
    key_heads: int
    keys: int
    width: int
    value_width: int
    scale: float
    softcap: float = 0.0
    """0: none"""
    window: int = -1
    """how many keys up to its own a query sees; -1: all"""
    is_causal: bool = True
    has_sink: bool = False
    """whether the sum of a row's exponentials has one more, of a number of each head"""
    by_heads: bool = False
    """whether queries and result are (batch, heads, tokens, width)"""
    zero_unseen: bool = False
    """whether a query that sees no key has zeros; else it has no number"""

    @property
    def group(self) -> int:
        """Heads of queries that share one head of keys."""
        return self.heads // self.key_heads

    def query_shape(self, width: int) -> tuple[int, ...]:
        tokens, heads = self.tokens, self.heads
        return (self.batch, heads, tokens, width) if self.by_heads else (self.batch, tokens, heads, width)

    def key_shape(self, width: int) -> tuple[int, ...]:
        return self.batch, self.key_heads, self.keys, width

    def query_place(self, batch: Any, token: Any, head: Any, at: Any) -> list[Any]:
        return [batch, head, token, at] if self.by_heads else [batch, token, head, at]

    def seen(self, past: Any, token: Any) -> tuple[Any, Any]:
        """The first key that a query sees, and the first behind these. `past`: keys before those of the queries."""
        own = past + token
        end = own + 1 if self.is_causal else past + self.tokens
        return (tirx.max(own + 1 - self.window, 0) if self.window >= 0 else own * 0), end


def attention_kernel(of: Attention, unit: VectorUnit, bias: Sequence[int], *, has_past: bool) -> tirx.PrimFunc:
    """The kernel. Its arguments are queries, keys and values. With `has_past` follows the number of keys before those
    of the queries (batch), and with a `bias` of this shape what is added to the scores. The last are the sink (heads),
    if there is one, and the result.
    """
    with IRBuilder() as made, builder.prim_func(is_private=True, s_tir=True):
        builder.func_name("attention")
        builder.func_attr({"tirx.noalias": True, **OPAQUE})
        _Kernel(of, unit, bias, has_past=has_past).build()
    return made.get()


class _Kernel:
    def __init__(self, of: Attention, unit: VectorUnit, bias: Sequence[int], *, has_past: bool) -> None:
        self._of = of
        self._lanes = unit.lanes
        self._rows = min(MOST_ROWS, of.group * of.tokens)
        self._queries = builder.arg("queries", builder.buffer(of.query_shape(of.width), _FLOAT))
        self._keys = builder.arg("keys", builder.buffer(of.key_shape(of.width), _FLOAT))
        self._values = builder.arg("values", builder.buffer(of.key_shape(of.value_width), _FLOAT))
        self._past: Any = builder.arg("past", builder.buffer((of.batch,), _WHOLE)) if has_past else None
        self._bias: Any = builder.arg("bias", builder.buffer(tuple(bias), _FLOAT)) if bias else None
        self._sink: Any = builder.arg("sink", builder.buffer((of.heads,), _FLOAT)) if of.has_sink else None
        self._result = builder.arg("result", builder.buffer(of.query_shape(of.value_width), _FLOAT))

    def build(self) -> None:
        of = self._of
        parts = ceil(of.group * of.tokens / self._rows)
        with builder.sblock("root"):
            builder.reads([])
            builder.writes([])
            with builder.parallel(0, of.batch * of.key_heads * parts) as task:
                self._batch = task // (of.key_heads * parts)
                self._head = task // parts % of.key_heads
                self._task(task % parts * self._rows)

    def _task(self, first: Any) -> None:
        """Some queries from the number `first` on. Behind the last query, it is computed again."""
        of = self._of
        last = of.group * of.tokens - 1
        numbers = [tirx.min(first + row, last) for row in range(self._rows)]
        self._places = [(self._head * of.group + each // of.tokens, each % of.tokens) for each in numbers]
        past = self._past[self._batch] if self._past is not None else tirx.const(of.keys - of.tokens, _WHOLE)
        self._seen = [of.seen(past, token.astype(_WHOLE)) for _, token in self._places]
        begin = tirx.max(reduce(tirx.min, [each for each, _ in self._seen]), 0)
        end = tirx.max(tirx.min(reduce(tirx.max, [each for _, each in self._seen]), of.keys), begin)
        self._scores = builder.alloc_buffer((self._rows, of.keys + self._lanes), _FLOAT)
        self._largest, self._totals = self._numbers(1), self._numbers(1)
        for row in range(self._rows):
            builder.buffer_store(self._largest, self._lowest(row), [row, 0])
        with builder.serial(begin, end) as key:
            self._score(key)
        self._weigh(begin, end)
        lanes = _dividing(of.value_width, self._lanes)
        for at in range(0, of.value_width, lanes * _MOST_VECTORS):
            self._sum_values(at, min(_MOST_VECTORS, (of.value_width - at) // lanes), lanes, begin, end)

    def _lowest(self, row: int) -> Any:
        """The score that a query has without a key."""
        return tirx.const(LOWEST, _FLOAT) if self._sink is None else self._sink[self._places[row][0]]

    def _score(self, key: Any) -> None:
        of = self._of
        lanes = _dividing(of.width, self._lanes)
        sums = self._numbers(lanes)
        self._clear(sums)
        for at in range(0, of.width, lanes):

            def add(row: int, lane: Any, at: int = at) -> None:
                head, token = self._places[row]
                query = self._queries[tuple(of.query_place(self._batch, token, head, at + lane))]
                product = query * self._keys[self._batch, self._head, key, at + lane]
                builder.buffer_store(sums, sums[row, lane] + product, [row, lane])

            self._each(sums, add)
        self._add_up(sums, lambda one, other: one + other)
        nothing = tirx.const(UNSEEN, _FLOAT)
        for row in range(self._rows):
            begin, end = self._seen[row]
            score = tirx.if_then_else(tirx.And(key >= begin, key < end), self._finished(sums, row, key), nothing)
            builder.buffer_store(self._scores, score, [row, key])
            largest = tirx.max(self._largest[row, 0], self._scores[row, key])
            builder.buffer_store(self._largest, largest, [row, 0])

    def _finished(self, sums: Any, row: int, key: Any) -> Any:
        of, (head, token) = self._of, self._places[row]
        score = sums[row, 0] * tirx.const(of.scale, _FLOAT)
        if of.softcap:
            score = tirx.tanh(score / tirx.const(of.softcap, _FLOAT)) * tirx.const(of.softcap, _FLOAT)
        if self._bias is None:
            return score
        place = zip((self._batch, head, token, key), self._bias.shape, strict=True)
        return score + self._bias[tuple(each if int(size) > 1 else 0 for each, size in place)]

    def _weigh(self, begin: Any, end: Any) -> None:
        """Make exponentials of the scores, in whole vectors, and their sums."""
        nothing = tirx.const(UNSEEN, _FLOAT)
        for row in range(self._rows):
            with builder.vectorized(0, self._lanes) as lane:
                builder.buffer_store(self._scores, nothing, [row, end + lane])
        totals = self._numbers(self._lanes)
        self._clear(totals)
        with builder.serial(0, (end - begin + self._lanes - 1) // self._lanes) as part:

            def power(row: int, lane: Any) -> None:
                place = [row, begin + part * self._lanes + lane]
                value = _exponential(self._scores[tuple(place)] - self._largest[row, 0])
                builder.buffer_store(self._scores, value, place)

            def add(row: int, lane: Any) -> None:
                weight = self._scores[row, begin + part * self._lanes + lane]
                builder.buffer_store(totals, totals[row, lane] + weight, [row, lane])

            self._each(totals, power)
            self._each(totals, add)
        self._add_up(totals, lambda one, other: one + other)
        for row in range(self._rows):
            total = totals[row, 0]
            if self._sink is not None:
                total = total + _exponential(self._lowest(row) - self._largest[row, 0])
            factor = tirx.const(1.0, _FLOAT) / total
            if self._of.zero_unseen:
                factor = tirx.Select(total == tirx.const(0.0, _FLOAT), tirx.const(0.0, _FLOAT), factor)
            builder.buffer_store(self._totals, factor, [row, 0])

    def _sum_values(self, first: int, vectors: int, lanes: int, begin: Any, end: Any) -> None:
        """Some vectors of the result, from its number `first` on."""
        all_sums = [self._numbers(lanes) for _ in range(vectors)]
        for sums in all_sums:
            self._clear(sums)
        with builder.serial(begin, end) as key:
            for number, sums in enumerate(all_sums):

                def add(row: int, lane: Any, number: int = number, sums: Any = sums) -> None:
                    value = self._values[self._batch, self._head, key, first + number * lanes + lane]
                    builder.buffer_store(sums, sums[row, lane] + self._scores[row, key] * value, [row, lane])

                self._each(sums, add)
        for number, sums in enumerate(all_sums):

            def store(row: int, lane: Any, number: int = number, sums: Any = sums) -> None:
                head, token = self._places[row]
                place = self._of.query_place(self._batch, token, head, first + number * lanes + lane)
                builder.buffer_store(self._result, sums[row, lane] * self._totals[row, 0], place)

            self._each(sums, store)

    def _numbers(self, lanes: int) -> Any:
        """Registers: a vector for each query."""
        return builder.alloc_buffer((self._rows, lanes), _FLOAT, scope="local")

    def _each(self, numbers: Any, body: Callable[[int, Any], None]) -> None:
        rows, lanes = (int(extent) for extent in numbers.shape)
        for row in range(rows):
            with builder.vectorized(0, lanes) as lane:
                body(row, lane)

    def _clear(self, numbers: Any) -> None:
        self._each(numbers, lambda *at: builder.buffer_store(numbers, tirx.const(0, _FLOAT), list(at)))

    def _add_up(self, numbers: Any, combine: Callable[[Any, Any], Any]) -> None:
        """Combine the lanes of each row into its first, by halves."""
        rows, lanes = (int(extent) for extent in numbers.shape)
        while lanes > 1:
            lanes //= 2
            for row in range(rows):
                with builder.vectorized(0, lanes) as lane:
                    value = combine(numbers[row, lane], numbers[row, lane + lanes])
                    builder.buffer_store(numbers, value, [row, lane])


def _dividing(width: int, lanes: int) -> int:
    """The widest vector that divides the numbers of a head."""
    while width % lanes:
        lanes //= 2
    return lanes


def _exponential(x: Any) -> Any:
    """Of a number up to 0, by the polynomial of Cephes, whose error is two units in the last place."""

    def const(value: float) -> Any:
        return tirx.const(value, _FLOAT)

    within = tirx.max(x, const(_LEAST_POWER))
    whole = tirx.floor(within * const(_LOG2_E) + const(0.5))
    rest = within - whole * const(_LN2_HIGH) - whole * const(_LN2_LOW)
    value = const(_POLYNOMIAL[0])
    for factor in _POLYNOMIAL[1:]:
        value = value * rest + const(factor)
    power = tirx.reinterpret(_FLOAT, (whole.astype(_WHOLE) + tirx.const(127, _WHOLE)) << tirx.const(23, _WHOLE))
    return tirx.Select(x < const(_LEAST_POWER), const(0.0), (value * rest * rest + rest + const(1.0)) * power)
