"""The guard of a device on which the fault of one client affects the others.

A measurement session runs everything that touches its child through `Guard.run`, which follows the rules of
`fractune_workers.faults.fault_state`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn, TypeVar

from fractune_core.errors import FractuneError, ShareUnavailable
from fractune_core.records import Status
from fractune_workers.child import Child
from fractune_workers.child.errors import ChildDied, ChildTimeout, retry_if_killed
from fractune_workers.confinement.base import Confinement
from fractune_workers.faults.fault_state import ArtifactFailure, Ending, FaultState, FaultStateFile, Step

_LOOK_EVERY_S = 0.02
_WATCH_EVERY_S = 0.1
_REOPEN_TIMEOUT_S = 120.0
"""How long a device may take, after a fault, until every client has left and it is active again"""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Quarantined(FractuneError):
    """An artifact took the whole device down while it ran alone, now or before; `status` is its record's."""

    def __init__(self, message: str, status: Status = Status.CRASHED) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Preparation:
    """The preparation of a child before something can run in it."""

    is_done: Callable[[], bool]
    """of the present child; starts none"""
    do: Callable[[], None]


def guard_for(child: Child, confinement: Confinement, lock_dir: Path) -> Guard | NoGuard:
    """The guard of a child under a share whose faults spread to other clients of the device. `lock_dir` is the folder
    that all measurers of this host share.
    """
    identity = confinement.fault_domain
    return NoGuard(child) if identity is None else Guard(child, confinement, FaultStateFile(lock_dir, identity))


class NoGuard:
    """In place of a guard where a fault stays with its process."""

    epochs = 0

    def __init__(self, child: Child) -> None:
        self._child = child

    def get_ready(self, preparation: Preparation) -> None:
        retry_if_killed(preparation.do)

    def run(
        self, _artifacts: Iterable[str], preparation: Preparation, run: Callable[[], _T], *, alone: bool = False
    ) -> _T:
        del alone

        def prepared() -> _T:
            preparation.do()
            return run()

        return retry_if_killed(prepared)

    def end_process(self) -> None:
        self._child.stop()

    def stop(self) -> None:
        self._child.stop()


class Guard:
    """A member of a shared device, and its process there. Belongs to one thread, that of the child.

    A second thread watches the fault state, because an idle member has to leave a failed device too. The two start and
    end the process on the device under one lock.
    """

    def __init__(self, child: Child, confinement: Confinement, device: FaultStateFile) -> None:
        self._child = child
        self._confinement = confinement
        self._device = device
        self._membership = device.join()
        self._member = self._membership.name
        self.epochs = 0
        """fault epochs that this member has begun: how often it opened the device again after a fault"""
        self._process_lock = threading.Lock()
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="fault-state", daemon=True)
        self._watcher.start()

    def get_ready(self, preparation: Preparation) -> None:
        """Prepare the child, started where none lives. Raises ShareUnavailable when it cannot be.

        First beside others; when that fails, once more while nothing else runs: then no co-runner is the reason.
        """
        alone = False
        while not preparation.is_done():
            try:
                self._attempt((), preparation.do, alone=alone)
            except _Void as void:
                alone = alone or void.failed
            except (ChildDied, ChildTimeout) as error:
                raise ShareUnavailable(
                    f"a process on device {self._device.identity} does not get ready, though the device is active and "
                    f"nothing else runs on it: {error}; see this worker's log, and start it again"
                ) from error

    def run(
        self, artifacts: Iterable[str], preparation: Preparation, run: Callable[[], _T], *, alone: bool = False
    ) -> _T:
        """The result of `run` in a prepared child; `alone`: while nothing else runs on the device.

        `artifacts` are the names of what is run: the same name for the same bytes, wherever they run. `run` is called
        again when it was void. An error that it raises is the artifacts' own, and Quarantined is raised for an
        artifact that took the device down.
        """
        names = tuple(artifacts)
        while True:
            self.get_ready(preparation)
            try:
                return self._attempt(names, run, alone=alone, preparation=preparation)
            except _Void as void:
                alone = alone or void.failed

    def end_process(self) -> None:
        """End the child. The next call starts another one."""
        with self._process_lock:
            self._vacate()

    def stop(self) -> None:
        """End the child, and leave the device."""
        self._ended.set()
        self._watcher.join()
        with self._process_lock:
            self._vacate()
        self._membership.end()

    def _attempt(
        self, artifacts: tuple[str, ...], run: Callable[[], _T], *, alone: bool, preparation: Preparation | None = None
    ) -> _T:
        """One attempt. Raises _Void when it came to nothing without blame; the error when that is its own."""
        with self._abandoned_when_stopped():
            is_alone = self._begin(artifacts, alone=alone)
            if preparation is not None and not preparation.is_done():
                self._withdraw()  # the child had to leave while this waited
                raise _Void
            if is_alone and not self._is_active():
                self._give_up("the device was not active")
                raise _Void
            try:
                answer = run()
                if is_alone and not self._is_active():
                    raise ChildDied("it ran to its end, and left the device unusable")
            except FractuneError as error:
                self._end_failed(artifacts, error)
            if self._finish() is not Ending.VALID:
                raise _Void
            return answer

    def _begin(self, artifacts: tuple[str, ...], *, alone: bool) -> bool:
        """Wait until the attempt may begin; whether it runs alone."""
        timer = _Timer(_REOPEN_TIMEOUT_S)
        while True:
            step = self._device.change(lambda state: state.begin(self._member, artifacts, alone=alone))
            if step in {Step.GO, Step.GO_ALONE}:
                return step is Step.GO_ALONE
            if step is Step.REFUSED:
                raise _quarantined(self._device.look().verdict_of(artifacts))
            if step is Step.LEAVE:
                with self._process_lock:
                    self._vacate()
                continue
            if step is Step.REOPEN and self._reopened():
                continue
            if step is Step.WAIT:
                timer.restart()
            elif timer.is_over:
                raise ShareUnavailable(self._refusal(self._device.look()))
            self._ended.wait(_LOOK_EVERY_S)

    def _reopened(self) -> bool:
        number = self._device.look().number
        if not self._is_active():
            self._confinement.restart_service()
            return False
        if self._device.change(_opened(number)):
            self.epochs += 1
        return True

    def _finish(self) -> Ending:
        return self._device.change(lambda state: state.finish(self._member))

    def _withdraw(self) -> None:
        self._device.change(lambda state: (state.withdraw(self._member), None))

    def _end_failed(self, artifacts: tuple[str, ...], error: FractuneError) -> NoReturn:
        """End the attempt, and the process too: it keeps errors. Raises what the failure means."""
        status = Status.RUN_TIMEOUT if isinstance(error, ChildTimeout) else Status.CRASHED
        verdict = ArtifactFailure(status.value, str(error))
        spreads = _may_spread(error) or not self._is_active()
        with self._process_lock:
            ending = self._device.change(lambda state: state.fail(self._member, verdict, spreads=spreads))
            self._vacate()
        level = logging.INFO if artifacts else logging.WARNING  # a process that does not get ready, or proves no share
        values = len(artifacts), ending, error, " (spreads)" if spreads else ""
        _log.log(level, "attempt at %d artifact(s): %s: %s%s", *values)
        if ending is not Ending.OWN_FAULT:
            raise _Void(failed=ending is Ending.BESIDE_OTHERS) from error
        if spreads and len(artifacts) == 1:
            raise _quarantined(verdict) from error
        raise error

    def _is_active(self) -> bool:
        try:
            return self._confinement.is_active()
        except FractuneError as error:
            _log.warning("device %s does not answer: %s", self._device.identity, error)
            return False

    def _give_up(self, cause: str) -> None:
        """Leave in the middle of an attempt."""
        with self._process_lock:
            self._device.change(lambda state: (state.abandon(self._member, cause), None))
            self._child.kill()
            self._vacate()

    def _vacate(self) -> None:
        """End the process, then say so; the caller holds the lock."""
        self._child.stop()
        self._device.change(lambda state: (state.leave(self._member), None))

    @contextlib.contextmanager
    def _abandoned_when_stopped(self) -> Iterator[None]:
        """No attempt stays in the state, even when a worker is stopped in the middle."""
        try:
            yield
        except FractuneError:
            raise
        except BaseException:
            self._give_up("a measurer was stopped in the middle of a measurement")
            raise

    def _watch(self) -> None:
        while not self._ended.wait(_WATCH_EVERY_S):
            try:
                if self._device.look().must_leave(self._member):
                    self._leave_failed()
            except FractuneError:
                _log.exception("the state of device %s cannot be followed", self._device.identity)

    def _leave_failed(self) -> None:
        """The state has failed: an attempt in progress is void, so end it; the other thread notices, and leaves."""
        with self._process_lock:
            state = self._device.look()  # once more: the other thread may have left, and come back, since
            if not state.must_leave(self._member):
                return
            if self._member in state.attempts:
                self._child.interrupt()
            else:
                self._vacate()

    def _refusal(self, state: FaultState) -> str:
        still = f"{len(state.clients)} measurer(s) have not left it" if state.clients else "it is not active again"
        return (
            f"device {self._device.identity} has been down for {_REOPEN_TIMEOUT_S:g} s after a fault "
            f"({state.failure}): {still}; restart what serves the device, then this worker"
        )


class _Void(FractuneError):
    """An attempt came to nothing without blame; `failed`: it failed beside others, by itself or by them."""

    def __init__(self, message: str = "void", *, failed: bool = False) -> None:
        super().__init__(message)
        self.failed = failed


def _opened(number: int) -> Callable[[FaultState], tuple[FaultState, bool]]:
    """The change that opens the state after `number`, and whether it was this one that did."""

    def change(state: FaultState) -> tuple[FaultState, bool]:
        opened = state.reopen(number)
        return opened, opened.number != state.number

    return change


def _may_spread(error: FractuneError) -> bool:
    """A process that ended by itself, or was killed with its work on the device, may have affected others."""
    return isinstance(error, ChildDied) or (isinstance(error, ChildTimeout) and not error.released)


class _Timer:
    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self.restart()

    def restart(self) -> None:
        self._since = time.monotonic()

    @property
    def is_over(self) -> bool:
        return time.monotonic() - self._since > self._limit_s


def _quarantined(verdict: ArtifactFailure | None) -> Quarantined:
    if verdict is None:
        return Quarantined("it is known to take the device down")
    return Quarantined(f"{verdict.cause}; it was alone on the device", Status(verdict.status))
