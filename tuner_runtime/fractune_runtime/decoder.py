"""A decoder that keeps its cache between calls.

session = fractune.load("decoder.fractune", share="cpu:2").decoder()
logits = session.prefill(prompt)
while (token := int(logits.argmax())) != end:
    logits = session.step(token)

A bundle's buckets differ in the new tokens of a call and in the rows before them. All read and write one buffer for
each cache. The rows in use end where the new ones begin. So a call with a bucket of P rows reads the P rows before, and
the mask hides those that are not in use. The place of these rows moves from call to call; no row is ever copied. Where
an operator writes new rows into a cache of all rows (GroupQueryAttention), rows stay where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Protocol

from fractune_core.errors import BadRequest
from fractune_runtime.tvm_runtime.runtime import aligned_bytes
from fractune_runtime.tvm_runtime.tensors import TensorSpec, as_arrays, numpy_dtype, over

if TYPE_CHECKING:
    from fractune_core.files.bundles import Bundle
    from fractune_runtime.tvm_runtime.tensors import Array

_IDS = ("input_ids", "decoder_input_ids", "tokens", "ids")
_MASK = ("attention_mask", "decoder_attention_mask")
_POSITIONS = ("position_ids", "cache_position")
_LOGITS = "logits"
_BY_TOKENS = 3
"""Rank of outputs with an axis of tokens"""


class Decodes(Protocol):
    """A model, of one bucket."""

    bundle: Bundle

    @property
    def specs(self) -> tuple[list[TensorSpec], list[TensorSpec]]:
        """Of the inputs and the outputs."""
        ...

    def run_cached(self, inputs: Mapping[str, Any]) -> list[Array]:
        """The outputs that are no caches. The new rows of the caches are written into the tensors among the inputs."""
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
        """`models`: those of a bundle's buckets. `inputs`: those that stay the same, such as an encoder's outputs.
        Raises BadRequest for a model without a cache, and for inputs that no session knows.
        """
        self._buckets = [_Bucket.of(model, inputs or {}) for model in models]
        self.capacity = max(each.most for each in self._buckets)
        rows = self.capacity + max(each.tokens for each in self._buckets)
        self._caches = [_Rows(spec, axis, rows, self.capacity) for spec, axis in self._buckets[-1].caches]
        self.length = 0

    def prefill(self, ids: Any) -> Array:
        """Append tokens (length, or batch and length) in chunks of the largest bucket. Returns the logits (batch,
        vocabulary) behind the last. Raises BadRequest if the cache has no room for all of them; then it is unchanged.
        """
        tokens = self._tokens(ids)
        count = tokens.shape[1]
        begin, made = 0, tokens
        for bucket, size in self._plan(count):
            made = self._run(bucket, tokens[:, begin : begin + size])
            begin += size
        return made

    def step(self, token: Any) -> Array:
        """Append one token: a number, or one for each sequence of the batch. Returns and raises as `prefill`."""
        import numpy as np

        return self.prefill(np.asarray(token).reshape(-1, 1))

    def reset(self) -> None:
        """Forget all tokens."""
        self.length = 0

    def fork(self) -> DecoderSession:
        """A session with a copy of the cache, which goes on independently."""
        made = object.__new__(DecoderSession)
        made.__dict__ = {**self.__dict__, "_caches": [each.copy() for each in self._caches]}
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

    def _plan(self, count: int) -> list[tuple[_Bucket, int]]:
        """The buckets that run so many tokens, and how many of these each. Raises BadRequest for too many."""
        plan: list[tuple[_Bucket, int]] = []
        length, left = self.length, count
        while left:
            fitting = [each for each in self._buckets if each.most >= length]
            if not fitting:
                raise BadRequest(
                    f"the cache is full: {self.length} tokens and {count} more, and a call reads at most "
                    f"{self.capacity} before its own; reset() the session, or tune the model with a larger cache"
                )
            bucket, size = _chosen(fitting, left)
            plan.append((bucket, size))
            length, left = length + size, left - size
        return plan

    def _run(self, bucket: _Bucket, tokens: Array) -> Array:
        first = 0 if bucket.is_whole else self.length - bucket.past
        caches = [each.at(first) for each in self._caches]
        outputs = bucket.model.run_cached(bucket.arguments(tokens, self.length, caches))
        self.length += tokens.shape[1]
        return bucket.logits(outputs, tokens.shape[1])


def _chosen(buckets: Sequence[_Bucket], left: int) -> tuple[_Bucket, int]:
    """The bucket for the next tokens, with the fewest rows: it is filled, or padded to hold all that are left."""
    filled = [each for each in buckets if each.tokens <= left]
    padded = [each for each in buckets if each.tokens > left and each.pads]
    most = max((each.tokens for each in filled), default=0)
    least = min((each.tokens for each in padded), default=0)
    if least and most < left:
        return min((each for each in padded if each.tokens == least), key=lambda each: each.past), left
    if not most:
        raise BadRequest(f"no bucket takes {left} token(s) alone; tune the model for sequences of 1 as well")
    return min((each for each in filled if each.tokens == most), key=lambda each: each.past), most


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
    place: int
    """of the logits among the outputs that are no caches"""
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
        fixed = as_arrays([spec for spec in others if spec.name in inputs], inputs)
        if len(pasts) > 1 or len(rows) > 1:
            raise BadRequest(f"{name} has caches of {sorted(pasts)} rows; export it with caches of one length")
        (past,), (total,) = pasts, rows
        ids = next((spec.shape for spec in others if spec.name in _IDS), ())
        is_whole = total == past
        tokens = int(ids[-1] or 0) if is_whole and ids else total - past
        _check_roles(name, [spec for spec in others if spec.name not in fixed], tokens, total)
        batch = next(int(spec.shape[0] or 0) for spec in others if spec.name in _IDS)
        left = [spec for spec in gives.values() if spec.name not in {each["output"] for each in described}]
        place = next((at for at, spec in enumerate(left) if spec.name == _LOGITS), 0)
        pads = len(left[place].shape) == _BY_TOKENS and left[place].shape[1] == tokens
        return cls(model, batch, tokens, past, caches, fixed, place, is_whole, pads)

    @property
    def most(self) -> int:
        """Tokens in the cache with which a call is possible."""
        return self.past - self.tokens if self.is_whole else self.past

    def arguments(self, tokens: Array, length: int, caches: Sequence[Any]) -> dict[str, Any]:
        """The inputs of a call, by name. The rows in use are the last of those before, and padding follows."""
        import numpy as np

        held = {spec.name: tensor for (spec, _), tensor in zip(self.caches, caches, strict=True)}
        made: dict[str, Any] = {**held, **self.fixed}
        for spec in self.model.specs[0]:
            if spec.name in made:
                continue
            array: Array = np.zeros([int(dim or 0) for dim in spec.shape], numpy_dtype(spec.dtype))
            if spec.name in _IDS:
                array[:, : tokens.shape[1]] = tokens
            elif spec.name in _MASK and self.is_whole:
                array[:, : length + self.tokens] = 1
            elif spec.name in _MASK:
                array[:, self.past - length : self.past + tokens.shape[1]] = 1
            else:
                array[...] = length + np.arange(self.tokens)
            made[spec.name] = array
        return made

    def logits(self, outputs: Sequence[Array], count: int) -> Array:
        """Those of the last of `count` tokens (batch, vocabulary)."""
        array = outputs[self.place]
        if len(array.shape) < _BY_TOKENS:
            return array
        return array[:, count - 1 if self.pads else -1].copy()


def _check_roles(name: str, specs: Sequence[TensorSpec], tokens: int, total: int) -> None:
    """Raises BadRequest for inputs that a session cannot give."""
    names = {spec.name for spec in specs}
    for known, what in ((_IDS, "the new tokens"), (_MASK, "which rows are in use")):
        if not names & set(known):
            raise BadRequest(f"{name} has no input for {what} ({' or '.join(known)}); run() it, or export it with one")
    for spec in specs:
        rows = total if spec.name in _MASK else tokens
        if spec.name not in (*_IDS, *_MASK, *_POSITIONS) or spec.shape[-1] != rows or len(spec.shape) > 2:
            raise BadRequest(
                f"{name} takes {spec}, which no session knows; give an input that stays the same by "
                f"decoder({{{spec.name!r}: array}})"
            )


class _Rows:
    """The buffer of one cache. Each of its heads has the rows of all calls one behind the other. Before the first, and
    between heads, lie rows that a mask hides.
    """

    def __init__(self, spec: TensorSpec, axis: int, rows: int, before: int) -> None:
        """`rows`: those of a head; `before`: those that a call reads at most."""
        self._dtype = numpy_dtype(spec.dtype)
        self._shape = tuple(rows if at == axis else int(dim or 0) for at, dim in enumerate(spec.shape))
        self._row = prod(self._shape[axis + 1 :])
        self._before = before
        size = (2 * before + prod(self._shape[: axis + 1])) * self._row
        self._memory: Array = aligned_bytes(size * self._dtype.itemsize).view(self._dtype)
        self._memory[...] = 0

    def at(self, first: int) -> Any:
        """A tensor that begins at the row with the number `first`, which is below 0 for rows before those of tokens."""
        begin = (self._before + first) * self._row
        return over(self._memory[begin : begin + prod(self._shape)].reshape(self._shape))

    def copy(self) -> _Rows:
        made = object.__new__(_Rows)
        memory = aligned_bytes(self._memory.nbytes).view(self._dtype)
        memory[...] = self._memory
        made.__dict__ = {**self.__dict__, "_memory": memory}
        return made
