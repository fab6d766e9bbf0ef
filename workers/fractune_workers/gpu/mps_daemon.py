"""An MPS control daemon. A running daemon is joined and never changed. Our own is started for one GPU, used by all of
this user's workers on it, and ended by the last of them.

One daemon for each GPU: a fault stops every client of a server, and a server of several GPUs carries it to them all.
"""

import contextlib
import logging
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from fractune_core import cuda
from fractune_core.errors import ShareUnavailable, StateUnusable
from fractune_core.host.private_folders import make_private
from fractune_workers.gpu import mps_control
from fractune_workers.locks.flock import FolderLocks, Held

# Static SM partitions of a daemon of our own: each belongs to one worker at a time.
#
# A daemon makes no partition once its GPU has clients. So the first worker makes as many of its size as fit, and
# later ones take one of these.

_MOST_PARTITIONS = 64
"""more than any GPU has chunks"""


class PartitionPool:
    """The partitions of one GPU. Every call is made behind the door of `locks`."""

    def __init__(self, gpu_uuid: str, control: mps_control.MpsControl, locks: FolderLocks) -> None:
        self._gpu_uuid = gpu_uuid
        self._control = control
        self._locks = locks

    def take(self, chunks: int) -> tuple[str, Held]:
        """The full id of a partition of `chunks` chunks, and the lock that makes it this worker's.

        Raises ShareUnavailable when none is free and none can be made, MpsFailed.
        """
        return self._unused(chunks) or self._made(chunks)

    def _unused(self, chunks: int) -> tuple[str, Held] | None:
        for partition in self._control.partitions():
            # A partition in use may have a dead worker, but it still has a client of that worker.
            if partition.chunks == chunks and not partition.in_use:
                held = self._locks.take(self._full_id(partition))
                if held is not None:
                    return self._full_id(partition), held
        return None

    def _made(self, chunks: int) -> tuple[str, Held]:
        made = self._first(chunks)
        with contextlib.suppress(mps_control.PartitionRefused):
            for _ in range(_MOST_PARTITIONS):
                self._control.add_partition(self._gpu_uuid, chunks)
        held = self._locks.take(made)
        if held is None:
            raise mps_control.MpsFailed(
                f"MPS: the new partition {made} belongs to another worker already; restart the daemon"
            )
        return made, held

    def _first(self, chunks: int) -> str:
        try:
            return self._control.add_partition(self._gpu_uuid, chunks)
        except mps_control.PartitionRefused as error:
            if not self._control.processes() and self._remove_unused():
                return self._first(chunks)
            raise ShareUnavailable(
                f"share 'mps-sm:{chunks}' cannot be had now: {error}; partitions are made while the GPU has no "
                "clients: end the workers on this GPU, and start the one with the largest share first"
            ) from error

    def _remove_unused(self) -> bool:
        """Remove the partitions that no worker has; whether there was one."""
        removed = False
        for partition in self._control.partitions():
            full_id = self._full_id(partition)
            if not partition.in_use and self._locks.is_free(full_id):
                self._control.remove_partition(full_id)
                removed = True
        return removed

    def _full_id(self, partition: mps_control.Partition) -> str:
        return f"{self._gpu_uuid}/{partition.name}"


_ACTIVE_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 20.0
_QUIT_TIMEOUT_S = 20.0
_LOOK_EVERY_S = 0.1
_LONGEST_SOCKET_PATH = 107
"""bytes of a Unix socket's path on Linux; beyond it the daemon starts, and cannot be reached"""

_log = logging.getLogger(__name__)


class MpsDaemon:
    """The daemon behind `pipe_dir`, started by others."""

    def __init__(self, pipe_dir: Path, program: str = cuda.PROGRAM) -> None:
        self.pipe_dir = pipe_dir
        self.control = mps_control.MpsControl(pipe_dir, program)

    def probe(self) -> None:
        """Check that the daemon can be had; changes nothing. Raises MpsFailed."""
        self.control.servers()

    def hold(self) -> None:
        """Have the daemon run from now until `release`. Raises ShareUnavailable."""
        self.probe()

    def release(self) -> None:
        """Give back what `hold` and `take_partition` took."""

    @property
    def is_kept(self) -> bool:
        """Whether it also runs without workers, until `stop_keeping`."""
        return True

    def keep(self) -> None:
        """Have the daemon run from now until `stop_keeping`. Raises ShareUnavailable."""
        self._refuse_change()

    def stop_keeping(self) -> None:
        """End the daemon, or leave its end to its last worker. Raises ShareUnavailable while it has clients."""
        self._refuse_change()

    def _refuse_change(self) -> NoReturn:
        raise ShareUnavailable(
            f"{cuda.MPS_PIPE_DIRECTORY} names the daemon at {self.pipe_dir}, which fractune neither starts nor ends; "
            "unset the variable for a daemon of fractune's own"
        )

    def take_partition(self, chunks: int) -> str:
        """The full id of a static partition of `chunks` chunks: here the one that the environment names.

        Raises ShareUnavailable when it names none, or one of another size.
        """
        named = os.environ.get(cuda.MPS_PARTITION, "")
        partition = next((partition for partition in self.control.partitions() if partition.is_called(named)), None)
        if partition is None:
            raise ShareUnavailable(
                f"{cuda.MPS_PARTITION}='{named}' does not name a partition of the MPS daemon at {self.pipe_dir}; set "
                f"it to one that `echo lspart | {cuda.PROGRAM}` lists, or unset {cuda.MPS_PIPE_DIRECTORY} to have a "
                "daemon started"
            )
        if partition.chunks != chunks:
            raise ShareUnavailable(
                f"{cuda.MPS_PARTITION} names a partition of {partition.chunks} chunks, and mps-sm:{chunks} was asked "
                f"for; ask for mps-sm:{partition.chunks}, or name another partition"
            )
        return named

    def is_running(self) -> bool:
        """Whether the daemon answers. Raises MpsFailed when it answers wrongly, or too late."""
        try:
            self.control.servers()
        except mps_control.MpsUnreachable:
            return False
        return True

    def clients(self) -> list[int]:
        """Process ids of its clients, in the daemon's PID namespace; none when there is no daemon."""
        return [client.pid for client in self.control.processes()] if self.is_running() else []

    def is_active(self) -> bool:
        """Whether a new client would be accepted: every server is ACTIVE, or none has been started yet."""
        return all(
            self.control.server_state(server) is mps_control.ServerState.ACTIVE for server in self.control.servers()
        )

    def wait_until_active(self, timeout_s: float = _ACTIVE_TIMEOUT_S) -> None:
        """Return once a new client will be accepted: after a fault, when every client of that time has left.

        Raises MpsFailed after `timeout_s`.
        """
        if not _within(timeout_s, self.is_active):
            servers = self.control.servers()
            states = ", ".join(f"server {server} is {self.control.server_state(server)}" for server in servers)
            left = [str(client) for server in servers for client in self.control.clients(server)]
            raise mps_control.MpsFailed(
                f"MPS: {states or 'no server'} after {timeout_s:g} s; a fault is over when every client of its time "
                f"has left, and there are still: {', '.join(left) or 'none'}"
            )

    def restart_service(self) -> None:
        """Start the daemon again if it has died and is ours; called once every client has left. Raises MpsFailed."""

    def end_client(self, pid: int) -> bool:
        """End the contexts of the client process `pid`, so that it can be killed: killing a busy client leaves its
        server in an undefined state. False when `pid` is no client, or none any more; it can be killed at once.

        Raises MpsFailed when it could not be ended: after a kill the server has to be taken for faulted.
        """
        # The same number in another PID namespace is another process.
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        ours = {client for client in self.control.processes() if client.namespace == namespace}
        found = {client for client in ours if client.pid == pid}
        for client in found:
            # A server that has faulted has ended its clients' work; it may take long to refuse to end it once more.
            if self.control.server_state(client.server) not in {
                mps_control.ServerState.FAULT,
                mps_control.ServerState.GONE,
            }:
                self.control.terminate_client(client.server, client.pid)
        strange = [client.pid for client in ours if not Path(f"/proc/{client.pid}").exists()]
        if strange and not found:
            raise mps_control.MpsFailed(
                f"MPS: client {pid} cannot be ended: the daemon at {self.pipe_dir} knows processes by other numbers "
                f"({strange[0]} is none here); run the worker in the daemon's PID namespace (--pid=host)"
            )
        return bool(found)


class OwnMpsDaemon(MpsDaemon):
    """The daemon of one GPU: started by the first worker that holds it, ended by the last unless it is kept.

    `folder` has the daemon's pipes and logs, and the locks of its holders. A daemon that killed workers left
    behind is taken over by the next worker.
    """

    def __init__(
        self, gpu_uuid: str, *, static: bool = False, folder: Path | None = None, program: str = cuda.PROGRAM
    ) -> None:
        self._folder = folder or cuda.daemon_folder(gpu_uuid)
        super().__init__(cuda.pipes_in(self._folder), program)
        self._gpu_uuid = gpu_uuid
        self._static = static
        self._program = program
        self._locks = FolderLocks(self._folder)
        self._pool = PartitionPool(gpu_uuid, self.control, self._locks)
        self._user: Held | None = None
        self._partition: tuple[str, Held] | None = None

    def probe(self) -> None:
        if shutil.which(self._program) is None:
            raise mps_control.MpsFailed(f"MPS: the program {self._program} is not installed; install {cuda.PACKAGES}")
        longest = len(os.fsencode(self.pipe_dir / "control_privileged"))
        if longest > _LONGEST_SOCKET_PATH:
            raise mps_control.MpsFailed(
                f"MPS: a socket in {self.pipe_dir} would have a path of {longest} bytes, and {_LONGEST_SOCKET_PATH} "
                "are possible; set TMPDIR to a shorter folder"
            )

    def hold(self) -> None:
        if self._user is not None:
            return
        self.probe()
        self._own_folder()
        with self._locks.changing():
            if self.is_kept and self._static:
                raise ShareUnavailable(
                    f"the MPS daemon of {self._gpu_uuid} is kept for mps shares (`fractune mps start`), and cannot "
                    "serve mps-sm shares; end it: `fractune mps stop`"
                )
            if self.is_running() and self._is_static() != self._static:
                self._end_other_mode()
            if not self.is_running():
                self._start()
            self._user = self._locks.share("users")

    def release(self) -> None:
        if self._user is None:
            return
        with self._locks.changing():
            if self._partition is not None:
                self._partition[1].close()
            self._user.close()
            self._user = self._partition = None
            if self._locks.is_free("users") and not self.is_kept:
                self._end()

    @property
    def is_kept(self) -> bool:
        return cuda.kept_mark(self._folder).exists()

    def keep(self) -> None:
        self.hold()
        cuda.kept_mark(self._folder).touch()
        self.release()

    def stop_keeping(self) -> None:
        if not self._folder.exists():
            return
        self._own_folder()
        with self._locks.changing():
            clients = self.clients()
            if clients:
                raise ShareUnavailable(
                    f"the MPS daemon of {self._gpu_uuid} has clients (process {', '.join(map(str, clients))}); end "
                    "them first"
                )
            cuda.kept_mark(self._folder).unlink(missing_ok=True)
            if self._locks.is_free("users"):
                self._end()

    def restart_service(self) -> None:
        with self._locks.changing():
            if self._user is None or self.is_running():
                return
            if self._static:
                raise mps_control.MpsFailed(
                    f"MPS: the control daemon of {self._gpu_uuid} has died, and its partitions with it; look into "
                    f"{self._logs}, and start the workers of mps-sm shares again"
                )
            _log.warning("the MPS control daemon at %s has died and is started again", self.pipe_dir)
            self._start()

    def take_partition(self, chunks: int) -> str:
        """A partition that no other worker has. Raises ShareUnavailable."""
        self.hold()
        if self._partition is None:
            with self._locks.changing():
                self._partition = self._pool.take(chunks)
        return self._partition[0]

    def _own_folder(self) -> None:
        try:
            make_private(self._folder)
        except StateUnusable as error:
            raise mps_control.MpsFailed(f"MPS: {error}") from error

    def _is_static(self) -> bool:
        return self._mode_file.exists()

    @property
    def _logs(self) -> Path:
        return self._folder / "log"

    @property
    def _mode_file(self) -> Path:
        """Exists while the daemon is one that was started for static partitions."""
        return self._folder / "static"

    def _end_other_mode(self) -> None:
        """A daemon has one mode for its life: end an unused one."""
        if not self._locks.is_free("users"):
            serves, wanted = ("mps-sm", "mps") if self._is_static() else ("mps", "mps-sm")
            raise ShareUnavailable(
                f"the MPS daemon of {self._gpu_uuid} serves {serves} shares, and cannot serve {wanted} shares beside "
                f"them; end the workers of {serves} shares on this GPU first"
            )
        self._end()

    def _start(self) -> None:
        shutil.rmtree(self.pipe_dir, ignore_errors=True)  # the sockets of a daemon that died
        logs = self._logs
        for folder in (self.pipe_dir, logs):
            folder.mkdir(exist_ok=True)
        self._mode_file.unlink(missing_ok=True)
        if self._static:
            self._mode_file.touch()
        # Into a file: the daemon keeps its output open, and a pipe would never come to its end.
        with (logs / "start.log").open("w") as said:
            try:
                subprocess.run(
                    [self._program, "-d", *(["-S"] if self._static else [])],
                    env=self._environment_of_daemon(logs),
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    timeout=_START_TIMEOUT_S,
                    check=True,
                )
            except (OSError, subprocess.SubprocessError) as error:
                hint = "; static partitions need driver 590 or newer" if self._static else ""
                raise mps_control.MpsFailed(
                    f"MPS: the control daemon did not start ({error}); look into {logs}{hint}"
                ) from error
        if not _within(_START_TIMEOUT_S, self.is_running):
            raise mps_control.MpsFailed(
                f"MPS: the control daemon did not answer within {_START_TIMEOUT_S:g} s; look into {logs}"
            )

    def _environment_of_daemon(self, logs: Path) -> dict[str, str]:
        """Without MPS's own variables, whose limits would hold for every client; and with the GPU by its UUID, because
        the daemon renumbers devices.
        """
        environment = {name: value for name, value in os.environ.items() if not name.startswith(cuda.MPS_PREFIX)}
        own = {
            cuda.MPS_PIPE_DIRECTORY: str(self.pipe_dir),
            cuda.MPS_LOG_DIRECTORY: str(logs),
            cuda.VISIBLE_DEVICES: self._gpu_uuid,
        }
        return environment | own

    def _end(self) -> None:
        refusal = ""
        try:
            self.control.quit()
        except mps_control.MpsFailed as error:  # says little: the exit code is 1 also when a server had ended badly
            refusal = f" ({error})"
        if not _within(_QUIT_TIMEOUT_S, lambda: not self.is_running()):
            raise mps_control.MpsFailed(
                f"MPS: the control daemon at {self.pipe_dir} did not end within {_QUIT_TIMEOUT_S:g} s{refusal}"
            )


def mps_daemon(gpu_uuid: str, *, static: bool = False) -> MpsDaemon:
    """The daemon that CUDA_MPS_PIPE_DIRECTORY names, or one of our own for this GPU."""
    pipe_dir = os.environ.get(cuda.MPS_PIPE_DIRECTORY)
    return MpsDaemon(Path(pipe_dir)) if pipe_dir else OwnMpsDaemon(gpu_uuid, static=static)


def _within(timeout_s: float, holds: Callable[[], bool]) -> bool:
    """Whether `holds` comes true in time; polls."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_EVERY_S)
    return True
