"""Running what a user would type, within a part's time. The processes of a command end with it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from benchmarks.gpu.part import PartFailed, Slice

REPOSITORY = Path(__file__).parents[2]
_STOP_TIMEOUT_S = 45.0
"""for a command to end in order: it ends its workers, and they their MPS daemon"""
_LAST_LINES = 12
_MORE_TIME = "give the part more time (--part, --minutes)"


@dataclass(frozen=True)
class Ended:
    """A command that has ended by itself."""

    code: int
    lines: list[str]
    """of standard output"""
    last_words: str
    """the end of standard error"""

    @property
    def events(self) -> list[dict[str, Any]]:
        """Its output as `--json` gives it, an object a line."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def check(self, what: str) -> None:
        """Raises PartFailed unless it ended well."""
        if self.code:
            raise PartFailed(f"{what} ended with code {self.code}: {self.last_words or 'it printed nothing'}")


def fractune(given: Slice, *args: str, seconds: float | None = None) -> list[dict[str, Any]]:
    """Run `fractune ARGS --json`; its events. Raises PartFailed."""
    ended = python(given, "-m", "fractune.cli", *args, "--json", seconds=seconds)
    ended.check(f"fractune {args[0]}")
    return ended.events


def python(given: Slice, *args: str, seconds: float | None = None) -> Ended:
    """Run this Python with `args` in the repository, until it ends or the slice does, or after `seconds`.

    Raises PartFailed when it has to be stopped.
    """
    shown = " ".join(arg.removeprefix(f"{REPOSITORY}/") for arg in args)
    return _run(given, [sys.executable, *args], f"python {shown}", seconds)


def shell(given: Slice, line: str, seconds: float | None = None) -> Ended:
    """As `python`, a line of bash."""
    return _run(given, ["bash", "-c", line], line, seconds)


def _run(given: Slice, command: Sequence[str], shown: str, seconds: float | None) -> Ended:
    limit_s = given.left_s if seconds is None else min(seconds, given.left_s)
    if limit_s <= 0:
        raise PartFailed(f"no time left for: {shown}; {_MORE_TIME}")
    print(f"  {shown}", flush=True)
    with _scratch(given.private) as output, _scratch(given.private) as errors:
        with _started(command, given.private, output, errors) as process:
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise PartFailed(f"not done within {limit_s:.0f} s: {shown}; {_MORE_TIME}") from None
            finally:
                _keep(given.logs, shown, output, errors)
        return Ended(code, _read(output).splitlines(), _last_words(_read(errors)))


def _keep(folder: Path, shown: str, output: IO[str], errors: IO[str]) -> None:
    """The output of a command so far, in a separate file."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{len(list(folder.iterdir())):03}.log"
    path.write_text(f"{shown}\n\n{_read(output)}\n---- standard error\n{_read(errors)}", encoding="utf-8")


def _scratch(folder: Path) -> IO[str]:
    return tempfile.TemporaryFile("w+", dir=folder, encoding="utf-8", errors="replace")


def _read(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


@contextlib.contextmanager
def _started(
    command: Sequence[str], private: Path, output: IO[str], errors: IO[str]
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
        cwd=REPOSITORY,
        env=_environment(private),
        start_new_session=True,  # Ctrl-C is for the suite, which ends its command in order
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(private: Path) -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]))
    return {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TMPDIR": str(private)}


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_LAST_LINES:])
