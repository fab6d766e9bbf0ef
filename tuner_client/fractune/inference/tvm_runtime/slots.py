"""A fused model's slots: requests for some of them become the inputs of all."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fractune.inference.tvm_runtime.runtime import aligned_bytes
from fractune.inference.tvm_runtime.tensors import TensorSpec, as_arrays, numpy_dtype
from fractune_core.errors import BadRequest

if TYPE_CHECKING:
    from fractune.inference.tvm_runtime.tensors import Array


class Slots:
    """`names` by slot, None for an empty slot; no slots for a model that is not fused. `specs` are those of all
    slots.
    """

    def __init__(self, model: str, names: Sequence[str | None], specs: Sequence[TensorSpec]) -> None:
        self._model = model
        self.names = tuple(names)
        self._specs = list(specs)
        self._of_one = [replace(spec, shape=spec.shape[1:]) for spec in specs] if self.names else []
        self._counting = threading.Lock()
        self._runs = self._requests = 0

    def stacked(self, requests: Mapping[int, Mapping[str, Any]]) -> dict[str, Array]:
        """Inputs of all slots, zeros in slots without a request. Raises BadRequest."""
        self._check(requests)
        given = {slot: as_arrays(self._of_one, inputs) for slot, inputs in requests.items()}
        return {spec.name: self._stacked(spec, given) for spec in self._specs}

    def count(self, requests: int) -> None:
        """Count a run for this many requests."""
        with self._counting:
            self._runs += 1
            self._requests += requests

    @property
    def occupancy(self) -> float:
        return self._requests / (self._runs * len(self.names)) if self._runs else 0.0

    def _check(self, requests: Mapping[Any, Any]) -> None:
        if not self.names:
            raise BadRequest(f"{self._model} is not a fused model, and has no slots; leave the slot out")
        if not requests:
            raise BadRequest("no slot is requested; give inputs for at least one")
        for slot in requests:
            if not isinstance(slot, int) or not 0 <= slot < len(self.names):
                raise BadRequest(f"slot {slot!r}: {self._model} has the slots 0 to {len(self.names) - 1}")
            if self.names[slot] is None:
                filled = ", ".join(f"{number} ({name})" for number, name in enumerate(self.names) if name is not None)
                raise BadRequest(f"slot {slot} of {self._model} is empty; it has {filled}")

    def _stacked(self, spec: TensorSpec, given: Mapping[int, Mapping[str, Array]]) -> Array:
        shape = [dim for dim in spec.shape if dim is not None]
        dtype = numpy_dtype(spec.dtype)
        whole: Array = aligned_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        for slot in range(len(self.names)):
            whole[slot] = given[slot][spec.name] if slot in given else 0
        return whole
