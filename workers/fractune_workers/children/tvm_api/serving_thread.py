"""A thread that runs a model as a service does: with a pool of its own, each of its threads on CPUs of its own."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tvm

from fractune_core.host.thread_pool import parts, use_cpus

_RUNTIME = Path(tvm.__file__).parent / "lib" / "libtvm_runtime.so"

Run = Callable[[Callable[[], Any]], Any]
"""The result of a function on the thread; raises its exception"""


@contextlib.contextmanager
def serving_thread(threads: int, cpus: Collection[int]) -> Iterator[Run]:
    """A thread whose parallel loops have `threads` threads, itself one of them, on `cpus`."""
    configure, library = tvm.get_global_func("runtime.config_threadpool"), ctypes.CDLL(str(_RUNTIME))
    placed = (parts(cpus, threads), configure, library)
    with ThreadPoolExecutor(1, "serving", initializer=use_cpus, initargs=placed) as executor:
        yield lambda function: executor.submit(function).result()
