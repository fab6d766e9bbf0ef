"""The builder's child: trace -> machine code. The child stays warm, and every build runs in a fork of it.

A fork costs milliseconds, where a new process would import TVM for seconds. TVM's compiler leaks memory; the leak ends
with the fork. A crash or an endless build ends one fork alone. The limit of a build is on CPU time: it does not count
while a build is stopped for a measurement or shares its core. No build uses a GPU, not even a build for one.
"""

import json
import os
import pickle
import resource
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import tvm

from fractune_core.errors import FractuneError, first_line
from fractune_core.host.limits import is_death_by_memory, memory_limit
from fractune_core.host.parent_death import die_with_parent
from fractune_core.operators import DIRECT, TRITON, implementation_of, trace_of
from fractune_core.records import UNTUNED, Status
from fractune_core.targets import TF32
from fractune_workers.child.errors import TRIES, is_kill, memory_met, memory_met_by
from fractune_workers.children.building.cuda import build_archive, scheduled_by_default
from fractune_workers.children.building.triton_archive import build_triton_archive
from fractune_workers.children.recurrent.packing import Tiling
from fractune_workers.children.recurrent.tilings import arguments_of, kernel_module, recurrence_in, runs, tiling_for
from fractune_workers.children.triton_kernels.compiler import load_triton
from fractune_workers.children.tvm_api.compiled import (
    anchor_object,
    build_assembly,
    build_object,
    kernel_digest,
    loop_object,
    object_of,
    ready,
)
from fractune_workers.children.tvm_api.cuda_target import compiler_for
from fractune_workers.children.tvm_api.dot_intrinsics import register_named
from fractune_workers.children.tvm_api.intrinsics import load_intrinsics, prepare_tensor_cores
from fractune_workers.children.tvm_api.keep_out import stay_off_gpus
from fractune_workers.children.tvm_api.quantizing import with_reference
from fractune_workers.children.tvm_api.target import architecture, default_target, load_target, needed_features
from fractune_workers.children.tvm_api.traces import Workload, args_of, read_trace, read_workloads
from fractune_workers.scratch_dir import use_for_temporary_files


class ForkDied(FractuneError):
    """A fork ended without an answer, by signal `number` (0: by itself), after `spent_s` seconds of CPU time, with a
    peak of `peak_bytes` of memory.
    """

    def __init__(self, message: str, number: int = 0, spent_s: float = 0.0, peak_bytes: int = 0) -> None:
        super().__init__(message)
        self.number = number
        self.spent_s = spent_s
        self.peak_bytes = peak_bytes


class Fork:
    """A piece of work under way. Its result and its error must be picklable."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._reader, writer = os.pipe()
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            _work_and_leave(work, writer, parent)
        os.close(writer)

    def result(self) -> Any:
        """Wait for the work's result; once only. Raises the work's error, or ForkDied."""
        with os.fdopen(self._reader, "rb") as pipe:
            answer = pipe.read()
        _, status, usage = os.wait4(self._pid, 0)
        if os.WIFSIGNALED(status) or not answer:
            number = os.WTERMSIG(status)
            cause = signal.Signals(number).name if number else "an early end"
            spent_s, peak_bytes = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
            raise ForkDied(f"the compiler was ended by {cause}", number, spent_s, peak_bytes)
        result, error = pickle.loads(answer)  # noqa: S301  our own fork wrote it
        if error is not None:
            raise error
        return result


def _work_and_leave(work: Callable[[], Any], writer: int, parent: int) -> NoReturn:
    """In a fork: write the outcome to the pipe and end. The fork must never go on as a second server."""
    try:
        die_with_parent(parent)
        outcome = pickle.dumps(_outcome(work))
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(outcome)
        os._exit(0)
    except BaseException:  # noqa: BLE001  its parent sees a pipe without an answer
        traceback.print_exc()
    finally:
        os._exit(1)


def _outcome(work: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        return work(), None
    except Exception as error:  # noqa: BLE001  `result` raises it
        return None, error


_LIMIT_CPU_S = 10
_MET = 0.5
"""A part of the limit. The kernel ends a process by its count of ticks; the time that it reports afterwards may be only
0.9 of that on busy cores. A program that fails on its own fails long before."""


class BuilderChild:
    """Builds candidates of the workloads that it has learned."""

    def __init__(self) -> None:
        self._workloads: dict[str, dict[str, Workload]] = {}
        """by implementation, by workload hash of the operator"""

    def learn_workload(self, workload_hash: str, workload: str, target: str) -> list[Any]:
        """Remember an operator's workloads in the log's form; return the arguments of the direct one for `target`
        (TVM's JSON text).
        """
        self._workloads[workload_hash] = read_workloads(workload)
        direct, parsed = self._workloads[workload_hash][DIRECT], load_target(target)
        recurrence = recurrence_in(direct.mod)
        return args_of(direct, tf32=TF32 in parsed.keys) if recurrence is None else arguments_of(recurrence, parsed)

    def build(
        self, workload_hash: str, target: str, trace: str, limit_cpu_s: int = _LIMIT_CPU_S, *, as_text: bool = False
    ) -> dict[str, Any]:
        """Build one candidate. The result has `status`, its one-line `cause`, `object` (bytes; for a GPU an archive of
        two object files), its `kernel` (`kernel_digest`; empty for a GPU) and `build_secs` (CPU seconds). `versions`
        are those of the tools that made the code, without TVM. `as_text`: the object is the code for readers
        (`_Recipe.text`).

        Raises BadRequest or FractuneError when this machine builds nothing for the target, or the operator has no such
        implementation.
        """
        workloads, implementation = self._workloads[workload_hash], implementation_of(trace)
        recurrence, parsed = recurrence_in(workloads[DIRECT].mod), load_target(target)
        tiling = recurrence and Tiling.named(implementation, recurrence)
        if recurrence is not None and (implementation == DIRECT or (tiling and runs(tiling, recurrence, parsed))):
            kernel = kernel_module(recurrence, tiling or tiling_for(recurrence, parsed))
            recipe = _cpu_recipe(lambda: kernel, parsed)
        elif implementation in workloads:
            make_recipe = _triton_recipe if implementation == TRITON else _recipe
            recipe = make_recipe(workloads[implementation], parsed, trace_of(trace))
        else:
            raise FractuneError(f"workload {workload_hash} has no implementation '{implementation}'")
        if as_text:
            text = recipe.text
            recipe = replace(recipe, build=lambda: (text(), ""))
        return _in_forks(partial(_attempt, recipe, limit_cpu_s), limit_cpu_s)


def host_facts(target: str) -> dict[str, Any]:
    """What another host needs to measure code for `target` (TVM's JSON text).

    These are its `architecture`, the `features` that the code may use, and TVM's version `tvm`. For a CPU they are also
    the object files `anchor` and `loop` (`compiled.anchor_object`, `compiled.loop_object`), which are empty for a GPU.
    """
    parsed = load_target(target)
    of_gpu = parsed.kind.name == "cuda"
    # The code around a GPU's kernels is for any CPU of this architecture.
    host = default_target(1) if of_gpu else parsed
    return {
        "architecture": architecture(host),
        "features": [] if of_gpu else needed_features(host),
        "tvm": tvm.__version__,
        "anchor": b"" if of_gpu else anchor_object(parsed),
        "loop": b"" if of_gpu else loop_object(parsed),
    }


@dataclass(frozen=True)
class _Recipe:
    """How to build one candidate."""

    build: Callable[[], tuple[bytes, str]]
    """the code, and the `kernel_digest` of its one kernel"""
    versions: dict[str, str]
    text: Callable[[], bytes]
    """JSON: the scheduled TIR as `tir`, and for a CPU the `assembly`, else empty"""


def _cpu_recipe(scheduled: Callable[[], tvm.IRModule], target: tvm.target.Target) -> _Recipe:
    def text() -> bytes:
        return _readable(scheduled().script(), build_assembly(scheduled(), target))

    def build() -> tuple[bytes, str]:
        mod = ready(scheduled(), target)
        return object_of(mod, target), kernel_digest(mod)

    return _Recipe(build, {}, text)


def _readable(tir: str, assembly: str = "") -> bytes:
    return json.dumps({"tir": tir, "assembly": assembly}).encode()


def _recipe(workload: Workload, target: tvm.target.Target, trace: str) -> _Recipe:
    """Load here all that builds for the target share, so that no fork has to."""
    load_intrinsics(target)
    register_named(trace)
    untuned = trace == UNTUNED

    def scheduled() -> tvm.IRModule:
        return with_reference(workload.mod) if untuned else read_trace(trace, workload).mod

    if target.kind.name != "cuda":
        return _cpu_recipe(scheduled, target)
    prepare_tensor_cores(workload, target)
    compiler = compiler_for(target)

    def build() -> tuple[bytes, str]:
        mod = scheduled_by_default(scheduled(), target) if untuned else scheduled()
        return build_archive(mod, target, compiler), ""

    return _Recipe(build, {"compiler": compiler.name}, lambda: _readable(scheduled().script()))


def _triton_recipe(workload: Workload, target: tvm.target.Target, decisions: str) -> _Recipe:
    """Raises FractuneError without Triton."""
    version = load_triton()
    return _Recipe(
        lambda: (build_triton_archive(workload.mod, target, decisions), ""),
        {"compiler": version},
        lambda: _readable(workload.mod.script()),
    )


def _in_forks(attempt: Callable[[], dict[str, Any]], limit_cpu_s: int) -> dict[str, Any]:
    """The answer of `attempt` in a fork; in another fork after a kill that is not by its limit. A kill does not count
    against the candidate, unless it happens every time.
    """
    for _ in range(TRIES):
        try:
            answer = _in_a_fork(attempt)
        except ForkDied as end:
            died = end
            if _timed_out(end, limit_cpu_s) or not is_kill(end.number):
                break
        else:
            return answer
    return _ended(died, limit_cpu_s)


def _in_a_fork(attempt: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer of `attempt` in a fork. The fork's temporary files are removed, however it ends. Raises ForkDied."""
    with tempfile.TemporaryDirectory() as folder:

        def work() -> dict[str, Any]:
            use_for_temporary_files(Path(folder))
            return attempt()

        answer: dict[str, Any] = Fork(work).result()
    return answer


def _attempt(recipe: _Recipe, limit_cpu_s: int) -> dict[str, Any]:
    try:
        # CPU time begins at 0 in each fork: the parent's does not count.
        resource.setrlimit(resource.RLIMIT_CPU, (limit_cpu_s, limit_cpu_s + 1))
        code, kernel = recipe.build()
    except Exception as error:  # noqa: BLE001  whatever TVM raises is the candidate's fault
        if _spent_s() >= _MET * limit_cpu_s:  # a program that the compiler runs has a limit of its own
            return _answer(Status.BUILD_TIMEOUT, _too_long(limit_cpu_s), _spent_s())
        return _answer(Status.BUILD_FAILED, str(memory_met_by(error) or f"{type(error).__name__}: {first_line(error)}"))
    made = {"object": code, "kernel": kernel, "versions": recipe.versions}
    return _answer(Status.OK, "", _spent_s()) | made


def _answer(status: Status, cause: str, build_secs: float = 0.0) -> dict[str, Any]:
    nothing = {"object": b"", "kernel": "", "versions": {}}
    return {"status": status.value, "cause": cause, "build_secs": build_secs, **nothing}


def _spent_s() -> float:
    """CPU seconds of this process and of the programs that it has run."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + programs.ru_utime + programs.ru_stime


def _ended(end: ForkDied, limit_cpu_s: int) -> dict[str, Any]:
    if _timed_out(end, limit_cpu_s):
        return _answer(Status.BUILD_TIMEOUT, _too_long(limit_cpu_s), end.spent_s)
    limit_bytes = memory_limit()
    if limit_bytes is not None and is_death_by_memory(end.number, end.peak_bytes, limit_bytes):
        return _answer(Status.CRASHED, f"while it was built: {memory_met(limit_bytes)}", end.spent_s)
    return _answer(Status.CRASHED, f"while it was built: {end}", end.spent_s)


def _timed_out(end: ForkDied, limit_cpu_s: int) -> bool:
    return end.number == signal.SIGXCPU or (end.number == signal.SIGKILL and end.spent_s >= limit_cpu_s)


def _too_long(limit_cpu_s: int) -> str:
    return f"not built within {limit_cpu_s} s of CPU time"


def _warm_up() -> None:
    """Build a small module, so that LLVM is set up before the first fork; load the intrinsics of this CPU."""
    from tvm import te

    empty = te.placeholder((8,), name="empty")
    fill = te.compute((8,), lambda i: empty[i] + 1.0, name="fill")
    target = default_target(1)
    build_object(tvm.IRModule({"main": te.create_prim_func([empty, fill])}), target)
    load_intrinsics(target)


def open_child(_args: list[str]) -> dict[str, Callable[..., Any]]:
    stay_off_gpus()
    _warm_up()
    child = BuilderChild()
    return {
        "learn_workload": child.learn_workload,
        "build": child.build,
        "host_facts": host_facts,
    }
