"""A simulated `nvidia-cuda-mps-control`: a real program with a real daemon behind a Unix socket, and no GPU.

Without a client its answers are those of NVIDIA's programs 535 and 550; the others follow documents and logs of others.
Commands that begin with `stage` are for tests: they play what clients and their kernels would do. Standard library
alone, and for a command as little of it as possible: tests start this program hundreds of times.
"""

import os
import sys
from _socket import AF_UNIX, SHUT_WR, SOCK_STREAM, socket  # `socket` itself takes twice as long as all the rest

SMS = 132
CHUNKS = 15
CHUNK_SMS = 8
SERVER = 6472
NO_DAEMON = "Cannot find MPS control daemon process"
NO_SERVER = "Server not found"
_HANG = "(hang)"
_FAILED = "(exit with status 1)"
_INVALID = "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"


class Daemon:
    """What a control daemon knows, and how it answers."""

    def __init__(self, gpu_uuid: str, namespace: int, *, static: bool, percent: str) -> None:
        self.gpu_uuid = gpu_uuid
        self.namespace = str(namespace)
        self.static = static
        self.percent = percent
        self.clients: dict[int, tuple[str, str]] = {}
        """partition and PID namespace by process id"""
        self.partitions: dict[str, int] = {}
        self.made = 0
        self.state = ""
        """of the server; empty before the first client"""
        self.affected: set[int] = set()
        """clients that have seen a fault and not left yet"""
        self.says = ""
        """instead of every answer"""

    def answer(self, line: str) -> str:
        self._forget_the_dead()
        command, *words = line.split()
        if command == "stage":
            return str(getattr(self, f"stage_{words[0]}")(*words[1:]))
        if self.says:
            return self.says
        handler = getattr(self, f"do_{command}", None)
        return f'Unknown command "{command}"' if handler is None else str(handler(*words))

    def do_get_server_list(self) -> str:
        return str(SERVER) if self.state else ""

    def do_get_server_status(self, _server: str) -> str:
        return self.state

    def do_get_client_list(self, server: str) -> str:
        if not self.state:
            return f"Server {server} not found"
        return "\n".join(map(str, self.clients))

    def do_get_default_active_thread_percentage(self) -> str:
        return self.percent

    def do_ps(self) -> str:
        if not self.state:
            return NO_SERVER
        rows = [
            f"{pid}      0     {SERVER}     {self.gpu_uuid[:22]}    {namespace}    ./client"
            for pid, (_, namespace) in self.clients.items()
        ]
        return "\n".join(["PID       ID    SERVER   DEVICE             NAMESPACE      COMMAND", *rows])

    def do_terminate_client(self, _server: str, client: str) -> str:
        if int(client) not in self.clients:
            return "CUDA_ERROR_INVALID_VALUE"
        self.stage_leave(client)
        return "0"

    def do_sm_partition(self, what: str, _gpu_uuid: str, operand: str) -> str:
        return self.add_partition(int(operand)) if what == "add" else self.remove_partition(operand)

    def do_lspart(self) -> str:
        if not self.static:
            return "Static partitioning is not enabled"
        used = sum(self.partitions.values())
        gpu = self.gpu_uuid[:6]
        rows = [
            f"{gpu}  {name}  {chunks}  {chunks * CHUNK_SMS}  {'Yes' if self._is_in_use(name) else 'No'}"
            for name, chunks in self.partitions.items()
        ]
        titles = ["GPU     Partition     free    used    free  used  clients", "        chunks  chunks  SM    SM"]
        return "\n".join([*titles, f"{gpu} {CHUNKS - used} {used} {SMS - used * CHUNK_SMS} {used * CHUNK_SMS}", *rows])

    def do_quit(self) -> str:
        raise SystemExit(_FAILED if self.state == "FAULT" else "")

    def add_partition(self, chunks: int) -> str:
        if not self.static or self.clients or sum(self.partitions.values()) + chunks > CHUNKS:
            return f"Failed to fulfill the requested SM partition of {chunks} chunks, error {_INVALID}"
        self.made += 1
        name = f"D/{self.made}9e/DgwYMDAAAAAAAAAAAAAAAAAAAAAA"
        self.partitions[name] = chunks
        return f"Partition {self.gpu_uuid}/{name} created"

    def remove_partition(self, name: str) -> str:
        if self._is_in_use(name):
            return "Partition %s in use. Terminate all clients before removing."
        return "" if self.partitions.pop(name, 0) else "No such partition"

    def stage_connect(self, pid: str, partition: str = "", namespace: str = "") -> str:
        """A process starts CUDA: the number of CUDA's error, 0 for none."""
        if self.state not in {"", "ACTIVE"}:
            return "807"
        name = partition.partition("/")[2]
        if self.static and name not in self.partitions:
            return "915"
        self.state = "ACTIVE"
        self.clients[int(pid)] = (name, namespace or self.namespace)
        return "0"

    def stage_leave(self, pid: str) -> str:
        self.clients.pop(int(pid), None)
        self.affected.discard(int(pid))
        if self.state == "FAULT" and not self.affected:
            self.state = "ACTIVE"
        return ""

    def stage_fault(self) -> str:
        self.state = "FAULT"
        self.affected = set(self.clients)
        return ""

    def stage_state(self, state: str) -> str:
        self.state = state
        return ""

    def stage_mode(self) -> str:
        return "static" if self.static else "percentage"

    def stage_say(self, *words: str) -> str:
        self.says = " ".join(words)
        return ""

    def stage_hang(self) -> str:
        self.says = _HANG
        return ""

    def _is_in_use(self, name: str) -> bool:
        return any(partition == name for partition, _ in self.clients.values())

    def _forget_the_dead(self) -> None:
        for pid in [pid for pid in self.clients if not _is_there(pid)]:
            self.stage_leave(str(pid))


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def serve(pipe_dir: str, daemon: Daemon) -> None:
    """Answer one line a connection until `quit`."""
    import socket
    from pathlib import Path

    pid_file = Path(pipe_dir) / "nvidia-cuda-mps-control.pid"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(f"{pipe_dir}/control")
        listener.listen(64)
        pid_file.write_text(str(os.getpid()))
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as stream:
                try:
                    stream.write(daemon.answer(stream.readline()))
                except SystemExit as end:
                    stream.write(str(end))
                    pid_file.unlink()
                    return


def tell(pipe_dir: os.PathLike[str] | str, line: str) -> str:
    """The daemon's answer. Raises OSError when there is no daemon."""
    link = socket(AF_UNIX, SOCK_STREAM)
    try:
        link.connect(f"{os.fspath(pipe_dir)}/control")
        link.sendall(f"{line}\n".encode())
        link.shutdown(SHUT_WR)
        return b"".join(iter(lambda: link.recv(4096), b"")).decode()
    finally:
        link.close()


def start(pipe_dir: str, *, static: bool) -> None:
    """Leave a daemon in the background, as `-d` does; it keeps standard output open."""
    from pathlib import Path

    if os.fork() == 0:
        os.setsid()
        percent = os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100.0")
        namespace = Path("/proc/self/ns/pid").stat().st_ino
        serve(pipe_dir, Daemon(os.environ["CUDA_VISIBLE_DEVICES"], namespace, static=static, percent=percent))
        os._exit(0)


def main() -> int:
    pipe_dir = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    if "-d" in sys.argv:
        start(pipe_dir, static="-S" in sys.argv)
        return 0
    try:
        answer = tell(pipe_dir, sys.stdin.readline())
    except OSError:
        sys.stdout.write(f"{NO_DAEMON}\n")
        return 1
    if answer == _HANG:
        from signal import pause

        pause()
    if answer == _FAILED:
        return 1
    sys.stdout.write(f"{answer}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
