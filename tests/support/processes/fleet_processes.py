"""A server and its workers as processes of the command line, each started by hand and all stopped together."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from fractune.server.rpc import RpcClient
from fractune_core.errors import ServerUnreachable
from tests.support.processes.cli_process import Started, start_fractune, stopped_at_end
from tests.support.processes.redis_process import wait_until
from tests.support.secret import SECRET


@contextlib.contextmanager
def fleet_of_processes(
    redis_url: str | Callable[[str], str], folder: Path, *workers: tuple[str, ...], others: int = 0
) -> Iterator[str]:
    """The server's address, once all workers are there: these, by their options, and `others` that were started
    elsewhere. `redis_url` may give that of each user: the server, or the role that the options begin with.
    """
    ready = folder / "ready"
    commands: list[tuple[str, ...]] = [
        ("server", "--listen", "127.0.0.1:0", "--state", str(folder / "state"), "--ready-file", str(ready))
    ]
    commands += [("worker", *options, "--lock-dir", str(folder / "gate")) for options in workers]
    users = ["server", *(options[1] for options in workers)]
    urls = [redis_url if isinstance(redis_url, str) else redis_url(user) for user in users]
    with contextlib.ExitStack() as running:
        processes = [
            start_fractune(*each, "--redis", url, env={"FRACTUNE_SECRET": SECRET.decode()})
            for each, url in zip(commands, urls, strict=True)
        ]
        for process in processes:
            running.enter_context(stopped_at_end(process))
        running.callback(_terminate, processes)
        wait_until(ready.exists, 60)
        with RpcClient(ready.read_text()) as client:
            wait_until(lambda: _registered(client) == len(workers) + others, 120)
            yield client.address


def _terminate(processes: list[Started]) -> None:
    """Each takes a while to end: none waits for another."""
    for process in processes:
        process.terminate()


def _registered(client: RpcClient) -> int:
    try:
        return len(client.workers())
    except ServerUnreachable:
        return 0
