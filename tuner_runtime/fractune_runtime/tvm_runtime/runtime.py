"""TVM's runtime without TVM's Python package: two shared libraries of its wheel, driven through `tvm_ffi`; the one
copy of a bundle's weights, and how a thread computes with denormals.

`import tvm` loads the compiler too, 250 MB of it, and takes a second; a compiled model needs none of that.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import mmap
import os
import platform
import threading
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from fractune_core.cpu_limits import SPIN_COUNT, SPIN_YIELDS
from fractune_core.errors import FractuneError
from fractune_core.files.bundles import WEIGHTS, Bundle
from fractune_core.files.manifests import ALIGNMENT_BYTES

_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
"""the second holds sorting and random numbers, which some models call"""
_CUDA_LIBRARY = "libtvm_runtime_cuda.so"
_COMPILER = "libtvm_compiler.so"
_INSTALL = "install 'fractune[run]', or 'fractune-runtime'"
_HUGE_PAGE_BYTES = 1 << 21
CPU = (1, 0)
"""a device in the numbers of TVM and DLPack: its kind and its index"""
_loading = threading.Lock()


def load_runtime() -> None:
    """Load TVM's runtime into this process, once. Raises FractuneError when it is not installed."""
    with _loading:
        _load_libraries()


@functools.cache
def _load_libraries() -> None:
    try:
        import tvm_ffi_orcjit  # noqa: F401  registers the loader of object files
    except ImportError as error:
        raise FractuneError(f"running a bundle needs TVM ({error}); {_INSTALL}") from error
    os.environ.setdefault(SPIN_COUNT, SPIN_YIELDS)
    for name in _LIBRARIES:
        try:
            ctypes.CDLL(str(_library_folder() / name), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise FractuneError(f"TVM's runtime cannot be loaded ({error}); install 'fractune[run]' again") from error


def load_cuda_runtime() -> None:
    """Load TVM's runtime for NVIDIA GPUs too. Raises FractuneError when a part of it is missing."""
    from fractune_core.cuda import load_cudart

    load_runtime()
    with _loading:
        load_cudart()
        try:
            ctypes.CDLL(str(_library_folder() / _CUDA_LIBRARY), ctypes.RTLD_GLOBAL)
        except OSError as error:
            raise FractuneError(
                f"TVM's runtime for NVIDIA GPUs cannot be loaded ({error}); install driver 580 or newer, and "
                "'fractune[run,cuda]', which brings the CUDA runtime"
            ) from error


@functools.cache
def _library_folder() -> Path:
    """The folder of the libraries in TVM's wheel, whose package is not imported, else in that of `fractune-runtime`.
    TVM's compiler is linked with the libraries beside it.
    """
    for package, folder in (("tvm", "lib"), ("fractune_runtime_files", "tvm")):
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            return Path(next(iter(spec.submodule_search_locations))) / folder
    raise FractuneError(f"running a bundle needs TVM; {_INSTALL}")


def runtime_library() -> str:
    """The path of TVM's runtime."""
    return str(_library_folder() / _LIBRARIES[0])


def compiler_function(name: str) -> Callable[..., Any] | None:
    """A function of TVM's compiler; None where the compiler is not installed."""
    import tvm_ffi

    load_runtime()
    try:
        ctypes.CDLL(str(_library_folder() / _COMPILER), ctypes.RTLD_LOCAL)
    except OSError:
        return None
    return tvm_ffi.get_global_func(name, allow_missing=True)


@functools.cache
def tvm_function(name: str) -> Callable[..., Any]:
    import tvm_ffi

    return tvm_ffi.get_global_func(name)


def viewed(tensor: Any, shape: Sequence[int], dtype: str) -> Any:
    """The memory of a tensor as a tensor of another type; they share it."""
    import tvm_ffi

    return tvm_function("runtime.TVMTensorCreateView")(tensor, tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), 0)


def empty_tensor(shape: Sequence[int], dtype: str, device: str) -> Any:
    """A tensor in separate memory on the device (`cuda:0`)."""
    import tvm_ffi

    make = tvm_function("runtime.TVMTensorAllocWithScope")
    return make(tvm_ffi.Shape(tuple(shape)), tvm_ffi.dtype(dtype), tvm_ffi.device(device), None)


def copy_tensor(source: Any, target: Any) -> None:
    """Copy the contents, from one device to another too. With a GPU the copy is complete only after `synchronise`."""
    tvm_function("runtime.TVMTensorCopyFromTo")(source, target)


def synchronise(device: str, stream: int = 0) -> None:
    """Wait for all launches on a stream of the device (an address; 0 = the default stream)."""
    import tvm_ffi

    tvm_function("runtime.Device_StreamSync")(tvm_ffi.device(device), stream)


def aligned_bytes(size: int) -> Any:
    """A NumPy array of bytes with the alignment that compiled code may expect."""
    import numpy as np

    room = np.empty(size + ALIGNMENT_BYTES, np.uint8)
    start = -room.ctypes.data % ALIGNMENT_BYTES
    return room[start : start + size]


def lasting_bytes(size: int) -> Any:
    """As `aligned_bytes`, zeros, for memory that stays: from 2 MiB on in huge pages, where Linux has them. One entry of
    the processor's page tables then covers 2 MiB, and one page fault fills it. Raises FractuneError.
    """
    import numpy as np

    if size < _HUGE_PAGE_BYTES:
        memory = aligned_bytes(size)
        memory[...] = 0
        return memory
    try:
        pages = mmap.mmap(-1, size + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise FractuneError(f"no memory for {size >> 20} MiB ({error}); raise the limit on the process") from error
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(pages, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE_BYTES
    return whole[start : start + size]


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
        buffer = lasting_bytes(end)
        rooms = [buffer[begin : begin + each["size"]] for begin, each in zip(begins, described, strict=True)]
        filled = list(zip(described, rooms, strict=True))
        self._bundle.read_parts(WEIGHTS, ((each["offset"], memoryview(room)) for each, room in filled))
        return [viewed(tvm_ffi.from_dlpack(room), each["shape"], each["dtype"]) for each, room in filled]


# The mode of a thread for numbers below the smallest normal one of their type (denormals; of float32 below 1.2e-38).
#
# Many processors compute such a number some hundred times slower than another. On x86-64 a thread has a floating-point
# mode, in which it takes them as zero (denormals are zero) and gives zero for them (flush to zero).

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _Mode(ctypes.Structure):
    """The GNU C library's `femode_t` of x86-64."""

    _fields_ = (("x87", ctypes.c_uint16), ("reserved", ctypes.c_uint16), ("mxcsr", ctypes.c_uint32))


_DEFAULT = 0x037F, 0, 0x1F80
"""of a new process: numbers are rounded to the nearest, and no exception is raised"""
_FLUSH_TO_ZERO, _DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
_NORMAL = _Mode(*_DEFAULT)
_FLUSHED = _Mode(*_DEFAULT[:2], _DEFAULT[2] | _FLUSH_TO_ZERO | _DENORMALS_ARE_ZERO)


def with_denormals(function: Callable[_P, _T], *, kept: bool) -> Callable[_P, _T]:
    """`function`, which computes with denormals (`kept`) or takes and gives zero for them, whatever the mode of its
    caller. The caller's thread is in its own mode again afterwards, also after an exception. No two threads may call it
    at the same time. On a processor without this mode it is `function` itself.
    """
    access = _access()
    if access is None:
        return function
    (read, write), mode = access, ctypes.byref(_NORMAL if kept else _FLUSHED)
    before = ctypes.byref(_Mode())  # made once: a run of a small model takes microseconds

    def call(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        read(before)
        write(mode)
        try:
            return function(*args, **kwargs)
        finally:
            write(before)

    return call


@functools.cache
def _access() -> tuple[Callable[[Any], None], Callable[[Any], None]] | None:
    """The C library's functions that read and write the mode of the calling thread."""
    if platform.machine() != "x86_64":
        return None
    try:
        # Both return at once, so they keep the interpreter's lock.
        library = ctypes.PyDLL("libm.so.6")
        read, write = library.fegetmode, library.fesetmode
    except (OSError, AttributeError):  # another C library than GNU's
        return None
    read.restype = write.restype = None  # their result says nothing, and to make a number of it takes time
    return read, write
