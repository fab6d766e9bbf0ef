"""Tensors and bound memory by ONNX Runtime's names, for `InferenceSession`.

A program that has imported onnxruntime gets tensors and errors of onnxruntime's own classes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fractune_core.errors import BadRequest
from fractune_core.share_kinds import CPU
from fractune_runtime.sessions import TYPES
from fractune_runtime.tvm_runtime.tensors import Array, numpy_dtype

if TYPE_CHECKING:
    import numpy as np


Run = Callable[[list[str], dict[str, Any]], "list[Array]"]
"""the outputs of these names, for inputs by name"""
RunCached = Callable[[dict[str, Any], dict[str, Any]], dict[str, Any] | None]
"""all outputs by name, for inputs by name and the places of outputs, with caches that are kept; None for other calls"""

_THEIR_TYPES = {ours: theirs for theirs, ours in TYPES.items()}
_ELEMENT_TYPES = {
    **dict(enumerate(("float32", "uint8", "int8", "uint16", "int16", "int32", "int64"), 1)),
    **dict(enumerate(("bool", "float16", "float64", "uint32", "uint64"), 9)),
    16: "bfloat16",
}
"""by ONNX's numbers"""


class OrtValue:
    """A tensor in the memory of the CPU, for programs without onnxruntime; with it, a session takes and gives
    `onnxruntime.OrtValue`.
    """

    def __init__(self, array: Array) -> None:
        """Over the memory of the array, or over a copy if its rows do not follow each other: readers of `data_ptr` know
        no strides.
        """
        import numpy as np

        self._array = np.asarray(array, order="C")

    @classmethod
    def ortvalue_from_numpy(cls, numpy_obj: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        """As `OrtValue(numpy_obj)`. Raises BadRequest for another device."""
        del device_id
        _check_on_cpu(device_type)
        return cls(numpy_obj)

    @classmethod
    def ortvalue_from_shape_and_type(
        cls, shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0
    ) -> OrtValue:
        """Zeros of a NumPy type, or of ONNX's number for a type. Raises BadRequest for another device, and for a shape
        or type that no tensor has.
        """
        import numpy as np

        return cls.ortvalue_from_numpy(np.zeros(*_layout(shape, element_type)), device_type, device_id)

    def numpy(self) -> Array:
        """The tensor's memory."""
        return self._array

    def __dlpack__(self, **options: Any) -> Any:
        return self.numpy().__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        kind, number = self.numpy().__dlpack_device__()
        return int(kind), int(number)

    def shape(self) -> list[int]:
        return list(self.numpy().shape)

    def data_type(self) -> str:
        """`tensor(float)`"""
        return onnx_type(str(self.numpy().dtype))

    def data_ptr(self) -> int:
        return int(self.numpy().ctypes.data)

    def device_name(self) -> str:
        return "cpu"

    def update_inplace(self, data: Any) -> None:
        """Copy an array or OrtValue of the same shape and type into the tensor's memory. Raises BadRequest for another
        shape or type, and if the memory is read-only.
        """
        import numpy as np

        given = np.asarray(input_of(data))
        if (given.shape, given.dtype) != (self.numpy().shape, self.numpy().dtype):
            raise invalid_argument(
                f"the data is {onnx_type(str(given.dtype))} of the shape {list(given.shape)}, and the OrtValue is "
                f"{self.data_type()} of the shape {self.shape()}; give data of that type and shape"
            )
        if not self.numpy().flags.writeable:
            raise invalid_argument("the OrtValue is over a read-only array; make it over a copy of the array")
        self.numpy()[...] = given


class IOBinding:
    """Where runs find their inputs and leave their outputs: by `InferenceSession.io_binding`. Memory is the CPU's. A
    bundle of a GPU takes inputs there as an `OrtValue`.
    """

    def __init__(self, run: Run, run_cached: RunCached | None = None) -> None:
        """`run` is that of its session; `run_cached` of a decoder's."""
        self.run_of_session = run
        self._run_cached = run_cached
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Any] = {}
        self._made: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Each run reads the array as it is then."""
        _bind(self._inputs, name, arr_on_cpu)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """The input lies at an address; an empty input may have the address 0. Raises BadRequest for an address on
        another device than the CPU, and for a name, type, shape or address that no input has.
        """
        del device_id
        _bind(self._inputs, name, _array_at(device_type, element_type, shape, buffer_ptr))

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Each run reads the tensor as it is then. Raises BadRequest for anything but an `OrtValue`."""
        _bind(self._inputs, name, _checked_ort_value(name, ortvalue))

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Each run copies the output to an address, or makes a new array. Raises as `bind_input`."""
        del device_id
        if buffer_ptr is None:
            _bind(self._outputs, name, None)
        elif element_type is None or shape is None:
            raise invalid_argument(f"output '{name}' has an address alone; give its element_type and shape too")
        else:
            _bind(self._outputs, name, ort_value(_array_at(device_type, element_type, shape, buffer_ptr)))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Each run copies the output to its memory. Raises BadRequest for anything but an `OrtValue`."""
        _bind(self._outputs, name, _checked_ort_value(name, ortvalue))

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._made = []

    def synchronize_inputs(self) -> None:
        """Nothing: `run_with_iobinding` waits for all that it needs."""

    def synchronize_outputs(self) -> None:
        """Nothing: outputs are complete when `run_with_iobinding` returns."""

    def get_outputs(self) -> list[Any]:
        """The last run's outputs as `OrtValue`, in the order of binding."""
        return [ort_value(each) if hasattr(each, "ctypes") else each for each in self._made]

    def copy_outputs_to_cpu(self) -> list[Array]:
        return [each if hasattr(each, "ctypes") else each.numpy().copy() for each in self._made]

    def run(self) -> None:
        """As `InferenceSession.run_with_iobinding`."""
        cached = None if self._run_cached is None else self._run_cached(self._inputs, self._outputs)
        if cached is None or not self._outputs.keys() <= cached.keys():
            outputs: list[Any] = self.run_of_session(list(self._outputs), self._inputs)
        else:
            outputs = [cached[name] for name in self._outputs or cached]
        places = list(self._outputs.values()) or [None] * len(outputs)
        for output, place in zip(outputs, places, strict=True):
            if place is not None and place is not output:
                _put(input_of(output), place)
        self._made = [output if place is None else place for output, place in zip(outputs, places, strict=True)]


def onnx_type(dtype: str) -> str:
    """`tensor(float)`"""
    return f"tensor({_THEIR_TYPES.get(dtype, dtype)})"


def _layout(shape: Sequence[int], element_type: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type of an array. Raises BadRequest if no array has them."""
    import numpy as np

    dtype = _dtype(element_type)
    try:
        return np.broadcast_to(np.empty((), dtype), shape).shape, dtype  # this checks the shape, and takes no memory
    except (TypeError, ValueError, OverflowError) as error:
        raise invalid_argument(
            f"shape is {shape!r}, which no tensor has; give whole numbers of at least 0, for less than 2^63 bytes"
        ) from error


def _dtype(element_type: Any) -> np.dtype[Any]:
    """Of a NumPy type, or of ONNX's number for a type."""
    import numpy as np

    dtype: np.dtype[Any] | None = None
    if isinstance(element_type, int):
        if element_type in _ELEMENT_TYPES:
            dtype = numpy_dtype(_ELEMENT_TYPES[element_type])
    elif element_type is not None:  # NumPy takes None for float64
        with contextlib.suppress(TypeError, ValueError):
            dtype = np.dtype(element_type)
    if dtype is None or dtype.hasobject or not dtype.itemsize:
        raise invalid_argument(f"element_type is {element_type!r}, which no tensor of a bundle has; give a NumPy type")
    return dtype


def input_of(value: Any) -> Any:
    """An `OrtValue` as the model takes it: the array over its memory; on a GPU it stays there, for DLPack. Any other
    value as it is.
    """
    return value.numpy() if hasattr(value, "data_type") and value.device_name() == "cpu" else value


def ort_value(array: Array) -> Any:
    """An `OrtValue` over the array's memory."""
    theirs = sys.modules.get("onnxruntime")
    return OrtValue(array) if theirs is None else theirs.OrtValue.ortvalue_from_numpy(array)


def _bind(places: dict[str, Any], name: str, value: Any) -> None:
    if not isinstance(name, str):
        raise invalid_argument(f"the name to bind is {name!r}; give the name of an input or output as a string")
    places[name] = value


def _checked_ort_value(name: str, value: Any) -> Any:
    if not hasattr(value, "update_inplace"):
        raise invalid_argument(
            f"'{name}' is bound to a value of type {type(value).__name__}; give an OrtValue, for example by "
            "OrtValue.ortvalue_from_numpy(array)"
        )
    return value


def _put(output: Array, place: Any) -> None:
    """Copy an output to the memory of an `OrtValue`."""
    shape, kind = list(output.shape), onnx_type(str(output.dtype))
    if (list(place.shape()), place.data_type()) != (shape, kind):
        raise invalid_argument(
            f"an output is bound as {place.data_type()} of the shape {list(place.shape())}, and the model gives "
            f"{kind} of the shape {shape}; bind memory for that"
        )
    place.update_inplace(output)


def _array_at(device_type: str, element_type: Any, shape: Sequence[int], address: Any) -> Array:
    import numpy as np

    _check_on_cpu(device_type)
    sizes, dtype = _layout(shape, element_type)
    n_bytes = math.prod(sizes) * dtype.itemsize
    if not n_bytes:
        return np.zeros(sizes, dtype)  # PyTorch gives the address 0 for an empty tensor
    if not isinstance(address, int | np.integer) or not 0 < address <= sys.maxsize - n_bytes:
        raise invalid_argument(f"buffer_ptr is {address!r}, where no array lies; give the address of its first number")
    memory: Any = (ctypes.c_char * n_bytes).from_address(int(address))
    array: Array = np.frombuffer(memory, dtype).reshape(sizes)
    return array


def _check_on_cpu(device_type: str) -> None:
    if device_type != CPU:
        raise invalid_argument(
            f"the device is '{device_type}'; give memory of the CPU here, or bind an OrtValue of the device"
        )


def invalid_argument(message: str) -> BadRequest:
    """The error for what callers of ONNX Runtime catch: a BadRequest, and a ValueError. Where they have imported
    onnxruntime it is an InvalidArgument of it as well.
    """
    return _error_class(sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state"))(message)


@functools.cache
def _error_class(onnxruntime: Any) -> type[BadRequest]:
    theirs = () if onnxruntime is None else (onnxruntime.InvalidArgument,)
    own = {"__doc__": BadRequest.__doc__, "__reduce__": lambda error: (BadRequest, error.args)}
    return type("InvalidArgument", (BadRequest, *theirs, ValueError), own)
