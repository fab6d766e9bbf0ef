"""Python processes that start with everything imported: forks of one process that is kept for them.

A new interpreter spends most of a second on the imports of a server, and half of one on those of a command. `python -m
tests.support.processes.ready_made` is the process that is kept: for each request on its standard input, a socket, it
forks a child that calls `main()` of a module.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from fractune.cli.ending import leave
from tests.support.paths import REPOSITORY
from tests.support.processes.networks import OWN_NETWORK, enter_network

_IMPORTED = (
    "tests.support.processes.fleet_simulated",
    "tests.support.processes.server_process",
    "tests.support.processes.worker_processes",
    "alembic.command",
    "fractune.cli.commands.models.tune",
    "fractune.cli.commands.jobs",
)
_MOST_BYTES = 1 << 20
_STDIN, _STDOUT, _STDERR = 0, 1, 2


class ReadyMade:
    """As a `subprocess.Popen` of `python -m MODULE ARGUMENT...`, whose parent is another process than this one."""

    def __init__(
        self,
        module: str,
        *args: str,
        stdout: IO[Any] | None = None,
        stderr: IO[Any] | None = None,
        env: Mapping[str, str] = os.environ,
        cwd: Path | None = None,
    ) -> None:
        """What is not given is that of this process. The network is that of this thread."""
        place = {"cwd": str(cwd or Path.cwd()), "cores": sorted(os.sched_getaffinity(0))}
        request = json.dumps({"argv": [module, *args], "env": dict(env), **place})
        self._news, told = os.pipe()
        outputs = [_STDOUT if stdout is None else stdout.fileno(), _STDERR if stderr is None else stderr.fileno()]
        with OWN_NETWORK.open("rb") as network:
            socket.send_fds(_keeper(), [request.encode()], [told, *outputs, network.fileno()])
        os.close(told)
        self.pid = self._next_number()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, negative for a signal. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(self._next_number())
            os.close(self._news)
        return self.returncode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # its parent has just waited for it
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def _next_number(self) -> int:
        return int.from_bytes(os.read(self._news, 4))


@functools.cache
def _keeper() -> socket.socket:
    """A connection to the process that is kept, which ends with it."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        process = subprocess.Popen([sys.executable, "-m", __name__], stdin=its.fileno(), cwd=REPOSITORY)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> dict[str, Any]:
    """Returns in each child, with its request."""
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _MOST_BYTES, 4)
        if not message:
            sys.exit()
        if os.fork() == 0:
            if _is_child(*fds):
                request: dict[str, Any] = json.loads(message)
                return request
            os._exit(0)
        for fd in fds:
            os.close(fd)


def _is_child(told: int, stdout: int, stderr: int, network: int) -> bool:
    """Fork once more: the parent waits for the child, and tells its pid, and how it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        for fd, place in ((os.open(os.devnull, os.O_RDONLY), _STDIN), (stdout, _STDOUT), (stderr, _STDERR)):
            os.dup2(fd, place)
            os.close(fd)
        enter_network(network)
        os.close(network)
        os.close(told)
        return True
    for fd in (_STDIN, stdout, stderr, network):
        os.close(fd)
    os.write(told, child.to_bytes(4))
    os.write(told, os.waitpid(child, 0)[1].to_bytes(4))
    return False


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the children
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no zombies
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    requests = socket.socket(fileno=_STDIN)
    request = _serve(requests)
    requests.detach()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    os.sched_setaffinity(0, request["cores"])
    sys.argv = request["argv"]
    leave(importlib.import_module(sys.argv[0]).main() or 0)


if __name__ == "__main__":
    main()
