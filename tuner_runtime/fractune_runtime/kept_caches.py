"""The caches of a decoder behind ONNX Runtime's `io_binding`: no row is copied while a program passes them on.

binding = session.io_binding()
binding.bind_ortvalue_input("past.key.0", binding.get_outputs()[1])  # `present.key.0` of the step before

A `present` of a step lies in a buffer of the session. It comes back as a `KeptRows`, whose numbers are copied out only
if somebody reads them. As the `past` of the next step it says how many rows of that buffer are in use. Any other array
is copied into the buffer. Where an operator has all rows of a cache (GroupQueryAttention), a program binds one memory
as input and output, and the step writes there.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fractune_core.errors import BadRequest
from fractune_core.files.manifests import MASK
from fractune_runtime.decoder import IDS, POSITIONS, DecoderSession
from fractune_runtime.io_binding import OrtValue, input_of, invalid_argument, onnx_type
from fractune_runtime.tvm_runtime.tensors import Array, CacheRows, fits

if TYPE_CHECKING:
    from fractune_runtime.model import Model

_MOST_MEMORIES = 4
"""of programs that bind one after the other"""


class KeptRows(OrtValue):
    """The first rows of a cache in a session's buffer, as an `OrtValue`. They are copied for whoever reads them, and
    before a step writes other rows in their place.
    """

    def __init__(self, cache: CacheRows, length: int) -> None:
        self.cache, self.length = cache, length
        self._copy: Array | None = None

    @property
    def is_kept(self) -> bool:
        """Whether the buffer has these rows."""
        return self._copy is None

    def numpy(self) -> Array:
        """A copy of the rows, the same at each call."""
        if self._copy is None:
            self._copy = self.cache.first(self.length).copy()
        return self._copy

    def shape(self) -> list[int]:
        return list(self.cache.first(self.length).shape if self._copy is None else self._copy.shape)

    def data_type(self) -> str:
        return onnx_type(str(self.cache.first(0).dtype))

    def update_inplace(self, data: Any) -> None:
        del data
        raise invalid_argument("these are rows of a session's cache; bind an OrtValue of your own as the past instead")


class KeptCaches:
    """The caches of one binding."""

    def __init__(self, model: Model, caches: Sequence[Mapping[str, Any]], outputs: Sequence[str]) -> None:
        """`caches`: of the manifest; `outputs`: the names of all."""
        self._model, self._outputs = model, outputs
        self._pasts = [each["input"] for each in caches]
        self._presents = [each["output"] for each in caches]
        self._axes = [each["axis"] for each in caches]
        self._decoder: DecoderSession | None = None
        self._given = weakref.WeakSet[KeptRows]()
        self._over: dict[tuple[int, ...], DecoderSession] = {}
        """by the addresses of a program's own buffers"""

    def run(self, inputs: Mapping[str, Any], places: Mapping[str, Any]) -> dict[str, Any] | None:
        """The outputs by name, `present` among them as KeptRows; None for a call that the model runs as it is. `places`
        are the outputs that are bound, with their OrtValues. Raises BadRequest.
        """
        pasts = [inputs.get(name) for name in self._pasts]
        names = [next((name for name in known if name in inputs), "") for known in (IDS, MASK, POSITIONS)]
        if not all(names[:2]) or any(past is None for past in pasts):
            return None
        ids, mask, positions = (_array(inputs[name]) if name else None for name in names)
        if ids is None or mask is None or ids.ndim != 2 or mask.ndim != 2:
            return None
        length = mask.shape[1] - ids.shape[1]
        others = {name: value for name, value in inputs.items() if name not in (*self._pasts, *names)}
        decoder = self._session(others)
        if decoder is None or length < 0:
            return None
        if decoder.is_whole:
            return self._run_in_place(decoder, (ids, mask, positions), length, pasts, places)
        if not any(isinstance(past, KeptRows) for past in pasts) and decoder.is_size(length, ids.shape[1]):
            return None
        self._take(decoder, pasts, length)
        outputs = decoder.append(ids, mask, positions)
        made = [KeptRows(cache, decoder.length) for cache in decoder.caches]
        self._given.update(made)
        return self._ordered(outputs, made)

    def _ordered(self, others: Mapping[str, Any], presents: Sequence[Any]) -> dict[str, Any]:
        found = {**others, **dict(zip(self._presents, presents, strict=True))}
        return {name: found[name] for name in self._outputs}

    def _session(self, others: Mapping[str, Any]) -> DecoderSession | None:
        """The session with these inputs beside those of a step; None for a model that no session knows."""
        arrays = {name: _array(value) for name, value in others.items()}
        if self._decoder is not None and self._decoder.has(arrays):
            return self._decoder
        try:
            made = self._model.decoder(arrays)
        except BadRequest:
            return None
        if self._decoder is not None:
            made.caches = self._decoder.caches
        self._decoder, self._over = made, {}
        return made

    def _take(self, decoder: DecoderSession, pasts: Sequence[Any], length: int) -> None:
        """Have the first `length` rows in the buffers."""
        arrays: list[Array | None] = []
        for name, past, cache, axis in zip(self._pasts, pasts, decoder.caches, self._axes, strict=True):
            if list(past.shape() if callable(past.shape) else past.shape)[axis] != length:
                raise invalid_argument(
                    f"'{name}' has other rows than the mask, which has {length} before the new tokens; give a past and "
                    "a mask of one length"
                )
            is_there = isinstance(past, KeptRows) and past.is_kept and past.cache is cache
            arrays.append(None if is_there else _array(past))
        if length > decoder.capacity:
            raise invalid_argument(
                f"the cache is full: the past has {length} rows, and a call reads at most {decoder.capacity}; tune the "
                "model with a larger cache"
            )
        for each in list(self._given):
            overwritten = min((0 if array is not None and array.size else length for array in arrays), default=length)
            if each.is_kept and each.length > overwritten:
                each.numpy()
        for cache, array in zip(decoder.caches, arrays, strict=True):
            if array is not None:
                cache.first(length)[...] = array
        decoder.length = length

    def _run_in_place(
        self,
        decoder: DecoderSession,
        tokens: tuple[Array, Array, Array | None],
        length: int,
        pasts: Sequence[Any],
        places: Mapping[str, Any],
    ) -> dict[str, Any] | None:
        """A step over memory that is bound as each `past` and its `present`; None for other memory."""
        arrays = [_array(past) for past in pasts]
        addresses = tuple(array.ctypes.data for array in arrays)
        bound = [places.get(name) for name in self._presents]
        if addresses != tuple(0 if each is None else each.data_ptr() for each in bound):
            return None
        session = self._over_memory(decoder, addresses, arrays)
        if session is decoder:  # compiled code expects memory from a multiple of 64 on
            for cache, array, axis in zip(decoder.caches, arrays, self._axes, strict=True):
                cache.first(length)[...] = array[_rows(axis, 0, length)]
        session.length = length
        outputs = session.append(*tokens)
        if session is decoder:
            for cache, array, axis in zip(decoder.caches, arrays, self._axes, strict=True):
                new = _rows(axis, length, session.length)
                array[new] = cache.first(session.length)[new]
        return self._ordered(outputs, bound)

    def _over_memory(
        self, decoder: DecoderSession, addresses: tuple[int, ...], arrays: Sequence[Array]
    ) -> DecoderSession:
        """A session over a program's memory, or the `decoder` for memory that compiled code cannot use."""
        if addresses not in self._over:
            if len(self._over) == _MOST_MEMORIES:
                del self._over[next(iter(self._over))]
            self._over[addresses] = decoder.over(arrays) if all(map(fits, arrays)) else decoder
        return self._over[addresses]


def _rows(axis: int, begin: int, end: int) -> tuple[slice, ...]:
    return (*(slice(None) for _ in range(axis)), slice(begin, end))


def _array(value: Any) -> Array:
    import numpy as np

    return np.asarray(input_of(value))
