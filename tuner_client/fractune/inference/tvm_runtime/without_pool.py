"""Compiled code without TVM's thread pool: its parallel loops run on the calling thread.

A parallel loop reads the limit of threads of its calling thread. If the limit is 1, TVM runs the loop there and neither
makes nor wakes a pool.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from fractune.inference.tvm_runtime.runtime import runtime_library

_READ = "_ZN3tvm7runtime9threading14MaxConcurrencyEv"
_WRITE = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""TVM exports these functions by their C++ names only"""


def has_thread_limit() -> bool:
    """Whether this TVM lets a thread do without a pool."""
    return bool(_thread_limit())


def call_without_pool(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of `function`, which has no pool on this thread meanwhile. The thread's limit is the same afterwards,
    for other code that it runs by TVM. Needs `has_thread_limit`.
    """
    read, write = _thread_limit()
    before = read()
    write(1)
    try:
        return function(*arguments)
    finally:
        write(before)


@functools.cache
def _thread_limit() -> tuple[Any, ...]:
    """TVM's functions that read and write the limit; empty if TVM does not export them."""
    # Both return at once, so they keep the interpreter's lock.
    library = ctypes.PyDLL(runtime_library())
    try:
        return library[_READ], library[_WRITE]
    except AttributeError:
        return ()
