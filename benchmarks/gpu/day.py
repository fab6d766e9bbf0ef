"""A call on a lent GPU: its steps, each with its own end and its own file of results.

A step is a process. Its end is on the clock of the call, so a step that begins late has less time, and the steps after
it still have theirs. A step that is not done at its end is stopped with all that it started. Each step adds its line at
once, and the one file that goes back is made again after each step. The standard library alone: a host has no package
of ours before the first step has unpacked them.
"""

import contextlib
import json
import os
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
MOST_BYTES = 15 << 20
"""of the file that goes back: a lent host returns files of up to 16 MiB"""
_TO_STOP_S = 4.0
"""of a step's time, for its process to end in order: it ends its MPS daemon"""
_SHORTEST_S = 1.0
_LAST_LINE_BYTES = 2000


@dataclass(frozen=True)
class Step:
    name: str
    question: str
    end_s: float
    """when it has ended, in seconds since the call began"""
    command: Callable[[float], Sequence[str]]
    """by the seconds that it has"""


@dataclass(frozen=True)
class Place:
    """Where a call works."""

    name: str
    """of the call: A or B"""
    carried: Path
    """the packs, and the packages of the host"""
    out: Path
    """what goes back"""
    work: Path
    """everything else"""

    @property
    def results(self) -> Path:
        """The folder with a file of each step, and its output."""
        return self.work / "results"

    @property
    def packages(self) -> Path:
        return self.work / "packages"


def run_call(place: Place, steps: Sequence[Step], environ: Mapping[str, str]) -> int:
    """Run the steps; 0 if each ended well, 1 otherwise. A line for each in `NAME.jsonl`, at once."""
    began_s = time.monotonic()
    for folder in (place.out, place.results):
        folder.mkdir(parents=True, exist_ok=True)
    lines = place.out / f"{place.name}.jsonl"
    lines.write_text("")
    failed = 0
    for step in steps:
        started_s = time.monotonic() - began_s
        ended = _run(step, place, began_s, environ)
        failed += ended != "done"
        took_s = time.monotonic() - began_s - started_s
        line = {"step": step.name, "ended": ended, "began_s": round(started_s, 1), "took_s": round(took_s, 1)}
        with lines.open("a") as file:
            file.write(f"{json.dumps(line)}\n")
            file.flush()
            os.fsync(file.fileno())
        print(f"{started_s:6.1f} s  {step.name} ({step.question}): {ended}, {took_s:.1f} s", flush=True)
        gather(place.results, place.out / f"{place.name}.tar.gz")
    return 1 if failed else 0


def _run(step: Step, place: Place, began_s: float, environ: Mapping[str, str]) -> str:
    """How the step ended: `done`, or why not."""
    left_s = began_s + step.end_s - time.monotonic() - _TO_STOP_S
    if left_s < _SHORTEST_S:
        return "no time was left"
    log = place.results / f"{step.name}.log"
    # A session of its own: what a step has started ends with it.
    with (
        log.open("wb") as output,
        subprocess.Popen(
            step.command(left_s),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=REPOSITORY,
            env={**environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(left_s)
        except subprocess.TimeoutExpired:
            _stop(process)
            return f"cut after {left_s:.0f} s: {_last_line(log)}"
        finally:
            _kill(process)
    return "done" if code == 0 else f"code {code}: {_last_line(log)}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_TO_STOP_S)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    text = log.read_bytes()[-_LAST_LINE_BYTES:].decode(errors="replace").strip()
    return text.rpartition("\n")[2] or "it printed nothing"


def gather(folder: Path, file: Path, most_bytes: int = MOST_BYTES) -> list[str]:
    """Put the folder's files into `file` (.tar.gz), from the smallest on while they fit. The names of the others."""
    left_bytes = most_bytes
    left_out: list[Path] = []
    taken: list[Path] = []
    for path in sorted((each for each in folder.rglob("*") if each.is_file()), key=lambda each: each.stat().st_size):
        left_bytes -= path.stat().st_size
        (taken if left_bytes >= 0 else left_out).append(path)
    beside = file.with_suffix(".part")
    with tarfile.open(beside, "w:gz") as archive:
        for path in taken:
            archive.add(path, path.relative_to(folder))
    beside.replace(file)
    return [str(path.relative_to(folder)) for path in left_out]
