"""The text commands of an MPS control daemon: one command on the program's standard input, one answer read strictly.

The program's exit code says little (a refused `sm_partition rm` ends with 0), so every answer is read to its last
word. What does not read as it should is an error that shows the answer: never an empty list, never a success.
"""

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NoReturn

from fractune_core.cuda import MPS_PIPE_DIRECTORY, PACKAGES, PROGRAM
from fractune_core.errors import ShareUnavailable

_ANSWER_TIMEOUT_S = 10.0
_NO_DAEMON = "Cannot find MPS control daemon process"
_NO_SERVER = "Server not found"
"""the answer to `ps` before the first client has come, and while no server is ready"""
_CREATED = re.compile(r"(?:Partition )?(\S+/\S+)(?: created)?")
_STATES = re.compile(r"\b(INITIALIZING|ACTIVE|FAULT|not found)\b")
_PS_COLUMNS = ("PID", "SERVER", "NAMESPACE")
"""what is read of `ps`; it has further columns, and a newer daemon may have more"""
# lspart: two lines of titles, a line for each GPU, a line for each partition. A dash stands for "does not apply";
# newer daemons leave the dashes out.
_LSPART_TITLES = {"GPU", "chunk", "chunks"}
_LSPART_GPU = re.compile(r"(\S+)\s+(?:-\s+)?\d+\s+\d+\s+\d+\s+\d+(?:\s+-)?")
_LSPART_PARTITION = re.compile(r"(\S+)\s+(\S+)\s+(?:-\s+)?(\d+)\s+(?:-\s+)?(\d+)\s+(Yes|No)")


class MpsFailed(ShareUnavailable):
    """An MPS control daemon failed a command, or its answer cannot be read."""


class MpsUnreachable(MpsFailed):
    """No control daemon lives behind this pipe folder. A CUDA program that starts now would run unconfined."""


class PartitionRefused(MpsFailed):
    """The daemon made no partition: not enough free chunks, or the device has clients already."""


class ServerState(StrEnum):
    INITIALIZING = "INITIALIZING"
    ACTIVE = "ACTIVE"
    FAULT = "FAULT"
    """a client's kernel faulted: no new client is let in until every client of that time has left"""
    GONE = "not found"
    """it ended after the daemon had listed it"""


@dataclass(frozen=True)
class MpsClient:
    """One process under MPS, as `ps` lists it."""

    pid: int
    """in the daemon's PID namespace"""
    server: int
    namespace: int
    """inode of the client's own PID namespace"""


@dataclass(frozen=True)
class Partition:
    """A static SM partition."""

    gpu: str
    """first characters of the GPU's UUID: `lspart` abbreviates it"""
    name: str
    """what follows the UUID and a slash in its full id; may hold slashes itself"""
    chunks: int
    sms: int
    in_use: bool

    def is_called(self, full_id: str) -> bool:
        """Whether `full_id` (`GPU-uuid/name`) means this partition."""
        gpu, _, name = full_id.partition("/")
        return gpu.startswith(self.gpu) and name == self.name


class MpsControl:
    """Speaks with the control daemon behind `pipe_dir`.

    Every method raises MpsUnreachable when there is no daemon, MpsFailed when it does not answer in time or not as
    it should.
    """

    def __init__(self, pipe_dir: Path, program: str = PROGRAM, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
        self.pipe_dir = pipe_dir
        self._program = program
        self._timeout_s = timeout_s

    def servers(self) -> list[int]:
        """Process ids of the servers; none before the first client came."""
        return self._pids("get_server_list")

    def server_state(self, server: int) -> ServerState:
        command = f"get_server_status {server}"
        answer = self.ask(command)
        words = _STATES.findall(answer)
        if len(words) != 1:
            self._misread(command, answer)
        return ServerState(words[0])

    def clients(self, server: int) -> list[int]:
        """Process ids of the server's clients, in the daemon's PID namespace."""
        return self._pids(f"get_client_list {server}")

    def processes(self) -> list[MpsClient]:
        """Every client process with what is needed to terminate it; columns are found by their titles."""
        answer = self.ask("ps")
        if answer == _NO_SERVER:
            return []
        rows = [row.split() for row in answer.splitlines() if row.strip()]
        titles = next((row for row in rows if row[0] == _PS_COLUMNS[0]), [])
        if not rows:
            return []
        try:
            pid, server, namespace = (titles.index(title) for title in _PS_COLUMNS)
            clients = [row for row in rows if row is not titles]
            return [MpsClient(int(row[pid]), int(row[server]), int(row[namespace])) for row in clients]
        except (ValueError, IndexError):
            self._misread("ps", answer)

    def terminate_client(self, server: int, client: int) -> None:
        """End the client's contexts; back when it is done. Only then may its process be killed."""
        command = f"terminate_client {server} {client}"
        answer = self.ask(command)
        if answer not in {"0", "CUDA_SUCCESS"}:
            self._misread(command, answer)

    def add_partition(self, gpu_uuid: str, chunks: int) -> str:
        """Make a partition and return its full id, the value for CUDA_MPS_SM_PARTITION. Raises PartitionRefused."""
        answer = self.ask(f"sm_partition add {gpu_uuid} {chunks}")
        created = _CREATED.fullmatch(answer)
        if created is None or not created[1].startswith(f"{gpu_uuid}/"):
            raise PartitionRefused(f"no partition of {chunks} chunks on {gpu_uuid}: {_shown(answer)}")
        return created[1]

    def remove_partition(self, full_id: str) -> None:
        """Raises MpsFailed while a client uses it."""
        gpu, _, name = full_id.partition("/")
        command = f"sm_partition rm {gpu} {name}"
        answer = self.ask(command)
        if any(partition.is_called(full_id) for partition in self.partitions()):
            self._misread(command, answer)

    def partitions(self) -> list[Partition]:
        """The static partitions of all the daemon's GPUs. Raises MpsFailed for a daemon without partitions, as
        one that was started without `-S`.
        """
        answer = self.ask("lspart")
        lines = [line.strip() for line in answer.splitlines() if line.strip()]
        rows = [line for line in lines if line.split()[0] not in _LSPART_TITLES]
        found = [_LSPART_PARTITION.fullmatch(row) for row in rows if not _LSPART_GPU.fullmatch(row)]
        partitions = [_partition(match) for match in found if match]
        if len(partitions) < len(found) or len(rows) == len(found):
            self._misread("lspart", answer)
        return partitions

    def quit(self) -> None:
        """Ask the daemon to end; it may take a moment longer to be gone.

        Raises MpsFailed also when it ends with an error of its own, such as one of a server that ended badly.
        """
        self.ask("quit")

    def ask(self, command: str) -> str:
        """The daemon's answer to `command`, without the white space around it."""
        env = {**os.environ, MPS_PIPE_DIRECTORY: str(self.pipe_dir)}
        pipe = subprocess.PIPE
        try:
            with subprocess.Popen(
                [self._program], stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, start_new_session=True
            ) as process:
                try:
                    answer, complaint = process.communicate(f"{command}\n", self._timeout_s)
                except subprocess.TimeoutExpired:
                    _kill_group(process)
                    raise MpsFailed(
                        f"MPS: no answer to '{command}' within {self._timeout_s:g} s from the daemon at "
                        f"{self.pipe_dir}; look into its control.log, and end it if it hangs"
                    ) from None
        except OSError as error:
            raise MpsFailed(f"MPS: the program {self._program} cannot be run ({error}); install {PACKAGES}") from error
        if _NO_DAEMON in answer + complaint:
            raise MpsUnreachable(
                f"MPS: no control daemon answers at {self.pipe_dir}; start one there, or unset {MPS_PIPE_DIRECTORY} to "
                "have one started"
            )
        if process.returncode != 0:
            self._misread(command, f"{answer} {complaint} (exit code {process.returncode})")
        return answer.strip()

    def _pids(self, command: str) -> list[int]:
        answer = self.ask(command)
        words = answer.split()
        if not all(word.isdecimal() and int(word) > 0 for word in words):
            self._misread(command, answer)
        return [int(word) for word in words]

    def _misread(self, command: str, answer: str) -> NoReturn:
        raise MpsFailed(
            f"MPS: the daemon at {self.pipe_dir} answered '{command}' with {_shown(answer)}; look into its control.log"
        )


def _partition(row: re.Match[str]) -> Partition:
    gpu, name, chunks, sms, in_use = row.groups()
    return Partition(gpu, name, int(chunks), int(sms), in_use == "Yes")


def _shown(answer: str) -> str:
    text = " ".join(answer.split())
    return f"'{text[:200]}'" if text else "nothing"


def _kill_group(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
