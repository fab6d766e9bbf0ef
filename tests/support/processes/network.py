"""A real network between real processes, as bad as a test wants it: a TCP proxy."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Self
from urllib.parse import urlsplit

_CHUNK_BYTES = 1 << 16


class Network:
    """Takes connections at `port` of loopback and passes them on to one address."""

    def __init__(self, upstream: str) -> None:
        """`upstream`: HOST:PORT, or unix:PATH."""
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._delay_s = 0.0
        self._swallows = self._swallows_answers = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        self._do(self._listen())
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def delay(self, secs: float) -> None:
        """From now on every piece of data arrives so many seconds later, in each direction."""
        self._delay_s = secs

    def cut(self) -> None:
        """Every connection is reset, and new ones are refused, until `mend`."""
        self._do(self._close())

    def swallow(self) -> None:
        """From now on nothing arrives, and nobody is told. A connection that has lost data never gets well."""
        self._swallows = True

    def swallow_answers(self) -> None:
        """The same for what comes back alone: what was asked for is done."""
        self._swallows_answers = True

    def mend(self) -> None:
        """New connections are passed on again."""
        self._swallows = self._swallows_answers = False
        self._do(self._listen())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._writers.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        if self._swallows:
            return  # it stays open, and nobody is behind it
        try:
            there = await self._connect()
        except OSError:
            writer.transport.abort()
            return
        self._writers.add(there[1])
        lost = asyncio.Event()
        for source, target in ((reader, there[1]), (there[0], writer)):
            task = self._loop.create_task(self._pass_on(source, target, lost, answers=target is writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._upstream.startswith("unix:"):
            return await asyncio.open_unix_connection(self._upstream.removeprefix("unix:"))
        host, _, port = self._upstream.rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, lost: asyncio.Event, *, answers: bool
    ) -> None:
        """Until the source ends; `lost` is the connection's, both ways: set once data of it has been swallowed."""
        with contextlib.suppress(ConnectionError, OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._swallows or (answers and self._swallows_answers):
                    lost.set()
                if lost.is_set():
                    continue
                self._loop.call_later(self._delay_s, _write, target, data)
        if not lost.is_set():
            self._loop.call_later(self._delay_s, target.close)


def _write(target: asyncio.StreamWriter, data: bytes) -> None:
    if not target.is_closing():
        target.write(data)


@contextlib.contextmanager
def network_to_redis(url: str) -> Iterator[tuple[Network, str]]:
    """A network in front of the Redis at a Unix socket, and the Redis's URL through it."""
    with Network(f"unix:{urlsplit(url).path}") as network:
        yield network, f"redis://{network.address}"
