"""A transcript of an MPS daemon: with two clients, while one's kernel spins and is ended, and after a fault.

Run it in a separate process: python -m benchmarks.gpu.mps_transcript --out FILE [--share mps:25]. The part `look` of
the suite runs it.
"""

from __future__ import annotations

import argparse
import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from fractune_core.errors import FractuneError
from fractune_core.shares import Share
from fractune_workers.child import Child
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.mps import UnderMps
from fractune_workers.gpu.mps_control import MpsControl, MpsFailed

_SPIN_S = 1.0
"""for how long a kernel spins before its client is ended"""
_CALL_TIMEOUT_S = 30.0
_LOOK_EVERY_S = 0.2
_LOOK_FOR_S = 15.0
_STAYS_S = 3.0
"""for how long the neighbour of a fault stays: the server can be active only after it has left"""


class Transcript:
    """Questions and answers, each with its time, in a file at once."""

    def __init__(self, control: MpsControl, path: Path) -> None:
        self._control = control
        self._path = path
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def ask(self, command: str) -> str:
        sent_at = time.monotonic()
        try:
            answer = self._control.ask(command)
        except MpsFailed as error:
            answer = f"({error})"
        self.note(f"> {command}  ({time.monotonic() - sent_at:.2f} s)\n{answer}")
        return answer

    def note(self, text: str) -> None:
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(f"[{time.monotonic() - self._began:7.2f}] {text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="append the transcript to this file")
    parser.add_argument("--share", default="mps:25")
    args = parser.parse_args()
    confinement = confinement_for(Share.parse(args.share))
    if not isinstance(confinement, UnderMps):
        raise SystemExit(f"mps_transcript: --share is {args.share}, which is not a share of MPS; ask for mps:25")
    transcribe(confinement, args.out)


def transcribe(confinement: UnderMps, path: Path) -> None:
    log = Transcript(confinement.daemon.control, path)
    environment = confinement.environment()
    try:
        with _clients(confinement, environment) as (first, _):
            server = _look(log)
            _end_spinning(log, first, server)
        with _clients(confinement, environment) as (first, second):
            _fault(log, first, second, _look(log))
    finally:
        confinement.leave()


@contextlib.contextmanager
def _clients(confinement: UnderMps, environment: dict[str, str]) -> Iterator[tuple[Child, Child]]:
    """Two of them, each with its share proved."""
    share = str(confinement.share)
    first, second = (
        Child("benchmarks.gpu.mps_client", [share], environment, before_kill=confinement.before_kill) for _ in range(2)
    )
    try:
        for client in (first, second):
            client.call("granted", _CALL_TIMEOUT_S)
        yield first, second
    finally:
        first.stop()
        second.stop()


def _look(log: Transcript) -> str:
    """Everything that the daemon can report; its server."""
    server = log.ask("get_server_list").split()[0]
    for command in ("ps", f"get_server_status {server}", f"get_client_list {server}", "get_device_client_list"):
        log.ask(command)
    return server


def _end_spinning(log: Transcript, client: Child, server: str) -> None:
    """The thread that owns the client waits for its kernel, another one ends it."""

    def end() -> None:
        log.ask(f"terminate_client {server} {client.pid}")
        _watch(log, server, 2.0)

    timer = threading.Timer(_SPIN_S, end)
    timer.start()
    _call(log, client, "spin")
    timer.join()
    log.ask("ps")


def _fault(log: Transcript, guilty: Child, neighbour: Child, server: str) -> None:
    _call(log, guilty, "fault")
    log.ask("ps")
    guilty.stop()
    _watch(log, server, _STAYS_S)
    _call(log, neighbour, "granted")
    neighbour.stop()
    _watch(log, server, _LOOK_FOR_S)


def _call(log: Transcript, client: Child, method: str) -> None:
    try:
        log.note(f"client {client.pid}, {method}: {client.call(method, _CALL_TIMEOUT_S)}")
    except FractuneError as error:
        log.note(f"client, {method}: {type(error).__name__}: {error}")


def _watch(log: Transcript, server: str, seconds: float) -> None:
    """The server's status until it is active, or for so long."""
    deadline = time.monotonic() + seconds
    while "ACTIVE" not in log.ask(f"get_server_status {server}") and time.monotonic() < deadline:
        time.sleep(_LOOK_EVERY_S)


if __name__ == "__main__":
    main()
