"""Whether two CPUs are threads of one physical core, found by keeping them busy: hypervisors may hide it.

Two busy threads of one core slow each other down, and CPUs of different cores do not. Run as a program, this file is
one of the busy processes. So it imports the standard library alone.
"""

import contextlib
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, cast

SHARED_FROM = 1.25
"""times as long: from here on two CPUs count as one core. CPUs of different cores differ by their clocks alone, some
10 % at most"""
_ROUND_S = 0.02
_ROUNDS, _MOST_ROUNDS = 3, 12
_UNDISTURBED = 0.95
"""CPU time over time: in a round with less, another program had the CPU"""
_BLOCK = bytes(4096)
"""Its hash takes some 10 us, and keeps the units for integers of a core busy."""


@dataclass(frozen=True)
class PairBurn:
    """Two CPUs that were busy each alone and both together."""

    cpus: tuple[int, int]
    slowdown: float | None
    """how many times as long the same work takes beside the other one; None when other programs disturbed it"""

    @property
    def is_shared(self) -> bool:
        return self.slowdown is not None and self.slowdown >= SHARED_FROM


Work = Callable[[Sequence[int]], Sequence[float] | None]
"""Keeps CPUs busy at the same time: the speed of each, in any unit, or None when other programs disturbed it"""


def likely_pairs(cpus: Sequence[int], host_cpus: int) -> list[tuple[int, int]]:
    """The pairs that share a core on any usual machine: neighbours, or CPUs apart by half of the host's number."""
    usable = set(cpus)
    pairs = {(cpu, cpu + 1) for cpu in usable if cpu % 2 == 0} | {(cpu, cpu + host_cpus // 2) for cpu in usable}
    return sorted(pair for pair in pairs if set(pair) <= usable and pair[0] != pair[1])


def burn_pairs(pairs: Iterable[tuple[int, int]]) -> list[PairBurn]:
    """Each pair after the other. A pair takes 0.2 s. Raises OSError or ValueError where no process can be run."""
    with _BusyCpus() as busy:
        return [PairBurn(pair, slowdown(busy.work, pair)) for pair in pairs]


def slowdown(work: Work, pair: tuple[int, int]) -> float | None:
    """The median over rounds that no other program disturbed, at least three."""
    found: list[float] = []
    for _ in range(_MOST_ROUNDS):
        alone = [speeds for cpu in pair if (speeds := work([cpu])) is not None]
        together = work(pair)
        if len(alone) == 2 and together is not None:
            found.append(statistics.mean(one / beside for (one,), beside in zip(alone, together, strict=True)))
        if len(found) == _ROUNDS:
            return statistics.median(found)
    return None


class _BusyCpus(contextlib.ExitStack):
    """A process for each CPU, started when it is first needed; killed at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._running: dict[int, tuple[IO[str], IO[str]]] = {}

    def work(self, cpus: Sequence[int]) -> list[float] | None:
        for cpu in set(cpus) - self._running.keys():
            self._running[cpu] = self.enter_context(_process(cpu))
        busy = [self._running[cpu] for cpu in cpus]
        begin = f"{time.perf_counter() + 0.1 * _ROUND_S}\n"
        for orders, _ in busy:
            orders.write(begin)
            orders.flush()
        found: list[dict[str, Any]] = [json.loads(answers.readline()) for _, answers in busy]
        disturbed = any(each["cpu_s"] < _UNDISTURBED * each["s"] for each in found)
        return None if disturbed else [each["blocks"] / each["s"] for each in found]


@contextlib.contextmanager
def _process(cpu: int) -> Iterator[tuple[IO[str], IO[str]]]:
    command = [sys.executable, "-I", "-S", __file__, str(cpu)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        try:
            answers = cast("IO[str]", process.stdout)
            answers.readline()  # it is ready
            yield cast("IO[str]", process.stdin), answers
        finally:
            process.kill()


def _main(cpu: int) -> None:
    """For each moment that a line names, be busy from then on for a round.

    A process that comes late was kept off its CPU: the time counts from the moment named, so that it shows.
    """
    os.sched_setaffinity(0, [cpu])
    _say({"ready": cpu})
    for line in sys.stdin:
        begin_s = float(line)
        while time.perf_counter() < begin_s:
            pass
        cpu_began_s, blocks = time.process_time(), 0
        while time.perf_counter() < begin_s + _ROUND_S:
            hashlib.sha512(_BLOCK).digest()
            blocks += 1
        _say({"blocks": blocks, "s": time.perf_counter() - begin_s, "cpu_s": time.process_time() - cpu_began_s})


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(f"{json.dumps(found)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
