"""One thing that takes inputs: what makes them, what takes them, and what became of them."""

import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from random import Random
from typing import Any

from fractune_core.errors import FractuneError
from tests.support.fuzz.mutations import Mutator

DEADLINE_S = 5.0
"""for one input: on a busy machine the longest honest ones take some tenths of it"""
_KEPT = 20
_KIND_CHARACTERS = 120


class TooLong(BaseException):
    """An input took longer than its target's deadline; no handler of errors is to catch this."""


@dataclass(frozen=True)
class Target:
    """What takes inputs. `take` raises a FractuneError for what it refuses; whatever else it raises is a defect."""

    name: str
    make: Callable[[Mutator], Any]
    take: Callable[[Any], object]
    opened: Callable[[], AbstractContextManager[object]] = nullcontext
    """around all inputs"""
    weight: int = 1
    """inputs of a whole run that it gets, as a part of all"""
    deadline_s: float = DEADLINE_S
    """for one input"""


@dataclass
class Outcome:
    """What became of the inputs of one target."""

    target: str
    seed: int
    inputs: int = 0
    refused: int = 0
    accepted: int = 0
    failures: int = 0
    secs: float = 0.0
    slowest_s: float = 0.0
    by_kind: dict[str, int] = field(default_factory=dict)
    """failures by their error, its place and its words"""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """the first of each kind: its number, with which it is made again, and how it failed"""

    def fail(self, number: int, made: Any, error: BaseException) -> None:
        self.failures += 1
        kind = f"{type(error).__name__} at {_place(error)}: {_words(error)}"
        if kind not in self.by_kind and len(self.examples) < _KEPT:
            self.examples.append(
                {"number": number, "kind": kind, "error": str(error)[:3000], "input": repr(made)[:600]}
            )
        self.by_kind[kind] = self.by_kind.get(kind, 0) + 1


def fuzz(target: Target, inputs: int, seed: int, first: int = 0) -> Outcome:
    """Give the target so many inputs. Input `number` of a seed is always the same."""
    outcome, random = Outcome(target.name, seed), Random()
    mutator = Mutator(random)
    began = time.perf_counter()
    try:
        with target.opened(), _alarm(target.deadline_s):
            for number in range(first, first + inputs):
                random.seed(f"{seed}/{target.name}/{number}")
                _give(target, number, target.make(mutator), outcome)
    except (AssertionError, TimeoutError) as error:  # seen when all was given
        outcome.fail(first + inputs, "all of them", error)
    outcome.secs = time.perf_counter() - began
    return outcome


def _give(target: Target, number: int, made: Any, outcome: Outcome) -> None:
    outcome.inputs += 1
    start = time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, target.deadline_s)
    try:
        target.take(made)
        outcome.accepted += 1
    except FractuneError as error:
        if len(str(error).splitlines()) > 1 or "Traceback" in str(error):
            outcome.fail(number, made, AssertionError(f"not one line: {error}"))
        else:
            outcome.refused += 1
    except (Exception, TooLong) as error:  # noqa: BLE001  whatever it is, it is what was looked for
        outcome.fail(number, made, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    outcome.slowest_s = max(outcome.slowest_s, time.perf_counter() - start)


@contextmanager
def _alarm(deadline_s: float) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLong(f"longer than {deadline_s:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.signal(signal.SIGALRM, before)


def _words(error: BaseException) -> str:
    """The beginning of its message without names and numbers, in which two errors of one kind differ."""
    return re.sub(r"'[^']*'|\S*\d\S*", "_", str(error))[:_KIND_CHARACTERS]


def _place(error: BaseException) -> str:
    """Where in our code it came from: the innermost line of fractune's, else the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/fractune" in frame.filename] or frames
    return f"{ours[-1].filename.rpartition('/')[2]}:{ours[-1].lineno}" if ours else "nowhere"
