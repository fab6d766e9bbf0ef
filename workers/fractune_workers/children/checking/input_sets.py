"""Inputs on which a bundle is compared: random ones, and the extremes of their types."""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnx

from fractune_core.model_inputs import is_mask
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.children.checking.references import NOT_COMPARING, NOT_SUMMING, Array, reached_by_others

Within = Mapping[str, range]
_BYTES_OF_DATA = 1
"""Integers of one byte are data"""
_LARGEST_BFLOAT16 = float(np.finfo(np.float32).max) * (1 - 2.0**-8)
_ODD_PART = 8
"""One of so many numbers is not finite, where they are mixed"""


@dataclass(frozen=True)
class InputSpec:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    @property
    def may_be_index(self) -> bool:
        return self.numpy.kind in "iu" and self.numpy.itemsize > _BYTES_OF_DATA

    @property
    def numpy(self) -> np.dtype[Any]:
        return np.dtype(numpy_dtype(self.dtype))


@dataclass(frozen=True)
class InputSet:
    """A way to fill inputs, for the first outputs where it says something."""

    name: str
    draw: Callable[[Within], dict[str, Array]]
    """the inputs within these ranges; integers that may be indices are else 0 or 1"""
    outputs: tuple[int, ...]
    """places of the outputs that are compared"""
    is_extreme: bool = False
    """NaN or infinite outputs are expected"""


def input_sets(model: onnx.ModelProto, specs: Sequence[InputSpec]) -> Iterator[InputSet]:
    """The sets for a model with these inputs.

    The largest numbers of a type overflow in a sum, and its order decides to what. So they are for outputs without a
    sum before them. What a maximum makes of a NaN is nowhere defined, so these are for outputs without comparisons.
    """
    whole = tuple(range(len(model.graph.output)))
    yield InputSet("random", partial(_drawn, specs, _random), whole)
    yield InputSet("random above zero", partial(_drawn, specs, _positive), whole)
    yield InputSet("zeros", partial(_drawn, specs, _zeros), whole)
    if unsummed := _outputs_within(model.graph, NOT_SUMMING):
        yield InputSet("lowest", partial(_drawn, specs, _lowest), unsummed, is_extreme=True)
        yield InputSet("largest", partial(_drawn, specs, _largest), unsummed, is_extreme=True)
    if any(spec.is_float for spec in specs) and (uncompared := _outputs_within(model.graph, NOT_COMPARING)):
        yield InputSet("NaN and infinity", partial(_drawn, specs, _odd), uncompared, is_extreme=True)


def _outputs_within(graph: onnx.GraphProto, allowed: Collection[str]) -> tuple[int, ...]:
    reached = reached_by_others(graph, allowed)
    return tuple(place for place, output in enumerate(graph.output) if output.name not in reached)


_Draw = Callable[[np.random.Generator, InputSpec, Within], Array]


def _drawn(specs: Sequence[InputSpec], draw: _Draw, within: Within) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {spec.name: np.asarray(draw(rng, spec, within)).astype(spec.numpy) for spec in specs}


def _random(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    if spec.is_float:
        return _within(rng, spec, within) if spec.name in within else rng.standard_normal(spec.shape)
    if is_mask(spec.name):
        return np.ones(spec.shape)
    return _integers(rng, spec, within)


def _positive(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    if spec.is_float and spec.name not in within:
        return rng.uniform(0.1, 1.0, spec.shape)
    return _random(rng, spec, within)


def _within(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return rng.uniform(within[spec.name].start, within[spec.name].stop - 1, spec.shape)


def _integers(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    low, most = _limits(spec, within)
    return rng.integers(low, most, spec.shape, endpoint=True)


def _limits(spec: InputSpec, within: Within) -> tuple[int, int]:
    if spec.numpy.kind == "b":
        return 0, 1
    if spec.may_be_index:
        allowed = within.get(spec.name, range(2))
        return allowed.start, allowed.stop - 1
    info = np.iinfo(spec.numpy)
    return int(info.min), int(info.max)


def _zeros(_rng: np.random.Generator, spec: InputSpec, _within: Within) -> Array:
    return np.zeros(spec.shape)


def _lowest(_rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return np.full(spec.shape, _least_and_most(spec, within)[0])


def _largest(_rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    return np.full(spec.shape, _least_and_most(spec, within)[1])


def _least_and_most(spec: InputSpec, within: Within) -> tuple[float, float]:
    if not spec.is_float:
        return _limits(spec, within)
    # NumPy does not know the limits of bfloat16; they are float32's but for the last bits.
    largest = float(np.finfo(spec.numpy).max) if spec.numpy.kind == "f" else _LARGEST_BFLOAT16
    return -largest, largest


def _odd(rng: np.random.Generator, spec: InputSpec, within: Within) -> Array:
    array = _random(rng, spec, within)
    if spec.is_float and array.size:
        places = rng.permutation(array.size)[: max(1, array.size // _ODD_PART)]
        array = np.ravel(array)
        array[places] = rng.choice([math.nan, math.inf, -math.inf], len(places))
    return array.reshape(spec.shape)


def given_set(arrays: Mapping[str, Array], outputs: int) -> InputSet:
    """The caller's own inputs."""
    return InputSet("the given inputs", lambda _within: dict(arrays), tuple(range(outputs)))
