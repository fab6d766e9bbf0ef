"""A closed pipe stops a command in order, with the exit code of SIGPIPE, whichever library was writing.

Typer and rich each end a command with code 1 at a BrokenPipeError.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO, cast

from fractune.cli.ending.stopped import Stopped


class _Output:
    """A stream that raises Stopped at a write after its reader has gone."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with _ended_by_its_reader():
            return self._stream.write(text)

    def flush(self) -> None:
        with _ended_by_its_reader():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def output_that_may_close() -> Iterator[None]:
    """Within the block, standard output and standard error raise Stopped once their reader has gone. Standard output
    is flushed at the end.
    """
    streams = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        # A stream is None if it was closed when the command started.
        there = [each or stack.enter_context(Path(os.devnull).open("w", encoding="utf-8")) for each in streams]
        sys.stdout, sys.stderr = (cast(TextIO, _Output(each)) for each in there)
        try:
            yield
            sys.stdout.flush()
        finally:
            sys.stdout, sys.stderr = streams


@contextlib.contextmanager
def _ended_by_its_reader() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise Stopped(signal.SIGPIPE) from error
