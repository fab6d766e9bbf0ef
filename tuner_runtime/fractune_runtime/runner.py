"""The threads that run a model.

TVM keeps a thread pool, and scratch memory, for each thread that calls a model. So all calls of a model that has a pool
go to one thread. However many threads a program has, it has one pool of the share's size and one scratch memory. The
caller's affinity stays unchanged, and another share takes only another thread. A hand-over and back costs some 10 to 50
us. A model of one thread has no pool, so it needs no hand-over: each call runs on the thread of its caller.

A pool that has slept for a while is woken by its first thread, and the kernel may put two of its threads on one CPU. An
inference ends before the kernel moves one of them, so it takes as long as with one thread fewer. Threads with disjoint
parts of the CPUs (`parts`) cannot meet. Within its part the kernel chooses, so that a small share of a large host is
not tied to CPUs that other programs use.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from fractune_core.cpu_limits import threads_text
from fractune_core.errors import FractuneError
from fractune_core.host.cpus import ROOT, CpuTopology, Quota
from fractune_core.share_kinds import CPU, kind_of
from fractune_runtime.cpu import ShareHere, allowed_cpus
from fractune_runtime.tvm_runtime.runtime import runtime_library, tvm_function

_STOP_TIMEOUT_S = 60.0
_SHARE_ALL_CPUS = -3
"""TVM's mode of a thread pool with all threads on all CPUs of a list"""
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
"""The function that TVM calls on each thread of a pool: number of the thread, two addresses that are not used here; 0 =
done"""
_READ = "_ZN3tvm7runtime9threading14MaxConcurrencyEv"
_WRITE = "_ZN3tvm7runtime9threading17SetMaxConcurrencyEi"
"""TVM exports these functions by their C++ names only"""

_PART_OF_LIMIT = 0.97
"""The part of a CPU limit that paced steps use: its periods begin at times that are not known"""
_PART_OF_BUDGET = 0.06
"""of a period: how much of it steps may save up, and how much they may take in advance"""
_MOST_DEBT = 10
"""times that: what a prompt or another part of the program has used, and steps make up for"""
_PART_OF_STEP, _MOST_SLOWER, _FORGOTTEN = 0.3, 2, 0.01
"""What the last step counts in the mean, and how many times as long as the mean it may be there. A step with one thread
forgets the last part of the mean with all"""

MIN_REPEAT_S = 0.02
"""seconds of calls of a model that are timed together"""


def secs_of_one(call: Callable[[], object], at_least_s: float = MIN_REPEAT_S) -> float:
    """Seconds of one inference, the average over `at_least_s` seconds of inferences."""
    calls, start = 0, time.perf_counter()
    while True:
        call()
        calls += 1
        spent = time.perf_counter() - start
        if spent >= at_least_s:
            return spent / calls


_Call = tuple[Callable[[], Any], "_Answer"]


class _Answer:
    """The result of a call, once `done` can be acquired."""

    def __init__(self) -> None:
        self.done = threading.Lock()
        self.done.acquire()
        self.value: Any = None
        self.error: BaseException | None = None


def runner_for(here: ShareHere, threads: int) -> Runner | CallersThread:
    """The runner of a model with `threads` threads at that share."""
    # CUDA keeps state for each thread of the host: there all calls come from one.
    if threads == 1 and kind_of(here.mechanism).device_kind == CPU and thread_limit():
        return CallersThread()
    if here.quota is not None and 1 < here.quota.cores < threads and thread_limit():
        return Runner(threads, here.cpus, Pace(here.quota))
    return Runner(threads, here.cpus)


class Runner:
    """A thread confined to `cpus`, with a TVM pool of `threads` threads there, itself one of them. It leaves out CPUs
    that the process may not use any more at the first call. It lives until `stop`, or until the process ends. In a
    forked child, where it is gone, a new thread takes its place. A `pace` decides how many of the threads a step takes.
    """

    def __init__(self, threads: int, cpus: tuple[int, ...], pace: Pace | None = None) -> None:
        self.threads = threads
        self.cpus = cpus
        self._pace = pace
        self._start()

    def begin(self) -> None:
        """Start all threads now, and not at the first call. Raises FractuneError."""
        try:
            self.call(_nothing)
        except FractuneError:
            self.stop()
            raise

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function` on that thread; raises its exception."""
        if self._process != os.getpid():
            self._start()
        answer = _Answer()
        self._calls.put((partial(function, *arguments), answer))
        answer.done.acquire()
        if answer.error is not None:
            raise answer.error
        return answer.value

    def step(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """As `call`, for one of many short calls without a rest between them."""
        if self._pace is None:
            return self.call(function, *arguments)
        return self.call(self._pace.step, function, *arguments)

    def stop(self) -> None:
        """End the thread after its queued calls, and wait for it. A process must not end around a thread inside
        compiled code. After Ctrl-C a call may still go on, and no other thread may then run the model.
        """
        self._calls.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(_STOP_TIMEOUT_S)

    def _start(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        arguments = (self._calls, self.threads, self.cpus)
        # Not `self`: a model without other references must not be held by its own thread.
        self._thread = threading.Thread(target=_serve, args=arguments, name="fractune-run", daemon=True)
        with started(self.threads):
            self._thread.start()
        self._process = os.getpid()


class Pace:
    """Which steps of a model that never rests take all threads of its pool, and which take one, under a CPU limit
    between one core and all threads. So the limit hardly ever stops them, and hardly any of its CPU time is lost.

    The CPU time of the whole process counts, spinning threads with it. Several steps in a row take as many threads,
    because a thread of the pool spins behind the last of them.
    """

    def __init__(self, quota: Quota) -> None:
        self._cores = _PART_OF_LIMIT * quota.cores
        self._most_s = _PART_OF_BUDGET * quota.quota_us / 1e6
        self._left_s = 0.0
        """of the budget; below 0, more than that is used"""
        self._takes_all = False
        self._step_s = {True: 0.0, False: 0.0}
        """of a step with all threads, and with one: means of the last ones; 0 = not known"""
        self._seen = self._now()

    def step(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function`, called on the thread of the pool."""
        rest_s, cpu_s = self._passed()
        left_s = min(self._left_s + self._cores * rest_s - cpu_s, max(self._left_s, self._most_s))
        self._left_s = max(left_s, -_MOST_DEBT * self._most_s)
        self._takes_all = self._left_s > -self._most_s if self._takes_all else self._left_s >= self._most_s
        takes_all = self._takes_all and not 0 < self._step_s[False] < self._step_s[True]
        read, write = thread_limit()
        before = read()
        if not takes_all:
            write(1)
        try:
            return function(*arguments)
        finally:
            write(before)
            secs, cpu_s = self._passed()
            # The time that a step waits for other programs saves up nothing.
            saved_s = self._cores * min(secs, cpu_s) - cpu_s
            if saved_s < 0 or self._left_s < self._most_s:
                self._left_s += saved_s
            self._learn(secs, takes_all=takes_all)

    def _learn(self, secs: float, *, takes_all: bool) -> None:
        known_s = self._step_s[takes_all] or secs
        self._step_s[takes_all] = known_s + _PART_OF_STEP * (min(secs, _MOST_SLOWER * known_s) - known_s)
        if not takes_all:
            # Steps with all threads are tried again: another program may have slowed them down.
            self._step_s[True] *= 1 - _FORGOTTEN

    def _passed(self) -> tuple[float, float]:
        """Seconds since the last look, and the CPU time of the process in them."""
        (wall_s, cpu_s), self._seen = self._seen, self._now()
        return self._seen[0] - wall_s, self._seen[1] - cpu_s

    @staticmethod
    def _now() -> tuple[float, float]:
        return time.perf_counter(), time.process_time()


class CallersThread:
    """Calls on the threads of the callers, one at a time, without a pool. No thread is moved: a call runs on the CPUs
    that its caller may use. Needs `thread_limit`.

    A parallel loop of compiled code reads the limit of threads of its calling thread. If the limit is 1, TVM runs the
    loop there and neither makes nor wakes a pool. The thread's limit is the same after a call, for other code that the
    thread runs by TVM.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        begin_in_forked_children(self)

    def begin_in_child(self) -> None:
        self._turn = threading.Lock()

    def begin(self) -> None:
        """There is nothing to start."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """The result of `function`; raises its exception."""
        read, write = thread_limit()
        with self._turn:
            before = read()
            write(1)
            try:
                return function(*arguments)
            finally:
                write(before)

    step = call

    def stop(self) -> None:
        """Wait for a call under way and begin no other, so that the process does not end around one."""
        self._turn.acquire(timeout=_STOP_TIMEOUT_S)


def _nothing() -> None:
    pass


def _serve(calls: queue.SimpleQueue[_Call | None], threads: int, cpus: tuple[int, ...]) -> None:
    ready = False
    while (call := calls.get()) is not None:
        function, answer = call
        try:
            if not ready:
                settle(threads, cpus)
                ready = True
            answer.value = function()
        except BaseException as error:  # noqa: BLE001  it is raised again where the call came from
            answer.error = error
        answer.done.release()
        # Objects of this call must not live on until the next call.
        del call, function, answer


def parts(cpus: Iterable[int], threads: int, root: Path = ROOT) -> list[tuple[int, ...]]:
    """The part of `cpus` for each of `threads` threads, which are at most as many as CPUs. The CPUs of one core (by
    `/sys` below `root`) go to one thread, if the machine has enough cores.
    """
    allowed = sorted(cpus)
    hands = CpuTopology.read(root).cores(allowed)
    if len(hands) < threads:
        hands = [[cpu] for cpu in allowed]
    return [tuple(sorted(cpu for hand in hands[thread::threads] for cpu in hand)) for thread in range(threads)]


def use_cpus(parts: Sequence[Sequence[int]]) -> None:
    """Give the calling thread a pool of as many threads as `parts`, itself the first of them, each on the CPUs of its
    part. The thread must not have run a model. TVM keeps a pool for each thread that runs models. It cannot grow later:
    a larger pool takes another thread. If the kernel refuses a part, the thread keeps its CPUs.
    """
    # TVM makes a pool with as many threads as named CPUs.
    tvm_function("runtime.config_threadpool")(_SHARE_ALL_CPUS, len(parts), [str(part[0]) for part in parts])

    # TVM can bind a thread to one CPU or to all, and its environment may forbid that. So each thread does it itself.
    def place(thread: int, _group: int | None, _data: int | None) -> int:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, parts[thread])
        return 0

    ctypes.CDLL(runtime_library()).TVMBackendParallelLaunch(_TASK(place), None, len(parts))


def settle(threads: int, cpus: tuple[int, ...]) -> None:
    """Make TVM's pool of the calling thread, on those of `cpus` that the process may use now: a forked child may have
    fewer.
    """
    allowed = allowed_cpus()
    here = set(cpus).intersection(allowed) or allowed
    number = min(threads, len(here))
    with started(number):
        use_cpus(parts(here, number))


@contextlib.contextmanager
def started(threads: int) -> Iterator[None]:
    """Raises FractuneError for the RuntimeErrors of Python and TVM where the system refuses a thread."""
    try:
        yield
    except RuntimeError as error:
        raise FractuneError(
            f"{threads_text(threads)} of a model cannot be started ({error}); raise the limit on the process's tasks"
        ) from error


@functools.cache
def thread_limit() -> tuple[Any, ...]:
    """TVM's functions that read and write the limit; empty if TVM does not export them."""
    # Both return at once, so they keep the interpreter's lock.
    library = ctypes.PyDLL(runtime_library())
    try:
        return library[_READ], library[_WRITE]
    except AttributeError:
        return ()


# A forked child has one thread, and a lock that another thread held at the fork stays locked there.


class Forked(Protocol):
    """An object with locks."""

    def begin_in_child(self) -> None:
        """Make new locks, and give up what another thread was changing. No other thread runs."""
        ...


class Turn:
    """A lock of several objects with `begin_in_child`, and whether a fork cut its holder off."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._process = os.getpid()
        self._was_cut_off = False

    def begin_in_child(self) -> bool:
        """Called by each of the objects: True if another thread held the lock at the fork."""
        if self._process != os.getpid():
            self._process, self._was_cut_off = os.getpid(), self.lock.locked()
            self.lock = threading.Lock()
        return self._was_cut_off


_objects: weakref.WeakSet[Forked] = weakref.WeakSet()


def begin_in_forked_children(each: Forked) -> None:
    """Have each forked child call `begin_in_child` before anything else."""
    _objects.add(each)


def _begin_all() -> None:
    for each in list(_objects):
        each.begin_in_child()


os.register_at_fork(after_in_child=_begin_all)
