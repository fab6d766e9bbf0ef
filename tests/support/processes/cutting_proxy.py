"""A TCP proxy in a thread of its own that cuts connections in the middle, and counts what comes through."""

import contextlib
import selectors
import socket
import threading
from collections.abc import Iterator, Sequence

_READ_BYTES = 1 << 16


class CuttingProxy:
    """Listens at `address`. Use `cutting_proxy`."""

    def __init__(self, server: str, cuts: Sequence[int]) -> None:
        """`cuts`: bytes that each connection brings to the server before it is cut; those after them are left alone."""
        host, _, port = server.rpartition(":")
        self._server = (host, int(port))
        self._cuts = list(cuts)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.brought_bytes: list[int] = []
        """to the server, by connection"""
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._accept, name="proxy")]
        self._threads[0].start()

    def stop(self) -> None:
        self._ended.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            number = len(self.brought_bytes)
            self.brought_bytes.append(0)
            thread = threading.Thread(target=self._carry, args=(client, number), name=f"proxy {number}")
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket, number: int) -> None:
        limit = self._cuts[number] if number < len(self._cuts) else None
        with (
            contextlib.suppress(OSError),
            client,
            socket.create_connection(self._server) as server,
            selectors.DefaultSelector() as both,
        ):
            both.register(client, selectors.EVENT_READ, (client, server))
            both.register(server, selectors.EVENT_READ, (server, client))
            while not self._ended.is_set():
                for key, _ in both.select(timeout=0.05):
                    source, target = key.data
                    data = source.recv(_READ_BYTES)
                    if not data:
                        return
                    if source is client:
                        data = data if limit is None else data[: limit - self.brought_bytes[number]]
                        self.brought_bytes[number] += len(data)
                    target.sendall(data)
                    if limit is not None and self.brought_bytes[number] >= limit:
                        return


@contextlib.contextmanager
def cutting_proxy(server: str, *cuts: int) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(server, cuts)
    try:
        yield proxy
    finally:
        proxy.stop()
