"""The bench: a confined child, and how one batch of artifacts is measured on it.

A trial is timed shortly, and once more for longer when it can win, one candidate after the other. A final first
checks every finalist's output against the untuned default's, then times all that were right in turn.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fractune_core.analysis.noise import DEFAULT_MARGIN
from fractune_core.errors import FractuneError
from fractune_core.records import FIRST_POLICY, TRIAL_POLICY, VALIDATION_POLICY, WARM, Status, TimingPolicy, with_cache
from fractune_core.shares import Share
from fractune_workers.child import CallFailed, Child, ChildDied, ChildTimeout
from fractune_workers.confinement import confinement_for
from fractune_workers.faults.guard import Quarantined, Setup, guard_for
from fractune_workers.locks.core_locks import default_lock_dir

_CHILD = "fractune_workers.children.measuring.child"
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
_CHILD_ERRORS = (CallFailed, ChildDied, ChildTimeout, Quarantined)

_log = logging.getLogger(__name__)


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
class ArtifactBatch:
    """Artifacts of one workload."""

    args_info: list[Any]
    seed: int
    """of the random arguments"""
    codes: dict[str, bytes]
    """object files by candidate, of those that could be built"""


class MeasurementSession:
    """One share of this machine. A child that dies is replaced, and its share verified anew.

    Whatever touches the child is a flight of `fractune_workers.faults.guard`, so that benches whose shares fall
    together keep
    to its rules. They find each other in `meeting_place`, a folder; None = where the gate of this user's workers is.
    `cache`: WARM or COLD, of a GPU.
    """

    def __init__(
        self,
        share: Share,
        cores: Sequence[int],
        margin: float = DEFAULT_MARGIN,
        meeting_place: Path | None = None,
        cache: str = WARM,
    ) -> None:
        self._margin = margin
        self._rungs = [with_cache(policy, cache) for policy in _RUNGS]
        self._final_policy = with_cache(VALIDATION_POLICY, cache)
        self._confinement = confinement_for(share, cores)
        self._confinement.probe()
        units = ",".join(str(core) for core in cores)
        self._child = Child(
            _CHILD,
            [str(share), units],
            env=self._confinement.environment(),
            before_kill=self._confinement.before_kill,
            # A CPU share confines its process itself; that of a GPU launches its kernels from these cores.
            cores=cores if share.device_kind == "cuda" else (),
        )
        try:
            self._guard = guard_for(self._child, self._confinement, meeting_place or default_lock_dir())
        except FractuneError:
            self._confinement.leave()  # nobody else will: a daemon that it started would stay
            raise
        self._greeted = 0
        self._prepared: tuple[int, ArtifactBatch | None] = (0, None)
        self._checked: set[str] = set()
        """finalists of the prepared batch that the present child holds, compared with the first of them"""
        self.device_info: dict[str, Any] = {}
        """what the child said of its device, granted share, target and versions (`MeasurerChild.device_info`)"""

    def handshake(self) -> None:
        """Verify the share of the present child. Raises ShareUnavailable: nothing is measured unconfined."""
        self._guard.get_ready(self._setup())

    def stop(self) -> None:
        try:
            self._guard.stop()
        finally:
            self._confinement.leave()

    @property
    def gpu_uuid(self) -> str | None:
        """The GPU that the share is a part of; None for a CPU share."""
        return self._confinement.gpu_uuid

    @property
    def generation(self) -> int:
        """How many children there have been."""
        return self._child.generation

    def anchor(self) -> float:
        """Time of the anchor kernel over its first time in this child; 0 when it could not be timed."""
        run = partial(self._child.call, "anchor", _TRIAL_TIMEOUT_S)
        try:
            return float(self._guard.run((), self._setup(), run))
        except _CHILD_ERRORS:
            return 0.0

    def trials(self, batch: ArtifactBatch, best_s: float = math.inf) -> dict[str, Outcome]:
        """Race the candidates, each on its own: only one that comes close to the fastest so far is timed for longer.

        `best_s`: the fastest median of this operator before, in seconds. Successive halving in its smallest form
        (Jamieson and Talwalkar, AISTATS 2016): two rungs, and a margin instead of a quota.
        """
        outcomes: dict[str, Outcome] = {}
        for name in batch.codes:
            outcomes[name] = self._race(batch, name, self._rungs, best_s * self._margin)
            best_s = min(best_s, outcomes[name].median_s)
        return outcomes

    def timed(self, batch: ArtifactBatch, policy: TimingPolicy) -> dict[str, Outcome]:
        """Time every candidate under `policy`, each on its own."""
        return {name: self._race(batch, name, [policy], math.inf) for name in batch.codes}

    def final(self, batch: ArtifactBatch, untuned: str) -> dict[str, Outcome]:
        """Check every finalist's output against that of `untuned`, then time those that were right in turn.

        All must be in one child: whenever that is another one, those that were right are checked in it again.
        """
        names = sorted(batch.codes, key=lambda name: name != untuned)
        right: dict[str, float] = {}
        failed: dict[str, Outcome] = {}
        if untuned not in batch.codes:
            return _without_reference(names)
        self._checked = set()  # a batch that was void comes again, to the same child
        while True:
            self._check_all(batch, names, right, failed)
            if untuned in failed:
                return _without_reference(names) | failed
            timed = self._time_in_turn(batch, right)
            if timed is not None:
                return timed | failed

    def time_model(self, path: Path) -> dict[str, Any]:
        """Time every variant of the bundle at `path`: `run_secs` and `max_error` by variant."""
        run = partial(self._child.call, "time_model", _MODEL_TIMEOUT_S, path=str(path), repeats=_MODEL_REPEATS)
        timed: dict[str, Any] = self._guard.run([_named(path.read_bytes())], self._setup(), run, alone=True)
        return timed

    def _race(self, batch: ArtifactBatch, name: str, rungs: Sequence[TimingPolicy], bar_s: float) -> Outcome:
        code = batch.codes[name]
        text, policies = base64.b64encode(code).decode(), [policy.to_json() for policy in rungs]
        run = partial(self._child.call, "race", _TRIAL_TIMEOUT_S, code=text, policies=policies, bar_s=bar_s)
        try:
            answer = self._guard.run([_named(code)], self._setup(batch), run)
        except _CHILD_ERRORS as error:
            return _failure(error)
        return Outcome(Status.OK, run_secs=tuple(answer["run_secs"]), policy=TimingPolicy.from_json(answer["policy"]))

    def _setup(self, batch: ArtifactBatch | None = None) -> Setup:
        """What the present child must know: that its share is verified, and the arguments of `batch`."""
        return Setup(partial(self._is_prepared, batch), partial(self._prepare, batch))

    def _is_prepared(self, batch: ArtifactBatch | None) -> bool:
        present = self._child.generation
        if self._child.pid is None or self._greeted != present:
            return False
        return batch is None or self._prepared == (present, batch)

    def _prepare(self, batch: ArtifactBatch | None) -> None:
        if self._child.ensure() != self._greeted:
            self.device_info = self._child.call("device_info", _HELLO_TIMEOUT_S)
            self._greeted = self._child.generation
        if batch is not None and not self._is_prepared(batch):
            self._child.call("begin", _LOAD_TIMEOUT_S, args_info=batch.args_info, seed=batch.seed)
            self._prepared, self._checked = (self._child.generation, batch), set()

    def _held(self, batch: ArtifactBatch) -> set[str]:
        return self._checked if self._is_prepared(batch) else set()

    def _load(self, batch: ArtifactBatch, name: str) -> None:
        """Load a kernel into the present child."""
        code = base64.b64encode(batch.codes[name]).decode()
        self._child.call("load", _LOAD_TIMEOUT_S, name=name, code=code)

    def _check_all(
        self, batch: ArtifactBatch, names: Sequence[str], right: dict[str, float], failed: dict[str, Outcome]
    ) -> None:
        """Check finalists, the reference first, until the present child holds all that are `right` (with their
        differences) and the others have `failed`; or until the reference itself has failed.
        """
        reference, tried = names[0], set[str]()
        while missing := [name for name in names if name not in failed and name not in self._held(batch)]:
            name = missing[0]
            right.pop(name, None)
            try:
                error = self._check(batch, name, reference, alone=name in tried)
            except _CHILD_ERRORS as failure:
                failed[name] = _failure(failure)
            else:
                if error is None:
                    tried.add(name)
                elif error > _tolerance(batch):
                    failed[name] = _wrong(error, _tolerance(batch))
                else:
                    right[name] = error
            if reference in failed:
                return

    def _check(self, batch: ArtifactBatch, name: str, reference: str, *, alone: bool) -> float | None:
        """The finalist's difference to `reference`, relative; None when it ran in a child that does not hold that."""

        def run() -> float | None:
            is_comparable = name == reference or reference in self._held(batch)
            self._load(batch, name)
            error = float(self._child.call("check", _CHECK_TIMEOUT_S, name=name))
            return error if is_comparable else None

        error = self._guard.run([_named(batch.codes[name])], self._setup(batch), run, alone=alone)
        if error is None:
            self._prepared = (0, None)  # it was compared with itself: the child has to begin again
        else:
            self._checked.add(name)
        return error

    def _time_in_turn(self, batch: ArtifactBatch, right: Mapping[str, float]) -> dict[str, Outcome] | None:
        """Time those that were right; None when the child does not hold them any more.

        When it fails, each is timed by itself: one of them has spoilt it for the others, and only that tells which.
        """

        def run() -> dict[str, Any] | None:
            return self._contest(list(right)) if self._held(batch) >= set(right) else None

        artifacts = [_named(batch.codes[name]) for name in right]
        try:
            answer = self._guard.run(artifacts, self._setup(batch), run, alone=True)
        except _CHILD_ERRORS as error:
            _log.warning("a contest of %d failed, each is timed by itself: %s", len(right), error)
            return {name: self._time_by_itself(batch, name, right[name]) for name in right}
        return None if answer is None else {name: _timed(answer, name, error) for name, error in right.items()}

    def _time_by_itself(self, batch: ArtifactBatch, name: str, max_error: float) -> Outcome:
        def run() -> dict[str, Any]:
            self._load(batch, name)
            return self._contest([name])

        try:
            answer = self._guard.run([_named(batch.codes[name])], self._setup(batch), run, alone=True)
        except _CHILD_ERRORS as error:
            return _failure(error)
        return _timed(answer, name, max_error)

    def _contest(self, names: Sequence[str]) -> dict[str, Any]:
        answer: dict[str, Any] = self._child.call(
            "contest", _CONTEST_TIMEOUT_S, names=names, policy=self._final_policy.to_json()
        )
        return answer


def _named(code: bytes) -> str:
    """The name of an artifact: whoever runs the same bytes shares its verdict."""
    return hashlib.sha256(code).hexdigest()[:32]


def _timed(answer: Mapping[str, Any], name: str, max_error: float) -> Outcome:
    """A finalist's part of what a contest answered."""
    policy = TimingPolicy.from_json(answer["policy"][name])
    return Outcome(Status.OK, run_secs=tuple(answer["run_secs"][name]), policy=policy, max_error=max_error)


def _tolerance(batch: ArtifactBatch) -> float:
    """By the type of the last argument, which is an output."""
    return _TOLERANCES.get(batch.args_info[-1][1], 0.0)


def _failure(error: FractuneError) -> Outcome:
    if isinstance(error, Quarantined):
        return Outcome(error.status, str(error))
    status = {ChildTimeout: Status.RUN_TIMEOUT, ChildDied: Status.CRASHED}.get(type(error), Status.RUN_FAILED)
    return Outcome(status, str(error))


def _wrong(error: float, allowed: float) -> Outcome:
    cause = f"output differs from the untuned one by {error:.2g} of its largest value; {allowed:g} is allowed"
    return Outcome(Status.WRONG_OUTPUT, cause, policy=VALIDATION_POLICY, max_error=error)


def _without_reference(names: Iterable[str]) -> dict[str, Outcome]:
    cause = "the untuned operator itself could not be built or run here: nothing to compare with"
    return {name: Outcome(Status.RUN_FAILED, cause, policy=VALIDATION_POLICY) for name in names}
