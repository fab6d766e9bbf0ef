"""The processor on which the kernels of this process run and are timed: TVM's device and the stream on it. It needs
TVM's runtime alone.
"""

import contextlib
import ctypes
import functools
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm_ffi

from fractune_core.errors import FractuneError, ShareUnavailable, first_line
from fractune_core.host.machine import cpu_name, host_memory_bytes, l2_kib
from fractune_core.records import COLD, TimingPolicy
from fractune_core.shares import Device
from fractune_runtime.tvm_runtime.runtime import CPU, empty_tensor, load_runtime, synchronise
from fractune_runtime.tvm_runtime.tensors import numpy_dtype
from fractune_workers.child.errors import ChildDied

_EVALUATOR_DEFAULTS = (100, 0, 1)
"""Most repeats of zero seconds, milliseconds of cooling down, and after how many repeats: TVM's own."""


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Processor:
    """A CPU or a GPU as this process was confined to it."""

    device: Any
    """TVM's"""
    stream: int = 0
    """the only one that is confined (an address); 0 = the default stream"""
    flush_bytes: int = 0
    """bytes to copy so that the cache holds no older data; 0 = not known"""
    is_one_core: bool = False
    """a CPU with a single core for this process: nothing runs beside its thread"""
    check: Callable[[], None] = _nothing
    """raises FractuneError when the process has lost the device for good"""

    @property
    def is_gpu(self) -> bool:
        return bool(self.device.dlpack_device_type() != CPU[0])

    def tensor(self, array: Any) -> Any:
        """The array's contents on the device."""
        tensor = empty_tensor(array.shape, str(array.dtype), str(self.device))
        _copy_from(tensor, array)
        return tensor

    def write(self, tensor: Any, array: Any) -> None:
        self.sync()
        _copy_from(tensor, array)

    def read(self, tensor: Any) -> Any:
        """A copy of its contents, as an array, once all that was launched before has ended.

        TVM copies on the NULL stream, which the stream of a green context does not wait for, nor is it waited for.
        """
        self.sync()
        return _contents(tensor)

    def sync(self) -> None:
        """Wait until all that was launched has ended."""
        _synchronise(self.device, self.stream)

    def time(self, kernel: Any, args: list[Any], policy: TimingPolicy, calls: int = 1) -> list[float]:
        """Seconds of one call, `policy.repeats` times; each repeat averages calls over `min_repeat_ms`, beginning with
        `calls` calls.

        With a cold cache a repeat is one call: TVM empties the cache before each repeat, not before each call. On a GPU
        the time is the one between two events on the stream. On a single core it is the time of this thread on the core
        (docs/decisions/25-timing-on-a-cpu.md).
        """
        if self.is_one_core:
            evaluate = partial(_wall_s, kernel, args, self.device)
            return core_times(evaluate, policy.repeats, policy.min_repeat_ms * 1e-3, calls, policy.warmups)
        cold = policy.cache == COLD
        # TVM's evaluator calls the kernel once before it begins, and does not wait for it when it first empties the
        # cache.
        dropped = max(policy.warmups, 1) if cold else policy.warmups
        return _timed(
            kernel,
            args,
            self.device,
            number=1 if cold else calls,
            repeat=dropped + policy.repeats,
            min_repeat_ms=0 if cold else int(policy.min_repeat_ms),
            cache_flush_bytes=self.flush_bytes if cold else 0,
        )[dropped:]

    def secs_of_one(self, kernel: Any, args: list[Any]) -> float:
        """Call the kernel once. Returns the seconds, on a single core those of this thread on the core; 0 on a GPU,
        where the call returns before the kernel has run.
        """
        clock = time.thread_time if self.is_one_core else time.perf_counter
        start = clock()
        kernel["main"](*args)
        return 0.0 if self.is_gpu else clock() - start

    def free_unused(self) -> None:
        """Give back the memory that virtual machines have kept for calls to come."""
        tvm_ffi.get_global_func("vm.builtin.memory_manager.clear")()

    @contextlib.contextmanager
    def engaged(self) -> Iterator[None]:
        """Within the block, this thread launches on the stream; the block ends when all launched work has ended.

        Raises ChildDied when the device is lost. After an error of a kernel, CUDA refuses all further calls of this
        process, and the next call must not be blamed for it.
        """
        try:
            with launching_on(self.stream, str(self.device)):
                yield
                self.sync()
        except Exception as error:
            self._check_after(error)
            raise

    def _check_after(self, error: Exception) -> None:
        try:
            self.check()
        except FractuneError as loss:
            raise ChildDied(f"{first_line(error)}; after it, {loss}") from error


def _wall_s(kernel: Any, args: list[Any], device: Any, calls: int) -> float:
    return _timed(kernel, args, device, number=calls, repeat=1)[0]


def _timed(
    kernel: Any,
    args: list[Any],
    device: Any,
    *,
    number: int,
    repeat: int,
    min_repeat_ms: int = 0,
    cache_flush_bytes: int = 0,
) -> list[float]:
    """The seconds of TVM's evaluator, as of `tvm.runtime.Module.time_evaluator`."""
    evaluate = _runtime("RPCTimeEvaluator")(
        kernel,
        "main",
        device.dlpack_device_type(),
        device.index,
        number,
        repeat,
        min_repeat_ms,
        *_EVALUATOR_DEFAULTS,
        cache_flush_bytes,
        "",
    )
    return list(struct.unpack(f"@{repeat}d", evaluate(*args)))


@functools.cache
def _runtime(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = tvm_ffi.get_global_func(f"runtime.{name}")
    return function


def _synchronise(device: Any, stream: int) -> None:
    synchronise(str(device), stream)


def _contents(tensor: Any) -> Any:
    array = np.empty(tuple(tensor.shape), numpy_dtype(str(tensor.dtype)))
    _runtime("TVMTensorCopyToBytes")(tensor, _address(array), array.nbytes)
    return array


def _copy_from(tensor: Any, array: Any) -> None:
    whole = np.ascontiguousarray(array)
    _runtime("TVMTensorCopyFromBytes")(tensor, _address(whole), whole.nbytes)


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def cpu_processor() -> Processor:
    load_runtime()
    return Processor(tvm_ffi.device("cpu"), is_one_core=len(os.sched_getaffinity(0)) == 1)


def cpu_device(isa: str) -> Device:
    """The host CPU as a device; its units are all cores of the machine, whatever this process may use."""
    return Device(
        kind="cpu",
        isa=isa,
        units=os.cpu_count() or 1,
        memory_gib=round(host_memory_bytes() / 2**30),
        l2_kib=l2_kib(),
        label=cpu_name(),
    )


@contextlib.contextmanager
def launching_on(stream: int, device: str = "cuda:0") -> Iterator[None]:
    """Within the block, this thread's kernels for `device` go to `stream` (an address; 0 = the default stream).

    The setting belongs to the thread: another thread still launches on the default stream, unconfined. TVM copies and
    syncs on the NULL stream, and a green context's stream does not wait for it. Before reading the output of a kernel,
    call `tvm.device(device).sync(stream)`. Raises ShareUnavailable when TVM does not take the stream.
    """
    found = tvm_ffi.device(device)
    with tvm_ffi.use_raw_stream(found, stream):
        taken = tvm_ffi.get_raw_stream(found)
        if taken != stream:
            raise ShareUnavailable(
                f"TVM launches on stream {taken:#x}, not on {stream:#x}, which is the confined one; install the locked "
                "version of apache-tvm-ffi"
            )
        yield


_SPARE = 1.05
_GROWTH = 1.6
"""A too short repeat is made again, with at least this many times the calls."""

Evaluate = Callable[[int], float]
"""Seconds of one call by the wall clock, the mean of the given number of calls; one more call comes before them."""


def core_times(evaluate: Evaluate, repeats: int, min_repeat_s: float, calls: int = 1, warmups: int = 0) -> list[float]:
    """Seconds on a core of one call, `repeats` times after `warmups`. Each repeat spends `min_repeat_s` on the core,
    and begins with `calls` calls.
    """
    run_secs: list[float] = []
    while len(run_secs) < warmups + repeats:
        secs = _core_s(evaluate, calls)
        if secs * calls >= min_repeat_s:
            run_secs.append(secs)
            if calls == 1:
                warmups = 0  # where a single call takes so long, the one before it has warmed up enough
        else:
            needed = math.ceil(_SPARE * min_repeat_s / secs) if secs > 0 else 0
            calls = max(needed, math.ceil(_GROWTH * calls))
    return run_secs[warmups:]


def _core_s(evaluate: Evaluate, calls: int) -> float:
    """Seconds of one call on the core: the thread's time over all calls, the first too. Interruptions do not count.

    Without an interruption, the wall clock contains less beside the calls, and is the smaller.
    """
    before_s = time.thread_time()
    wall_s = evaluate(calls)
    return min(wall_s, (time.thread_time() - before_s) / (calls + 1))
