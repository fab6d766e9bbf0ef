"""CPU time that busy processes get here: the proof of a CPU limit, also of one whose files this process cannot see.

Run as a program, this file is one of the busy processes. So it imports the standard library alone.
"""

import contextlib
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, cast

_GAP_S = 0.02
"""without CPU: longer than the turn of another program"""
_TICK_S = 0.005
"""The kernel stops a process at a tick of its clock, up to this late."""


@dataclass(frozen=True)
class Burn:
    """What the processes got together."""

    cores: float
    """CPU time over time"""
    resumes_s: tuple[tuple[float, ...], ...]
    """of each process, the moments when it ran again after a gap"""

    @property
    def renewed_every_s(self) -> float | None:
        """The period of a quota that stops the processes; None where the gaps show none.

        A used-up quota lets a process run again at the next beginning of a period, so the moments differ by whole
        periods.
        """
        for resumes in self.resumes_s:
            steps = [after - before for before, after in itertools.pairwise(resumes)]
            if len(steps) < 2:
                continue
            least_s = min(steps)
            period_s = sum(steps) / sum(round(step / least_s) for step in steps)
            if all(abs(step - round(step / period_s) * period_s) < _TICK_S for step in steps):
                return period_s
        return None


def burn(processes: int, settle_s: float, measure_s: float) -> Burn:
    """Keep `processes` busy under the limits of this process. What they get in the first `settle_s` does not count:
    a quota that was not used before lets them run for longer.

    Raises OSError or ValueError where the processes cannot be run.
    """
    command = [sys.executable, "-I", "-S", __file__, str(settle_s), str(measure_s)]
    with contextlib.ExitStack() as running:
        busy = [running.enter_context(_process(command)) for _ in range(processes)]
        for _, answers in busy:
            answers.readline()  # it is ready
        start = f"{time.perf_counter()}\n"
        for orders, _ in busy:
            orders.write(start)
            orders.flush()
        found = [json.loads(answers.readline()) for _, answers in busy]
    cpu_s = sum(each["cpu_s"] for each in found)
    return Burn(cpu_s / measure_s, tuple(tuple(each["resumes_s"]) for each in found))


@contextlib.contextmanager
def _process(command: Sequence[str]) -> Iterator[tuple[IO[str], IO[str]]]:
    """A process, by its standard input and output; it is killed at the end."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            yield cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
        finally:
            process.kill()


def _busy(begin_s: float, end_s: float) -> tuple[float, list[float]]:
    """CPU time of this process from `begin_s` to `end_s`, and the moments when it ran again after a gap.

    Where the process was stopped at one of the two moments, the last reading before counts.
    """
    resumes: list[float] = []
    at_begin_s = cpu_s = time.process_time()
    last_s = time.perf_counter()
    while (now_s := time.perf_counter()) <= end_s:
        cpu_s = time.process_time()
        if now_s <= begin_s:
            at_begin_s = cpu_s
        elif now_s - last_s > _GAP_S:
            resumes.append(now_s)
        last_s = now_s
    return cpu_s - at_begin_s, resumes


def _main(settle_s: float, measure_s: float) -> None:
    _say("ready")
    begin_s = float(sys.stdin.readline()) + settle_s
    cpu_s, resumes_s = _busy(begin_s, begin_s + measure_s)
    _say(json.dumps({"cpu_s": cpu_s, "resumes_s": resumes_s}))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(*map(float, sys.argv[1:]))
