"""The supervised process in which TVM runs. The supervisor enforces deadlines, and kills the whole process group.

The child serves one call at a time over a socket; a message is one JSON object, with bytes beside it (`messages.py`).
The child starts when it is first needed, again after it has died, and again after `recycle_calls` calls (TVM's compiler
leaks memory). The first message names the sandbox that it enters, if it has one.
"""

import contextlib
import errno
import functools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from fractune_core.errors import FractuneError, ShareNotReady
from fractune_core.host import limits
from fractune_core.host.private_folders import empty_dir
from fractune_core.host.sandbox import Sandbox, plain_environment, without_secrets
from fractune_workers.child import errors
from fractune_workers.child.messages import decode, encode, whole_message
from fractune_workers.child.process import Start, await_standstill, peak_bytes_at_end, staying_on

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 2.0
_LOOK_EVERY_S = 0.01
_LOOK_AFTER_IT_EVERY_S = 1.0
_NOT_READY_TIMEOUT_S = 15.0
_NOT_READY_EVERY_S = 0.5
_CPU_PART = 0.5
"""of a call's deadline: the CPU time that a sandboxed child, and each process that it starts, may take for the call"""
_IGNORED_FOR_S = 1.0
"""of CPU time: a child that runs this long past its limit ignores the kernel's signal"""
_PIECE_BYTES = 1 << 20
_INEXACT_BYTES = 32 << 20
"""Two readings of the same peak memory may differ by so much: the kernel counts pages on each CPU, and adds up later"""
_PLAIN = Start()

_log = logging.getLogger(__name__)


class Preemption(Protocol):
    """The holder of cores that may interrupt a call: `fractune_workers.locks.core_locks.PreemptibleHold`."""

    def is_wanted(self) -> bool: ...

    def yield_cores(self) -> None: ...


def _release_nothing(_pid: int) -> bool:
    return True


class Child:
    """A supervised process that serves the methods of the module `module`, opened with `args`.

    Not thread-safe but for `interrupt`: one supervisor thread owns it, and that thread must live as long as the
    child, because the child dies with the thread that started it. `before_kill` is called with the process id of a
    living child before it is killed, and says whether the kill harms no other process. In a `sandbox`, its
    environment is cut down, a call may have a limit on CPU time, and the folders that it may write in are emptied
    before it starts. `memory_bytes`: its memory without a sandbox, which has such a limit itself; None = no limit.
    """

    def __init__(
        self,
        module: str,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        recycle_calls: int = 0,
        before_kill: Callable[[int], bool] = _release_nothing,
        start: Start = _PLAIN,
        sandbox: Sandbox | None = None,
        memory_bytes: int | None = None,
    ) -> None:
        self._args = [module, *args]
        self._env = dict(env or {})
        self._recycle_calls = recycle_calls
        self._before_kill = before_kill
        self._start_as = start
        self._sandbox = sandbox
        self._memory_bytes = sandbox.memory_bytes if sandbox else memory_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection | None = None
        self._calls = 0
        self._inherited_bytes = 0
        self._cpu_s, self._cpu_end_s = 0, 0
        self._preemption: Preemption | None = None
        self._is_wanted: Callable[[], bool] | None = None
        self.generation = 0
        """number of processes so far; a new process has lost the state of the one before"""
        self.lacking: list[str] = []
        """a line for each protection that its sandbox lacks on this host"""

    @property
    def pid(self) -> int | None:
        """Process id of the living child, None when there is none."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def log_lacking(self, what: str) -> None:
        """Log, once, the protections that the sandbox of the child that does `what` lacks on this host."""
        while self.lacking and self.generation == 1:
            _log.warning("the sandbox of the child that %s is not whole: %s", what, self.lacking.pop(0))

    def ensure(self) -> int:
        """Start the process if none lives, or afresh when it is due; return its generation."""
        if self.pid is not None and self._recycle_calls and self._calls >= self._recycle_calls:
            self.stop()
        if self.pid is None:
            self._start()
        return self.generation

    def call(self, method: str, timeout_s: float, **payload: Any) -> Any:
        """Run `method` in the child and return its answer.

        Raises CallFailed (or the very FractuneError that the child raised), ChildTimeout, ChildUnwanted or ChildDied;
        after the last three the next call starts a new process.
        """
        self.ensure()
        if self._link is None:
            raise errors.ChildDied("the child has no connection")
        self._calls += 1
        try:
            self._limit_cpu(timeout_s)
            self._link.send_bytes(encode({"method": method, "value": payload}))
            message = self._message(self._link, timeout_s)
            answer = None if message is None else _parsed(message, "value")
        except (EOFError, OSError) as error:
            raise self._death() from error
        except BaseException:  # the answer that the child still owes must not be taken for that of the next call
            self.kill()
            raise
        if answer is None:
            raise errors.ChildTimeout(f"no answer within {timeout_s:g} s", released=self.kill())
        if "error" in answer:
            failure = errors.error_of(answer, trusted=self._sandbox is None or method in self._sandbox.early_methods)
            if isinstance(failure, errors.ChildDied):
                self.stop()  # it is about to end: no other call may find it
            raise failure
        return answer["value"]

    @contextlib.contextmanager
    def preemptible_by(self, hold: Preemption) -> Iterator[None]:
        """Within the block, the child is stopped (SIGSTOP) in mid-call whenever `hold` is wanted. It continues once
        `hold` has its cores again. The time in between does not count as the call's.
        """
        self._preemption = hold
        try:
            yield
        finally:
            self._preemption = None

    @contextlib.contextmanager
    def while_wanted(self, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Within the block, a call raises ChildUnwanted soon after `is_wanted` is false. It is called every second."""
        self._is_wanted = is_wanted
        try:
            yield
        finally:
            self._is_wanted = None

    def _limit_cpu(self, timeout_s: float) -> None:
        if self._sandbox is not None and self._sandbox.limits_cpu and self._process is not None:
            self._cpu_s = max(1, int(_CPU_PART * timeout_s))
            with contextlib.suppress(OSError):  # it has ended, and the call finds out
                self._cpu_end_s = limits.limit_cpu(self._process.pid, self._cpu_s)

    def _message(self, link: Connection, timeout_s: float) -> bytes | None:
        """The next message; None when it is not complete in time."""
        received = bytearray()
        hold = self._preemption
        every_s = _LOOK_AFTER_IT_EVERY_S if hold is None else _LOOK_EVERY_S
        now = time.monotonic()
        deadline, looked = now + timeout_s, now
        while (left_s := deadline - now) > 0:
            if link.poll(min(every_s, left_s)):
                received += _piece(link)
                if (message := whole_message(received)) is not None:
                    return message
            if hold is not None and hold.is_wanted():
                deadline += self._preempted_s(hold)
            now = time.monotonic()
            if now >= looked + _LOOK_AFTER_IT_EVERY_S:
                self._look_after_it()
                looked = now
        return None

    def _look_after_it(self) -> None:
        """Kill the child, and raise ChildUnwanted or LimitMet, when there is a reason."""
        if self._is_wanted is not None and not self._is_wanted():
            self.kill()
            raise errors.ChildUnwanted("its job was cancelled; the work was ended")
        if self._ignores_cpu_limit():
            self.kill()
            raise errors.cpu_met(self._cpu_s)

    def _ignores_cpu_limit(self) -> bool:
        pid = self.pid
        if pid is None or not self._cpu_end_s:
            return False
        try:
            return limits.spent_s(pid) >= self._cpu_end_s + _IGNORED_FOR_S
        except OSError:  # it has ended
            return False

    def _preempted_s(self, hold: Preemption) -> float:
        """Stop the child until the hold is back; return the seconds in between."""
        start = time.monotonic()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGSTOP)
                await_standstill(self._process.pid)
            hold.yield_cores()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGCONT)
        return time.monotonic() - start

    def kill(self) -> bool:
        """Kill the process and everything it started. False = the device may be in disorder."""
        released = self.interrupt()
        if self._process is not None:
            self._process.wait()
        self._drop_link()
        return released

    def interrupt(self) -> bool:
        """Kill the process and everything it started; a call that is under way in another thread raises ChildDied."""
        released = self._release()
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        return released

    def _release(self) -> bool:
        pid = self.pid
        try:
            return pid is None or self._before_kill(pid)
        except FractuneError as error:  # the kill must come all the same
            _log.warning("child %s is killed without having been released: %s", pid, error)
            return False

    def stop(self) -> None:
        """Close the connection. The child then ends by itself; else it is killed."""
        self._drop_link()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_TIMEOUT_S)
            self.kill()

    def _start(self) -> None:
        """Start a process; while its share is not ready, start another one."""
        deadline = time.monotonic() + _NOT_READY_TIMEOUT_S
        while True:
            try:
                return self._start_one()
            except ShareNotReady as error:
                if time.monotonic() >= deadline:
                    raise
                _log.info("the child is started again: %s", error)
            time.sleep(_NOT_READY_EVERY_S)

    def _start_one(self) -> None:
        self.kill()
        for folder in self._sandbox.writable if self._sandbox else ():
            empty_dir(Path(folder))
        ours, theirs = socket.socketpair()
        with theirs, staying_on(self._start_as.cores):
            self._process = subprocess.Popen(
                [
                    *self._start_as.launcher,
                    sys.executable,
                    # What a sandbox may read is where Python looks for modules: not in the folder that we are in.
                    *(("-P",) if self._sandbox else ()),
                    "-m",
                    "fractune_workers.children",
                    str(theirs.fileno()),
                    str(_lifeline()),
                    str(os.getpid()),
                    *self._args,
                ],
                env={**(plain_environment if self._sandbox else without_secrets)(os.environ), **self._env},
                pass_fds=[theirs.fileno(), _lifeline()],
                stdin=subprocess.DEVNULL,
                stdout=_error_output(),
                start_new_session=True,
            )
        if self._sandbox is None and self._memory_bytes is not None:
            with contextlib.suppress(OSError):  # it has ended, and is found out below
                limits.limit_memory(self._process.pid, self._memory_bytes)
        self._inherited_bytes = limits.own_peak_bytes()
        self._link = Connection(ours.detach())
        self._calls = 0
        self._cpu_end_s = 0
        self.generation += 1
        try:
            # It may be stopped only once it dies with us: stopped before that, it would stay for ever when we die.
            if not self._link.poll(_START_TIMEOUT_S):
                raise self._not_ready()
            self._link.recv_bytes()
            self._link.send_bytes(encode({"value": self._sandbox and self._sandbox.to_json()}))
            message = self._message(self._link, _START_TIMEOUT_S)
            if message is None:
                raise self._not_ready()
            ready = _parsed(message, "lacking")
        except (EOFError, OSError) as error:
            raise self._death() from error
        if "error" in ready:
            self.kill()
            raise errors.error_of(ready, trusted=True)
        self.lacking = ready["lacking"]

    def _not_ready(self) -> errors.ChildTimeout:
        return errors.ChildTimeout(f"the child was not ready within {_START_TIMEOUT_S:g} s", released=self.kill())

    def _death(self) -> errors.ChildDied:
        """The error that says how the process ended."""
        self._drop_link()
        if self._process is None:
            return errors.ChildDied("the child was never started")
        peak_bytes = peak_bytes_at_end(self._process)
        # The kernel lets a process begin with the peak of the one that starts it.
        if peak_bytes <= self._inherited_bytes + _INEXACT_BYTES:
            peak_bytes = 0
        try:
            code = self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return errors.ChildDied("the child closed its connection and had to be killed")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # what it has started goes with it
        number = max(-code, 0)
        if self._sandbox is not None and limits.is_death_by_cpu(number):
            return errors.cpu_met(self._cpu_s)
        if self._memory_bytes is not None and limits.is_death_by_memory(number, peak_bytes, self._memory_bytes):
            return errors.memory_met(self._memory_bytes)
        if number:
            kind = errors.ChildKilled if errors.is_kill(number) else errors.ChildDied
            return kind(f"the child was killed by {signal.Signals(number).name}")
        return errors.ChildDied(f"the child ended with exit code {code}")

    def _drop_link(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None


def _error_output() -> int:
    """Standard error. A notebook replaces Python's by one without a file."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        return 2


@functools.cache
def _lifeline() -> int:
    """The end that children hold of a pipe. Only this process holds the other end, until it dies."""
    return os.pipe()[0]


def _piece(link: Connection) -> bytes:
    piece = os.read(link.fileno(), _PIECE_BYTES)
    if not piece:
        raise EOFError
    return piece


def _parsed(message: bytes, wanted: str) -> dict[str, Any]:
    """`wanted`, or an `error` and its `message`. Raises OSError for what a child of ours does not say."""
    try:
        answer = decode(message)
    except ValueError as error:
        raise OSError(errno.EBADMSG, f"the child's message is malformed: {error}") from error
    if not (wanted in answer or {"error", "message"} <= answer.keys()):
        raise OSError(errno.EBADMSG, "the child's message is malformed")
    return answer
