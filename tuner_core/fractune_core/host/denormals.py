"""Numbers below the smallest normal one of their type (denormals; of float32 those below 1.2e-38).

Many processors compute such a number some hundred times slower than another. On x86-64 a thread has a floating-point
mode, in which it takes them as zero (denormals are zero) and gives zero for them (flush to zero).
"""

from __future__ import annotations

import ctypes
import functools
import platform
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_LEAST_SCALES = {"float64": 1e-300}
_LEAST_SCALE = 1e-30
"""of the other types, which have the exponents of float32 or fewer"""


def least_scale(dtype: str) -> float:
    """Differences of outputs are taken over their largest value, and over this number if all values are smaller. So
    lost denormals, and sums of them, make no difference.
    """
    return _LEAST_SCALES.get(dtype, _LEAST_SCALE)


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
