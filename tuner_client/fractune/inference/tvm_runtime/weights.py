"""A bundle's weights in memory: each once, and only the weights of loaded variants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from fractune.inference.tvm_runtime.runtime import aligned_bytes, viewed
from fractune_core.files.bundles import WEIGHTS, Bundle
from fractune_core.files.manifests import ALIGNMENT_BYTES


class Weights:
    """`place` puts tensors on the bundle's device."""

    def __init__(self, bundle: Bundle, place: Callable[[Sequence[Any]], list[Any]] = list) -> None:
        self._bundle = bundle
        self._place = place
        self._placed: dict[int, Any] = {}

    def of_member(self, bundle: Bundle) -> Weights:
        """Those of another member of the bundle; what lies in memory, both use."""
        other = Weights(bundle, self._place)
        other._placed = self._placed
        return other

    def of(self, variant: str) -> list[Any]:
        """The weights that the variant takes after its inputs, in their order. Raises BadBundle."""
        numbers = self._bundle.weights_of(variant)
        missing = sorted(set(numbers) - self._placed.keys())
        if missing:
            self._placed.update(zip(missing, self._place(self._read(missing)), strict=True))
        return [self._placed[number] for number in numbers]

    def _read(self, numbers: Sequence[int]) -> list[Any]:
        """Tensors over one buffer that holds all of them."""
        import tvm_ffi

        described = [self._bundle.manifest["weights"][number] for number in numbers]
        padded = (each["size"] + -each["size"] % ALIGNMENT_BYTES for each in described)
        *begins, end = accumulate(padded, initial=0)
        buffer = aligned_bytes(end)
        rooms = [buffer[begin : begin + each["size"]] for begin, each in zip(begins, described, strict=True)]
        filled = list(zip(described, rooms, strict=True))
        self._bundle.read_parts(WEIGHTS, ((each["offset"], memoryview(room)) for each, room in filled))
        return [viewed(tvm_ffi.from_dlpack(room), each["shape"], each["dtype"]) for each, room in filled]
