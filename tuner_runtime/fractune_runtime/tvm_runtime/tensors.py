"""Inputs and outputs: their specifications, and conversion of arrays to tensors and back."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import ge
from typing import TYPE_CHECKING, Any, TypeAlias

from fractune_core.errors import BadRequest
from fractune_core.files.manifests import ALIGNMENT_BYTES, checked_of
from fractune_runtime.tvm_runtime.runtime import aligned_bytes, lasting_bytes, viewed

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Array: TypeAlias = "npt.NDArray[Any]"


MEMORY_OF_CPUS = (1, 3)
"""DLPack's numbers for plain memory, and for memory pinned for a GPU"""
_DEFAULT_STREAM = 1
"""DLPack's number for the stream on which a model runs on a GPU: the writer of an input ensures that the stream
waits"""
_KINDS_OF_DLPACK = "fiub"
"""NumPy's kinds of types that its DLPack knows; other types of models (bfloat16) pass as bytes"""
_SMALL_BYTES = 1 << 16
"""of one input: to copy it takes no longer than to make a tensor over it"""
_MOST_BYTES = 1 << 23
"""of all inputs: calls of several threads make larger copies side by side"""


@dataclass(frozen=True)
class TensorSpec:
    """An input or an output of a model."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    """None = depends on the data, of outputs only"""
    within: range | None = field(default=None, compare=False)
    """numbers that the model is known to take, such as indices; of inputs only"""

    def __str__(self) -> str:
        return f"{self.name} {self.dtype}{list(self.shape)}"

    @property
    def is_float(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))

    def has_shape(self, shape: Sequence[int]) -> bool:
        """Whether it is this shape; a dimension that depends on the data may have any size."""
        pairs = zip(self.shape, shape, strict=False)
        return len(shape) == len(self.shape) and all(wanted in (None, found) for wanted, found in pairs)


def specs_of(tensors: Sequence[Mapping[str, Any]]) -> list[TensorSpec]:
    """The specifications of a manifest."""
    return [TensorSpec(each["name"], each["dtype"], tuple(each["shape"])) for each in tensors]


def input_specs(manifest: Mapping[str, Any]) -> list[TensorSpec]:
    """Those of a bundle, with the ranges that its check found."""
    checked = checked_of(manifest)
    known = {name: range(least, last + 1) for name, (least, last) in checked.ranges.items()} if checked else {}
    return [replace(spec, within=known.get(spec.name)) for spec in specs_of(manifest["inputs"])]


def as_arguments(
    specs: Sequence[TensorSpec], inputs: Mapping[str, Any], gpu: tuple[int, int] | None = None
) -> list[Any]:
    """The inputs as tensors in the order of `specs`.

    NumPy arrays, and anything with `__dlpack__`, are used in place if they are contiguous, writable and begin at a
    multiple of 64 bytes; else they are copied. They may lie on the `gpu` (DLPack's numbers) too, and are not copied
    there. Raises BadRequest, which lists the expected inputs, for wrong ones.
    """
    found = _checked(specs, inputs, gpu)
    return [as_tensor(spec.name, found[spec.name]) for spec in specs]


def as_arrays(specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs, in memory of the CPU, as NumPy arrays over that memory. Raises BadRequest as `as_arguments`."""
    import numpy as np

    found = _checked(specs, inputs, None)
    return {name: value if isinstance(value, np.ndarray) else as_array(value) for name, value in found.items()}


def open_arrays(specs: Sequence[TensorSpec], inputs: Mapping[str, Any]) -> list[Array]:
    """The inputs in the order of `specs`, in place; open dimensions may have any size. Raises as `as_arguments`."""
    import numpy as np

    given = [inputs[spec.name] for spec in specs]
    if all(
        type(each) is np.ndarray and each.dtype == numpy_dtype(spec.dtype)
        for spec, each in zip(specs, given, strict=True)
    ):
        return given
    sized = [replace(spec, shape=tuple(each.shape)) for spec, each in zip(specs, given, strict=True)]
    arrays = as_arrays(sized, inputs)
    return [arrays[spec.name] for spec in specs]


def _checked(specs: Sequence[TensorSpec], inputs: Any, gpu: tuple[int, int] | None) -> dict[str, Any]:
    """The inputs in readable form, exactly those of `specs`."""
    if not isinstance(inputs, Mapping):
        names = ", ".join(f"{spec.name!r}: array" for spec in specs)
        raise BadRequest(f"inputs: {type(inputs).__name__} is not a mapping; give arrays by name, as {{{names}}}")
    found = {name: readable(f"input '{name}'", value, gpu) for name, value in inputs.items()}
    check_tensors(specs, found)
    return found


def check_tensors(specs: Sequence[TensorSpec], inputs: Mapping[str, Any], verb: str = "takes") -> None:
    """Raises BadRequest, with what the model takes or gives, unless names, types and shapes are exactly these."""
    if len(inputs) == len(specs) and all(spec.name in inputs and _is(spec, inputs[spec.name]) for spec in specs):
        return
    found = [
        str(TensorSpec(spec.name, str(inputs[spec.name].dtype), tuple(inputs[spec.name].shape)))
        for spec in specs
        if spec.name in inputs
    ]
    found += [f"{name} (unknown)" for name in inputs if name not in {spec.name for spec in specs}]
    expected = [str(spec) for spec in specs]
    if found != expected:
        raise BadRequest(f"the model {verb} {', '.join(expected)}; given: {', '.join(found) or 'nothing'}")


def _is(spec: TensorSpec, value: Any) -> bool:
    """Return True if an array or a tensor matches; its type as text would take ten times as long."""
    dtype = numpy_dtype(spec.dtype) if hasattr(value, "ctypes") else spec.dtype
    return bool(value.dtype == dtype) and tuple(value.shape) == spec.shape


def readable(label: str, value: Any, gpu: tuple[int, int] | None) -> Any:
    """The value as a NumPy array, or as a tensor over the memory of something with `__dlpack__`. Raises BadRequest,
    which names the value by its `label`, such as "input 'x'".
    """
    import numpy as np
    import tvm_ffi

    if isinstance(value, np.ndarray | np.generic):
        if type(value) is not np.ndarray and isinstance(value, np.ma.MaskedArray):
            raise BadRequest(f"{label} is a masked array, and no mask is applied; give its filled(VALUE)")
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        kind = type(value).__name__
        raise BadRequest(f"{label} is of type {kind}; give a NumPy array, or an object with __dlpack__")
    try:
        device = device_of(value)
        if device == gpu:
            return tvm_ffi.from_dlpack(value.__dlpack__(stream=_DEFAULT_STREAM))
        if device[0] not in MEMORY_OF_CPUS:
            raise BadRequest(f"{label} lies on another device; copy it to the CPU first")
        return tvm_ffi.from_dlpack(value)
    except (AttributeError, TypeError, ValueError, BufferError, RuntimeError) as error:
        message = str(error).partition("\n")[0]
        raise BadRequest(f"{label} cannot be read by DLPack ({message}); give a NumPy array") from error


def device_of(value: Any) -> tuple[int, int]:
    """Kind and number of the device of an object with `__dlpack__`, by DLPack's numbers."""
    kind, number = value.__dlpack_device__()
    return int(kind), int(number)


def as_tensor(name: str, value: Any) -> Any:
    """The input `name` as a tensor, over its memory if that fits. Raises BadRequest if memory of a GPU does not."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return over(value if fits(value) else _aligned_copy(value))
    if fits(value):
        return value
    if device_of(value)[0] not in MEMORY_OF_CPUS:
        raise BadRequest(
            f"input '{name}' is not a contiguous array on the GPU, or is not aligned; make a copy of it there"
        )
    return as_tensor(name, _aligned_copy(as_array(value)))


def over(array: Array) -> Any:
    """A tensor over an array's memory as it lies, for code that does not expect it to begin at a multiple of 64."""
    import tvm_ffi

    if array.dtype.kind in _KINDS_OF_DLPACK:
        return tvm_ffi.from_dlpack(array)
    return viewed(tvm_ffi.from_dlpack(_bare(array)), array.shape, str(array.dtype))


def fits(value: Any) -> bool:
    """Whether compiled code can use the memory of a NumPy array or a tensor."""
    return not obstacles(value)


def obstacles(value: Any) -> list[str]:
    """Why compiled code cannot use the memory of a NumPy array or a tensor; empty if it can."""
    if hasattr(value, "ctypes"):
        contiguous, writable, begin = value.flags.c_contiguous, value.flags.writeable, value.ctypes.data
    else:
        contiguous, writable, begin = value.is_contiguous(), True, value.data_ptr()
    found = [] if contiguous else ["is not contiguous"]
    if not writable:
        found.append("is read-only")
    if begin % ALIGNMENT_BYTES:
        found.append(f"begins {begin % ALIGNMENT_BYTES} bytes after a multiple of {ALIGNMENT_BYTES}")
    return found


def _aligned_copy(array: Array) -> Array:
    copy: Array = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def _bare(array: Array) -> Array:
    """The array as bytes."""
    import numpy as np

    return array.reshape(-1).view(np.uint8)


def as_array(tensor: Any) -> Array:
    """A tensor's memory as a NumPy array; they share it."""
    import numpy as np

    try:
        return np.from_dlpack(tensor)
    except (BufferError, RuntimeError):  # a type that NumPy's DLPack does not know
        dtype = numpy_dtype(str(tensor.dtype))
    size = math.prod(tensor.shape) * dtype.itemsize
    return np.from_dlpack(viewed(tensor, (size,), "uint8")).view(dtype).reshape(tuple(tensor.shape))


class CacheRows:
    """The buffer of a decoder's cache. Each of its heads has `rows` rows one behind the other. Before the first, and
    between heads, lie rows that a mask hides.
    """

    def __init__(self, spec: TensorSpec, axis: int, rows: int, before: int) -> None:
        """`rows`: those of a head; `before`: those that a call reads at most before row 0."""
        self.rows = rows
        self._dtype = spec.dtype
        self._axis = axis
        self._shape = tuple(rows if at == axis else int(dim or 0) for at, dim in enumerate(spec.shape))
        self._row = math.prod(self._shape[axis + 1 :])
        self._before = before
        dtype = numpy_dtype(spec.dtype)
        size = (2 * before + math.prod(self._shape[: axis + 1])) * self._row
        self._memory: Array = lasting_bytes(size * dtype.itemsize).view(dtype)

    def __str__(self) -> str:
        return f"{self._dtype}{list(self._shape)} with rows in the axis {self._axis}"

    def data_ptr(self) -> int:
        """The address of row 0."""
        begin: int = self._memory.ctypes.data + self._before * self._row * self._memory.itemsize
        return begin

    def at(self, first: int) -> Any:
        """A tensor that begins at the row with the number `first`, which is below 0 for rows before those of tokens."""
        begin = (self._before + first) * self._row
        return over(self._memory[begin : begin + math.prod(self._shape)].reshape(self._shape))

    def holds(self, dtype: str, shape: Sequence[int], axis: int) -> bool:
        """Whether a cache of this shape lies in each place of it; `axis` is counted from the last."""
        own, at = self._axis, len(shape) + axis
        others = (*self._shape[:own], *self._shape[own + 1 :])
        return (self._dtype, own, others) == (dtype, at, (*shape[:at], *shape[at + 1 :])) and shape[at] <= self.rows

    @classmethod
    def over(cls, spec: TensorSpec, axis: int, array: Array) -> CacheRows:
        """A buffer in the memory of an array with all rows. Raises BadRequest for an array of another type or shape."""
        if (str(array.dtype), array.shape) != (spec.dtype, tuple(spec.shape)) or not array.flags.c_contiguous:
            raise BadRequest(f"'{spec.name}' is bound as {array.dtype}{list(array.shape)}; bind memory for {spec}")
        made = object.__new__(cls)
        made.rows, made._dtype, made._axis, made._shape = array.shape[axis], spec.dtype, axis, array.shape
        made._row, made._before, made._memory = math.prod(array.shape[axis + 1 :]), 0, array.reshape(-1)
        return made

    def first(self, rows: int) -> Array:
        """The memory of the first rows of each head."""
        begin = self._before * self._row
        whole = self._memory[begin : begin + math.prod(self._shape)].reshape(self._shape)
        return whole[(*(slice(None) for _ in range(self._axis)), slice(rows))]

    def copy(self) -> CacheRows:
        made = object.__new__(CacheRows)
        memory = lasting_bytes(self._memory.nbytes).view(self._memory.dtype)
        memory[...] = self._memory
        made.__dict__ = {**self.__dict__, "_memory": memory}
        return made


def empty_array(like: Any) -> tuple[Array, Any]:
    """An array for a tensor's contents, and a tensor over the array's memory."""
    array = array_of(TensorSpec("output", str(like.dtype), tuple(like.shape)))
    return array, as_tensor("output", array)


def array_of(spec: TensorSpec) -> Array:
    """An array of that type and shape, aligned as compiled code expects it. Its shape must not depend on data."""
    dtype, shape = numpy_dtype(spec.dtype), [dim for dim in spec.shape if dim is not None]
    array: Array = aligned_bytes(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
    return array


@functools.cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    import numpy as np

    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended


def flat(result: Any) -> list[Any]:
    """The outputs as tensors, from one tensor or a (nested) tuple of them."""
    if hasattr(result, "__dlpack__"):
        return [result]
    return [tensor for part in result for tensor in flat(part)]


class KeptInputs:
    """The memory of a model's inputs. Only one call at a time may use it."""

    def __init__(self, specs: Sequence[TensorSpec]) -> None:
        memory = [(spec.name, array_of(spec)) for spec in specs]
        self._kept = [
            (name, array, array.dtype, array.shape, as_tensor(name, array), array.nbytes <= _SMALL_BYTES)
            for name, array in memory
        ]

    def tensors(self, inputs: Any) -> list[Any] | None:
        """The inputs as tensors: copies, but of large inputs no copies where their own memory will do. None for
        anything but a dict of NumPy arrays as the model takes them; then the memory may hold a part of them.
        """
        if type(inputs) is not dict or len(inputs) != len(self._kept):
            return None
        tensors = []
        for name, memory, dtype, shape, tensor, is_small in self._kept:
            given: Any = inputs.get(name)
            if type(given) is not type(memory) or given.shape != shape or given.dtype != dtype:
                return None
            if is_small or not fits(given):
                memory[...] = given
                tensors.append(tensor)
            else:
                tensors.append(as_tensor(name, given))
        return tensors

    def padded(self, inputs: Any, pad: Mapping[str, float]) -> list[Any] | None:
        """Copies of smaller inputs as tensors, followed along each axis by the input's number in `pad`, else 0. None as
        `tensors`.
        """
        if type(inputs) is not dict or len(inputs) != len(self._kept):
            return None
        for name, memory, dtype, shape, *_ in self._kept:
            given: Any = inputs.get(name)
            if type(given) is not type(memory) or given.dtype != dtype or not _holds(shape, given.shape):
                return None
            memory[...] = pad.get(name, 0)
            memory[tuple(map(slice, given.shape))] = given
        return [tensor for *_, tensor, _ in self._kept]


def _holds(shape: Sequence[int], smaller: Sequence[int]) -> bool:
    return len(shape) == len(smaller) and all(map(ge, shape, smaller))


def are_worth_keeping(specs: Sequence[TensorSpec]) -> bool:
    """Whether inputs of that size have memory that stays."""
    return _bytes_of(specs) <= _MOST_BYTES


def _bytes_of(specs: Sequence[TensorSpec]) -> int:
    return sum(math.prod(dim or 0 for dim in spec.shape) * numpy_dtype(spec.dtype).itemsize for spec in specs)
