"""Real candidates of one operator: proposed by the child of a search, built by the child of a builder."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, TypeVar

from fractune_core.analysis.noise import FEWEST_CANDIDATES
from fractune_core.errors import BadModel, FractuneError
from fractune_core.records import Status
from fractune_core.targets import target_key, with_cores
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.child import Child
from fractune_workers.child.errors import CALL_ERRORS, CallFailed, ChildTimeout
from fractune_workers.locks.core_locks import CoreLocks
from fractune_workers.measuring.session import ArtifactBatch
from fractune_workers.reader import reader_child

_T = TypeVar("_T")


class ChildThread:
    """Runs what it is given, one after the other, in a thread of its own.

    A daemon: a command that is stopped does not wait for a child that is starting, which dies with the thread.
    """

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end
        self._jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._stopped = threading.Event()
        self._ended: Future[None] = Future()
        threading.Thread(target=_fulfil, args=(self._ended, self._serve), daemon=True).start()

    def submit(self, run: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        self._jobs.put(lambda: _fulfil(future, run))
        return future

    def stop(self) -> Future[None]:
        """Give up what waits, and end after what runs."""
        self._stopped.set()
        self._jobs.put(lambda: None)
        return self._ended

    def _serve(self) -> None:
        try:
            while not self._stopped.is_set():
                self._jobs.get()()
        finally:
            self._at_end()


class HasChildThread(Protocol):
    """Something with a child, and the thread that the child belongs to."""

    thread: ChildThread


_Thing = TypeVar("_Thing", bound=HasChildThread)


@contextlib.contextmanager
def running(thing: _Thing) -> Iterator[_Thing]:
    """Ends the thing's child with the block; waits for it only when all went well."""
    try:
        yield thing
    finally:
        ended = thing.thread.stop()
    ended.result()


def _fulfil(future: Future[_T], run: Callable[[], _T]) -> None:
    try:
        future.set_result(run())
    except Exception as error:  # noqa: BLE001  it is raised where the result is waited for
        future.set_exception(error)


_OPERATOR_TIMEOUT_S = 600.0
_SEARCH_TIMEOUT_S = 300.0
_ROUNDS = 12
"""Rounds of sampling: some candidates cannot be built, and most samples for a GPU are refused before that"""
_THREADS_AT_MOST = 8


@dataclass(frozen=True)
class SampleOperator:
    """One operator for one target."""

    name: str
    workload_hash: str
    workload: str
    """its text"""
    target: str
    """TVM's target as JSON text"""

    def for_units(self, units: int) -> SampleOperator:
        """The operator as it is searched for a share of `units` cores; unchanged for a GPU."""
        return replace(self, target=with_cores(self.target, units))


@dataclass(frozen=True)
class Candidates:
    """Candidates of one operator that could all be built."""

    operator: SampleOperator
    args_info: list[Any]
    traces: list[str]
    """in the order of `codes`"""
    codes: dict[str, bytes]
    """by candidate: an object file, for a GPU an archive of two"""

    def batch(self, names: Sequence[str]) -> ArtifactBatch:
        """These candidates, as they are measured together."""
        codes, traces = {name: self.codes[name] for name in names}, dict(zip(self.codes, self.traces, strict=True))
        return ArtifactBatch.of(self.operator.workload_hash, self.args_info, codes, traces)


@dataclass(frozen=True)
class BuildCores:
    """The cores where candidates are made, and their locks."""

    core_locks: CoreLocks
    cores: Sequence[int]

    @contextlib.contextmanager
    def computing(self, child: Child) -> Iterator[None]:
        """Within the block `child` may compute; it is stopped while a measurement needs the cores."""
        with self.core_locks.working(self.cores) as hold, child.preemptible_by(hold):
            yield


class OperatorBuilder:
    """A builder's child that knows one operator, and the thread that it belongs to."""

    def __init__(self, operator: SampleOperator) -> None:
        self._operator = operator
        self._process = BuilderProcess()
        self.child = self._process.child
        self.thread = ChildThread(self._process.stop)
        self.args_info: list[Any] = []
        """the operator's arguments, known once something was built"""

    def build(self, trace: str) -> Future[bytes]:
        """One candidate's code. The future raises CallFailed, ChildTimeout or ChildDied."""
        return self.thread.submit(lambda: self._build(trace))

    def build_until(
        self, ended: threading.Event, busy: threading.Event, traces: Sequence[str], cores: Sequence[int]
    ) -> Future[None]:
        """Build one after the other on `cores` until `ended`; sets `busy` once the first one is built."""

        def build() -> None:
            try:
                self._move_to(cores)
                for trace in itertools.cycle(traces):
                    with contextlib.suppress(ChildTimeout, CallFailed):  # crowded cores: it is a load all the same
                        self._build(trace)
                    busy.set()
                    if ended.is_set():
                        return
            finally:
                busy.set()

        return self.thread.submit(build)

    def _build(self, trace: str) -> bytes:
        operator = self._operator
        self.args_info = self._process.learn(operator.workload_hash, operator.target, lambda: operator.workload)
        built = self._process.build(operator.workload_hash, operator.target, trace)
        if built.status is not Status.OK:
            raise CallFailed(built.cause)
        return built.code

    def _move_to(self, cores: Sequence[int]) -> None:
        """The child compiles in the thread that bears its process id; a child to come inherits from this thread."""
        os.sched_setaffinity(0, cores)
        if self.child.pid is not None:
            os.sched_setaffinity(self.child.pid, cores)


def builtin_operator(target: str, build_cores: BuildCores) -> SampleOperator:
    """The convolution that is measured when no model is given, for `target` (TVM's JSON text; empty = this host)."""
    with _started(Child("fractune_workers.children.importing.single_operator")) as child, build_cores.computing(child):
        return SampleOperator(**child.call("builtin", _OPERATOR_TIMEOUT_S, target=target))


def heaviest_operator(
    model: Path, inputs: Mapping[str, Sequence[int]], only: str, target: str, build_cores: BuildCores
) -> SampleOperator:
    """The model's heaviest operator with `only` in its name. Raises BadModel."""
    known = {"path": str(model.absolute()), "inputs": inputs, "only": only, "target": target}
    reader = reader_child("fractune_workers.children.importing.single_operator", model=model)
    with _started(reader) as child, build_cores.computing(child):
        try:
            return SampleOperator(**child.call("heaviest", _OPERATOR_TIMEOUT_S, **known))
        except CALL_ERRORS as error:
            raise BadModel(f"{model.name} could not be read: {error}") from error


def sample(
    operator: SampleOperator, count: int, seed: int, build_cores: BuildCores, builder: OperatorBuilder
) -> Candidates:
    """`count` random candidates, or as many as could be built: a search that knows no times yet samples.

    Raises FractuneError for fewer than FEWEST_CANDIDATES, or when the search fails.
    """
    threads = str(min(len(build_cores.cores), _THREADS_AT_MOST))
    known = {"workload_hash": operator.workload_hash, "target_key": target_key(operator.target)}
    opened = {"workload": operator.workload, "target": operator.target, "seed": seed, "history": [], "transferred": []}
    traces: list[str] = []
    codes: dict[str, bytes] = {}
    with _started(Child("fractune_workers.children.searching.child", [threads])) as search:
        with build_cores.computing(search):
            search.call("open", _SEARCH_TIMEOUT_S, **known, **opened)
        for _ in range(_ROUNDS):
            missing = count - len(codes)
            with build_cores.computing(search):
                proposed = search.call("propose", _SEARCH_TIMEOUT_S, **known, count=missing)
            for item in proposed:
                # A candidate that cannot be built is not timed; the next round replaces it.
                with build_cores.computing(builder.child), contextlib.suppress(*CALL_ERRORS):
                    codes[item["candidate"]] = builder.build(item["trace"]).result()
                    traces.append(item["trace"])
            if len(codes) == count or not proposed:
                break
    if len(codes) < FEWEST_CANDIDATES:
        raise FractuneError(
            f"only {len(codes)} candidates of operator {operator.name} could be built, and {FEWEST_CANDIDATES} are "
            "needed; choose another operator by --model and --only"
        )
    return Candidates(operator, builder.args_info, traces, codes)


@contextlib.contextmanager
def _started(child: Child) -> Iterator[Child]:
    try:
        yield child
    finally:
        child.stop()
