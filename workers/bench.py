"""The bench: a confined child, and how one batch of artifacts is measured on it.

A trial is timed shortly, and once more for longer when it can win, one candidate after the other. A final first
checks every contestant's output against the untuned default's, then times all that were right in turn.
"""

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner_core.errors import FractuneError
from tuner_core.noise import DEFAULT_MARGIN
from tuner_core.records import FINAL_POLICY, FIRST_POLICY, TRIAL_POLICY, Status, TimingPolicy
from tuner_core.shares import Share
from workers.child import CallFailed, Child, ChildDied, ChildTimeout
from workers.confinement import confinement_for

_HELLO_TIMEOUT_S = 60.0
_LOAD_TIMEOUT_S = 30.0
_TRIAL_TIMEOUT_S = 30.0
_CHECK_TIMEOUT_S = 60.0
_CONTEST_TIMEOUT_S = 900.0
_MODEL_TIMEOUT_S = 900.0
_MODEL_REPEATS = 7
_TOLERANCES = {"float16": 2e-2, "bfloat16": 5e-2, "float32": 1e-3, "float64": 1e-6}
"""Largest difference to the untuned output, relative to its largest value, by type: a schedule may add up in
another order. Other types must agree exactly."""
_RUNGS = (FIRST_POLICY, TRIAL_POLICY)
_CHILD_ERRORS = (CallFailed, ChildDied, ChildTimeout)


@dataclass(frozen=True)
class Outcome:
    """How one measurement ended."""

    status: Status
    cause: str = ""
    run_secs: tuple[float, ...] = ()
    policy: TimingPolicy = FIRST_POLICY
    max_error: float | None = None

    @property
    def median_s(self) -> float:
        """Infinite for a failure."""
        return statistics.median(self.run_secs) if self.run_secs else math.inf


@dataclass(frozen=True, eq=False)
class Batch:
    """Artifacts of one workload."""

    args_info: list[Any]
    seed: int
    """of the random arguments"""
    codes: dict[str, bytes]
    """object files by candidate, of those that could be built"""


class Bench:
    """One share of this machine. A child that dies is replaced, and its share verified anew."""

    def __init__(self, share: Share, cores: Sequence[int], margin: float = DEFAULT_MARGIN) -> None:
        self._margin = margin
        self._confinement = confinement_for(share, cores)
        self._confinement.probe()
        units = ",".join(str(core) for core in cores)
        self._child = Child("workers.children.measuring", [str(share), units], env=self._confinement.environment())
        self._greeted = 0
        self._prepared: tuple[int, Batch | None] = (0, None)
        self.hello: dict[str, Any] = {}
        """what the child said of its device, granted share, target and versions (`MeasurerChild.hello`)"""

    def greet(self) -> None:
        """Verify the share of the present child. Raises ShareUnavailable: nothing is measured unconfined."""
        if self._child.ensure() != self._greeted:
            self.hello = self._child.call("hello", _HELLO_TIMEOUT_S)
            self._greeted = self._child.generation

    def stop(self) -> None:
        self._child.stop()
        self._confinement.leave()

    def anchor(self) -> float:
        """Time of the anchor kernel over its first time in this child; 0 when it could not be timed."""
        try:
            self.greet()
            return float(self._child.call("anchor", _TRIAL_TIMEOUT_S))
        except _CHILD_ERRORS:
            return 0.0

    def trials(self, batch: Batch, best_s: float = math.inf) -> dict[str, Outcome]:
        """Race the candidates, each on its own: only one that comes close to the fastest so far is timed for longer.

        `best_s`: the fastest median of this operator before, in seconds. Successive halving in its smallest form
        (Jamieson and Talwalkar, AISTATS 2016): two rungs, and a margin instead of a quota.
        """
        outcomes: dict[str, Outcome] = {}
        for name in batch.codes:
            outcomes[name] = self._race(batch, name, _RUNGS, best_s * self._margin)
            best_s = min(best_s, outcomes[name].median_s)
        return outcomes

    def timed(self, batch: Batch, policy: TimingPolicy) -> dict[str, Outcome]:
        """Time every candidate under `policy`, each on its own."""
        return {name: self._race(batch, name, [policy], math.inf) for name in batch.codes}

    def final(self, batch: Batch, untuned: str) -> dict[str, Outcome]:
        """Check every contestant's output against that of `untuned`, then time those that were right in turn."""
        outcomes: dict[str, Outcome] = {}
        right: dict[str, float] = {}
        for name in sorted(batch.codes, key=lambda name: name != untuned):
            try:
                error = self._check(batch, name, right)
            except _CHILD_ERRORS as failure:
                outcomes[name] = _failure(failure)
            else:
                if error > _tolerance(batch):
                    outcomes[name] = _wrong(error, _tolerance(batch))
                else:
                    right[name] = error
            if untuned not in right:
                return _without_reference(batch.codes)
        return outcomes | self._time_in_turn(batch, right)

    def time_model(self, path: Path) -> dict[str, Any]:
        """Time every variant of the bundle at `path`: `run_secs` and `max_error` by variant."""
        self.greet()
        timed: dict[str, Any] = self._child.call("time_model", _MODEL_TIMEOUT_S, path=str(path), repeats=_MODEL_REPEATS)
        return timed

    def _race(self, batch: Batch, name: str, rungs: Sequence[TimingPolicy], bar_s: float) -> Outcome:
        try:
            self._prepare(batch)
            code = base64.b64encode(batch.codes[name]).decode()
            policies = [policy.to_json() for policy in rungs]
            answer = self._child.call("race", _TRIAL_TIMEOUT_S, code=code, policies=policies, bar_s=bar_s)
        except _CHILD_ERRORS as error:
            return _failure(error)
        return Outcome(Status.OK, run_secs=tuple(answer["run_secs"]), policy=TimingPolicy.from_json(answer["policy"]))

    def _prepare(self, batch: Batch) -> None:
        """Make sure that the arguments of the present child are those of this batch."""
        self.greet()
        if self._prepared != (self._child.generation, batch):
            self._child.call("begin", _LOAD_TIMEOUT_S, args_info=batch.args_info, seed=batch.seed)
            self._prepared = (self._child.generation, batch)

    def _load(self, batch: Batch, name: str) -> None:
        """Load a kernel into the present child."""
        self._prepare(batch)
        code = base64.b64encode(batch.codes[name]).decode()
        self._child.call("load", _LOAD_TIMEOUT_S, name=name, code=code)

    def _check(self, batch: Batch, name: str, right: Iterable[str]) -> float:
        """The contestant's difference to the first one checked, relative."""
        self._bring_back(batch, right)
        self._load(batch, name)
        return float(self._child.call("check", _CHECK_TIMEOUT_S, name=name))

    def _bring_back(self, batch: Batch, right: Iterable[str]) -> None:
        """After a contestant killed the child: load those that were right again, the reference first."""
        self.greet()
        if self._prepared == (self._child.generation, batch):
            return
        for name in right:
            self._load(batch, name)
            self._child.call("check", _CHECK_TIMEOUT_S, name=name)

    def _time_in_turn(self, batch: Batch, right: dict[str, float]) -> dict[str, Outcome]:
        names = list(right)
        try:
            self._bring_back(batch, right)
            answer = self._child.call("contest", _CONTEST_TIMEOUT_S, names=names, policy=FINAL_POLICY.to_json())
        except _CHILD_ERRORS as error:
            return dict.fromkeys(names, _failure(error))
        return {
            name: Outcome(
                Status.OK,
                run_secs=tuple(answer["run_secs"][name]),
                policy=TimingPolicy.from_json(answer["policy"][name]),
                max_error=error,
            )
            for name, error in right.items()
        }


def _tolerance(batch: Batch) -> float:
    """By the type of the last argument, which is an output."""
    return _TOLERANCES.get(batch.args_info[-1][1], 0.0)


def _failure(error: FractuneError) -> Outcome:
    status = {ChildTimeout: Status.RUN_TIMEOUT, ChildDied: Status.CRASHED}.get(type(error), Status.RUN_FAILED)
    return Outcome(status, str(error))


def _wrong(error: float, allowed: float) -> Outcome:
    cause = f"output differs from the untuned one by {error:.2g} of its largest value; {allowed:g} is allowed"
    return Outcome(Status.WRONG_OUTPUT, cause, policy=FINAL_POLICY, max_error=error)


def _without_reference(names: Iterable[str]) -> dict[str, Outcome]:
    cause = "the untuned operator itself could not be built or run here: nothing to compare with"
    return {name: Outcome(Status.RUN_FAILED, cause, policy=FINAL_POLICY) for name in names}
