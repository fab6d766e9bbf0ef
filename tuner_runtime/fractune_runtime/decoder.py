"""A decoder that keeps its cache between calls.

session = fractune.load("decoder.fractune", share="cpu:2").decoder()
logits = session.prefill(prompt)
while (token := int(logits.argmax())) != end:
    logits = session.step(token)

A bundle's buckets differ in the new tokens of a call and in the rows before them. All read and write one buffer for
each cache. The rows in use end where the new ones begin. So a call with a bucket of P rows reads the P rows before, and
the mask hides those that are not in use. The place of these rows moves from call to call; no row is ever copied. Where
an operator writes new rows into a cache of all rows (GroupQueryAttention), rows stay where they are.

Each bucket has arrays for its inputs and outputs that stay, so a call allocates nothing but its result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from fractune_core.errors import BadRequest, shortened
from fractune_core.files.bundles import Bundle
from fractune_core.files.manifests import LOGITS, MASK, NEXT_TOKEN
from fractune_runtime.tvm_runtime.tensors import Array, CacheRows, TensorSpec, array_of, as_arrays

IDS = ("input_ids", "decoder_input_ids", "tokens", "ids")
POSITIONS = ("position_ids", "cache_position")
_BY_TOKENS = 3
"""Rank of outputs with an axis of tokens"""


class Decodes(Protocol):
    """A model, of one bucket."""

    bundle: Bundle

    @property
    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Of the inputs and the outputs."""
        ...

    def run(self, inputs: Mapping[str, Any]) -> list[Array]:
        """The outputs."""
        ...

    def outputs_of_last(self, outputs: Sequence[TensorSpec]) -> list[TensorSpec]:
        """The outputs that are no caches where one of them may be for one token alone."""
        ...

    def bind_cached(
        self, inputs: Mapping[str, Any], outputs: Sequence[Any], *, last: bool = False, is_step: bool = False
    ) -> Callable[[int, int], None]:
        """A call that computes the outputs that are no caches, and writes new rows into the buffers among the inputs.
        It takes the number of the row with which the buffers begin, and the number of the token that the outputs of
        `outputs_of_last` are for. `is_step`: such calls follow each other without a rest.
        """
        ...


class DecoderSession:
    """One sequence, or one batch of sequences of equal length. One thread at a time may use it; sessions of one model
    take turns.
    """

    length: int
    """tokens in the cache"""
    capacity: int
    """tokens in the cache with which a step is still possible: the most rows of a bucket"""

    def __init__(self, models: Sequence[Decodes], inputs: Mapping[str, Any] | None = None) -> None:
        """`models`: those of a bundle's buckets. `inputs`: those that stay the same, such as an encoder's outputs; the
        buckets of their shapes are used. Raises BadRequest for a model without a cache, and for inputs that no session
        knows.
        """
        given = dict(inputs or {})
        with_past = [each for each in models if each.bundle.manifest.get("caches")]
        own = [each for each in with_past if _fits(each, given)] or with_past or list(models[-1:])
        firsts = [each for each in models if each not in with_past and _fits(each, given)]
        rows = _rows_of_encoder(firsts[0], own[-1], given) if firsts and with_past else {}
        self._buckets = [_Bucket.of(model, {**given, **rows}) for model in own]
        self.capacity = max(each.most for each in self._buckets)
        length = self.capacity + max(each.tokens for each in self._buckets)
        self.caches = [CacheRows(spec, axis, length, self.capacity) for spec, axis in self._buckets[-1].caches]
        self._calls: dict[int, _Call] = {}
        """by the number of the bucket"""
        self.length = 0

    def prefill(self, ids: Any, out: Array | None = None) -> Array:
        """Append tokens (length, or batch and length) in chunks of the largest bucket. Returns the logits (batch,
        vocabulary) behind the last, in the array `out` if there is one. Raises BadRequest if the cache has no room for
        all of them; then it is unchanged. Of a bundle with the output `next_token` (`tune --greedy`) it is the most
        probable token (batch) in place of the logits.
        """
        tokens = self._tokens(ids)
        begin, made = 0, tokens
        for number, size in self._plan(tokens.shape[1]):
            made = self._run(number, tokens[:, begin : begin + size])
            begin += size
        if out is None:
            return made.copy()
        if (out.shape, out.dtype) != (made.shape, made.dtype):
            raise BadRequest(f"out is {out.dtype}{list(out.shape)}; the logits are {made.dtype}{list(made.shape)}")
        out[...] = made
        return out

    def step(self, token: Any, out: Array | None = None) -> Array:
        """Append one token: a number, or one for each sequence of the batch. Returns and raises as `prefill`."""
        import numpy as np

        return self.prefill(np.asarray(token).reshape(-1, 1), out)

    def append(self, ids: Any, mask: Array | None = None, positions: Array | None = None) -> dict[str, Array]:
        """Append tokens as `prefill`. Returns all outputs that are no caches, by name, for each of the tokens.

        `mask` (batch, tokens with those before) hides tokens, and `positions` (batch, tokens) are other ones than the
        tokens' numbers. Raises as `prefill`, and BadRequest for another shape of these.
        """
        import numpy as np

        tokens = self._tokens(ids)
        count = tokens.shape[1]
        for name, array, length in (("mask", mask, self.length + count), ("positions", positions, count)):
            if array is not None and array.shape != (len(tokens), length):
                raise BadRequest(f"the {name} has the shape {list(array.shape)}; give {[len(tokens), length]}")
        made: dict[str, list[Array]] = {}
        begin = 0
        for number, size in self._plan(count):
            end, call = begin + size, self._call(number)
            seen = None if mask is None else mask[:, : self.length + size]
            places = None if positions is None else positions[:, begin:end]
            for name, array in call.outputs(tokens[:, begin:end], self.length, seen, places).items():
                # Of an output without an axis of tokens, the last one counts.
                made[name] = [*(made.get(name, []) if name in call.by_tokens else []), array]
            self.length, begin = self.length + size, end
        return {name: parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1) for name, parts in made.items()}

    @property
    def is_whole(self) -> bool:
        """Whether each cache has all rows before and behind a call."""
        return self._buckets[-1].is_whole

    def is_size(self, length: int, count: int) -> bool:
        """Whether a bucket has exactly so many rows before its tokens, and so many tokens."""
        return any((each.past, each.tokens) == (length, count) for each in self._buckets)

    def has(self, inputs: Mapping[str, Array]) -> bool:
        """Whether these inputs are those that stay the same."""
        import numpy as np

        fixed = self._buckets[-1].fixed
        return inputs.keys() == fixed.keys() and all(np.array_equal(fixed[name], each) for name, each in inputs.items())

    def over(self, arrays: Sequence[Array]) -> DecoderSession:
        """A session over caches of the caller, which have all rows. Raises BadRequest for arrays of other shapes."""
        made = object.__new__(DecoderSession)
        specs = self._buckets[-1].caches
        caches = [CacheRows.over(spec, axis, array) for (spec, axis), array in zip(specs, arrays, strict=True)]
        made.__dict__ = {**self.__dict__, "caches": caches, "_calls": {}}
        return made

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def fork(self) -> DecoderSession:
        """A session with a copy of the cache, which goes on independently."""
        made = object.__new__(DecoderSession)
        made.__dict__ = {**self.__dict__, "caches": [each.copy() for each in self.caches], "_calls": {}}
        return made

    def _tokens(self, ids: Any) -> Array:
        """(batch, length)"""
        import numpy as np

        batch = self._buckets[-1].batch
        given = np.asarray(ids)
        tokens = given[None] if given.ndim == 1 and batch == 1 else given
        if tokens.dtype.kind not in "iu" or tokens.ndim != 2 or len(tokens) != batch or not tokens.size:
            raise BadRequest(
                f"tokens of the shape {list(given.shape)} and type {given.dtype}; give whole numbers, {batch} row(s) "
                "of at least one"
            )
        return tokens

    def _plan(self, count: int) -> list[tuple[int, int]]:
        """The numbers of the buckets that run so many tokens, and how many of these each. Raises BadRequest for too
        many.
        """
        plan: list[tuple[int, int]] = []
        length, left = self.length, count
        while left:
            fitting = {at: each for at, each in enumerate(self._buckets) if each.most >= length}
            if not fitting:
                raise BadRequest(
                    f"the cache is full: {self.length} tokens and {count} more, and a call reads at most "
                    f"{self.capacity} before its own; reset() the session, or tune the model with a larger cache"
                )
            number, size = _chosen(fitting, left)
            plan.append((number, size))
            length, left = length + size, left - size
        return plan

    def _run(self, number: int, tokens: Array) -> Array:
        """The logits behind these tokens, in memory that the next call overwrites."""
        made = self._call(number).logits(tokens, self.length)
        self.length += tokens.shape[1]
        return made

    def _call(self, number: int) -> _Call:
        if number not in self._calls:
            self._calls[number] = _Call(self._buckets[number], self.caches)
        return self._calls[number]


def _chosen(buckets: Mapping[int, _Bucket], left: int) -> tuple[int, int]:
    """The number of the bucket for the next tokens, with the fewest rows: it is filled, or padded to hold all that are
    left. And how many of the tokens.
    """
    filled = [at for at, each in buckets.items() if each.tokens <= left]
    padded = [at for at, each in buckets.items() if each.tokens > left and each.pads]
    most = max((buckets[at].tokens for at in filled), default=0)
    least = min((buckets[at].tokens for at in padded), default=0)
    if least and most < left:
        return min((at for at in padded if buckets[at].tokens == least), key=lambda at: buckets[at].past), left
    if not most:
        raise BadRequest(f"no bucket takes {left} token(s) alone; tune the model for sequences of 1 as well")
    return min((at for at in filled if buckets[at].tokens == most), key=lambda at: buckets[at].past), most


@dataclass(frozen=True)
class _Bucket:
    """The model of one bucket, and what its inputs and outputs are."""

    model: Decodes
    batch: int
    tokens: int
    """new ones of a call"""
    past: int
    """rows before them"""
    caches: list[tuple[TensorSpec, int]]
    """the inputs with the rows before, and their axes of rows"""
    fixed: dict[str, Array]
    outputs: list[TensorSpec]
    """those that are no caches"""
    place: int
    """of the logits among these"""
    is_whole: bool
    """whether the rows before are all rows of the cache, and the new ones are among them. Then the number of tokens
    says which are in use, and padding counts.
    """
    pads: bool
    """whether there are logits of each token, so that padding may follow the last token"""

    @classmethod
    def of(cls, model: Decodes, inputs: Mapping[str, Any]) -> _Bucket:
        name, described = model.bundle.name, model.bundle.manifest.get("caches", [])
        if not described:
            raise BadRequest(
                f"{name} has no cache that is an input with new rows behind it, as past and present keys; run() it"
            )
        takes = {spec.name: spec for spec in model.specs[0]}
        gives = {spec.name: spec for spec in model.specs[1]}
        caches = [(takes[each["input"]], each["axis"]) for each in described]
        pasts = {spec.shape[axis] for spec, axis in caches}
        rows = {gives[each["output"]].shape[each["axis"]] for each in described}
        others = {spec for each, spec in takes.items() if each not in {cache["input"] for cache in described}}
        # An encoder's keys and values are its `present_key_cross_0`, and the decoder's `past_key_cross_0`.
        known = {name if name in takes else name.replace("present", "past", 1): each for name, each in inputs.items()}
        if strange := sorted(set(known) - {spec.name for spec in others}):
            raise BadRequest(
                f"{name} has no input {shortened(strange[0], 80)} that a session can keep; "
                f"beside its caches it takes {', '.join(sorted(map(str, others)))}"
            )
        fixed = as_arrays([spec for spec in others if spec.name in known], known)
        if len(pasts) > 1 or len(rows) > 1:
            raise BadRequest(f"{name} has caches of {sorted(pasts)} rows; export it with caches of one length")
        (past,), (total,) = pasts, rows
        ids = next((spec.shape for spec in others if spec.name in IDS), ())
        is_whole = total == past
        tokens = int(ids[-1] or 0) if is_whole and ids else total - past
        hides = all(each.get("hides_unused") is True for each in described)
        _check_roles(name, [spec for spec in others if spec.name not in fixed], tokens, total, hides=hides)
        batch = next(int(spec.shape[0] or 0) for spec in others if spec.name in IDS)
        left = [spec for spec in gives.values() if spec.name not in {each["output"] for each in described}]
        place = next((at for at, spec in enumerate(left) if spec.name in (LOGITS, NEXT_TOKEN)), 0)
        # Without a mask, the tokens of a call may see each other, and then they would see padding too.
        pads = not hides and _is_by_tokens(left[place]) and left[place].shape[1] == tokens
        return cls(model, batch, tokens, past, caches, fixed, left, place, is_whole, pads)

    @property
    def most(self) -> int:
        """Tokens in the cache with which a call is possible."""
        return self.past - self.tokens if self.is_whole else self.past


class _Call:
    """The calls of a bucket by one session, with its caches and with arrays that stay."""

    def __init__(self, bucket: _Bucket, caches: Sequence[CacheRows]) -> None:
        import numpy as np

        self._bucket = bucket
        specs = [spec for spec in bucket.model.specs[0] if spec.name not in {cache.name for cache, _ in bucket.caches}]
        arrays = {spec.name: array_of(spec) for spec in specs}
        for name, array in arrays.items():
            array[...] = bucket.fixed.get(name, 0)
        self._ids, self._masks, self._positions = (
            [arrays[name] for name in names if name in arrays and name not in bucket.fixed]
            for names in (IDS, MASK, POSITIONS)
        )
        self._offsets = np.arange(bucket.tokens)
        self.by_tokens = {spec.name for spec in bucket.outputs if _is_by_tokens(spec)}
        """names of outputs with an axis of tokens"""
        buffers = {spec.name: buffer for (spec, _), buffer in zip(bucket.caches, caches, strict=True)}
        self._inputs = {**arrays, **buffers}
        self._last = bucket.model.outputs_of_last(bucket.outputs)
        self._bound: dict[bool, tuple[list[Array], Callable[[int, int], None]]] = {}
        """by whether the logits are of one token alone: the outputs, and the call that computes them"""

    def logits(self, tokens: Array, length: int) -> Array:
        """Append the tokens, which follow `length` others. Returns the logits behind the last of them (batch,
        vocabulary), in memory that the next call overwrites.
        """
        bucket, place = self._bucket, self._bucket.place
        is_by_tokens = bucket.outputs[place].name in self.by_tokens
        token = tokens.shape[1] - 1 if bucket.pads else bucket.tokens - 1
        last = is_by_tokens and self._last[place] != bucket.outputs[place]
        made = self._compute(tokens, length, token, last=last)[place]
        return made[:, 0 if last else token if bucket.pads else -1] if is_by_tokens else made

    def outputs(
        self, tokens: Array, length: int, mask: Array | None = None, positions: Array | None = None
    ) -> dict[str, Array]:
        """Append as `logits`. Returns copies of all outputs, by name. `mask` and `positions` are as in
        `DecoderSession.append`.
        """
        bucket, count = self._bucket, tokens.shape[1]
        made = self._compute(tokens, length, count - 1, mask, positions)
        return {
            spec.name: (
                array[:, :count] if spec.name in self.by_tokens and array.shape[1] == bucket.tokens else array
            ).copy()
            for spec, array in zip(bucket.outputs, made, strict=True)
        }

    def _compute(
        self,
        tokens: Array,
        length: int,
        token: int,
        mask: Array | None = None,
        positions: Array | None = None,
        *,
        last: bool = False,
    ) -> list[Array]:
        """The outputs, those of the number `token` alone with `last`. The rows in use are the last of those before the
        call's, and padding follows the tokens.
        """
        import numpy as np

        bucket, count = self._bucket, tokens.shape[1]
        if last not in self._bound:
            made = [array_of(spec) for spec in (self._last if last else bucket.outputs)]
            bound = bucket.model.bind_cached(self._inputs, made, last=last, is_step=bucket.tokens == 1)
            self._bound[last] = made, bound
        outputs, compute = self._bound[last]
        for each in self._ids:
            each[:, :count] = tokens
            each[:, count:] = 0
        begin = 0 if bucket.is_whole else bucket.past - length
        end = begin + length + count
        for each in self._masks:
            each[...] = 0
            each[:, begin:end] = 1 if mask is None else mask
            if bucket.is_whole:
                each[:, end : length + bucket.tokens] = 1
        for each in self._positions:
            np.add(self._offsets, length, out=each, casting="unsafe")
            if positions is not None:
                each[:, :count] = positions
        compute(0 if bucket.is_whole else -begin, token)
        return outputs


def _fits(model: Decodes, given: Mapping[str, Any]) -> bool:
    """Whether the model takes these inputs in their shapes, as far as it takes them."""
    shapes = {name: tuple(getattr(each, "shape", ())) for name, each in given.items()}
    return all(shapes.get(spec.name, spec.shape) == spec.shape for spec in model.specs[0])


def _rows_of_encoder(first: Decodes, step: Decodes, given: Mapping[str, Any]) -> dict[str, Array]:
    """The keys and values of the encoder that `step` takes, from a call of the branch without a past: they follow from
    the inputs alone that stay the same. None where it gives none, or such an input is missing.
    """
    caches = {each["input"] for each in step.bundle.manifest["caches"]}
    missing = {spec.name for spec in step.specs[0]} - caches - given.keys()
    names = [spec.name.replace("present", "past_key_values", 1) for spec in first.specs[1]]
    own = [spec for spec in first.specs[0] if spec.name not in given]
    if not missing & set(names) or any(spec.name not in IDS and "past" not in spec.name for spec in own):
        return {}
    arrays = {spec.name: array_of(spec) for spec in own}
    for each in arrays.values():
        each[...] = 0
    taken = {spec.name: given[spec.name] for spec in first.specs[0] if spec.name in given}
    outputs = zip(names, first.run({**taken, **arrays}), strict=True)
    return {name: array for name, array in outputs if name in missing}


def _is_by_tokens(spec: TensorSpec) -> bool:
    return len(spec.shape) >= (2 if spec.name == NEXT_TOKEN else _BY_TOKENS)


def _check_roles(name: str, specs: Sequence[TensorSpec], tokens: int, total: int, *, hides: bool) -> None:
    """Raises BadRequest for inputs that a session cannot give. `hides`: whether the model needs no mask."""
    names = {spec.name for spec in specs}
    for known, what in ((IDS, "the new tokens"), (MASK, "which rows are in use")):
        if not names & set(known) and not (hides and known is MASK):
            raise BadRequest(f"{name} has no input for {what} ({' or '.join(known)}); run() it, or export it with one")
    for spec in specs:
        rows = total if spec.name in MASK else tokens
        if spec.name not in (*IDS, *MASK, *POSITIONS) or spec.shape[-1] != rows or len(spec.shape) > 2:
            raise BadRequest(
                f"{name} takes {spec}, which no session knows; give an input that stays the same by "
                f"decoder({{{spec.name!r}: array}})"
            )
