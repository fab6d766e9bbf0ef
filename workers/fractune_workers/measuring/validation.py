"""Validation: the finalists of an operator are checked against the untuned default, then timed interleaved.

How far an output may be from the reference follows from its type (`children/measuring/quantized_outputs.py`). All
must be in one child. A new child checks those that were right again.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from fractune_core.codec.plain_json import from_json
from fractune_core.records import VALIDATION_POLICY, Status
from fractune_workers.measuring.session import CHILD_ERRORS, LOAD_TIMEOUT_S, ArtifactBatch, MeasurementSession, Outcome

_CHECK_TIMEOUT_S, _UNTUNED_TIMEOUT_S = 60.0, 600.0
"""of a finalist's check, and of the untuned default's: of a large convolution that takes 10 s on a core of its own"""
_TIMING_TIMEOUT_S = 900.0

_log = logging.getLogger(__name__)


def validate(session: MeasurementSession, batch: ArtifactBatch, untuned: str) -> dict[str, Outcome]:
    """The outcomes of one `validation`."""
    return validation(session, batch, untuned)()


def validation(session: MeasurementSession, batch: ArtifactBatch, untuned: str) -> Callable[[], dict[str, Outcome]]:
    """A function that checks every finalist's output against that of `untuned`, then times those that were right, one
    repeat each a round. A second call checks only finalists that failed, or that the child no longer holds.
    """
    if untuned not in batch.codes:
        return lambda: _without_reference(batch.codes)
    return _Validation(session, batch, untuned).outcomes


def failures(session: MeasurementSession, batch: ArtifactBatch, untuned: str) -> dict[str, Outcome]:
    """The candidates that fail, or compute something else than `untuned`: all, if that one fails."""
    return _Validation(session, batch, untuned).failures()


class _Validation:
    """One validation of one batch."""

    def __init__(self, session: MeasurementSession, batch: ArtifactBatch, untuned: str) -> None:
        self._session = session
        self._batch = batch
        self._untuned = untuned
        self._names = sorted(batch.codes, key=lambda name: name != untuned)
        """the reference first"""
        self._right: dict[str, dict[str, Any]] = {}
        """differences to the reference"""
        self._failed: dict[str, Outcome] = {}
        self._checked: tuple[int, frozenset[str]] = (0, frozenset())
        """finalists that were compared with the reference in one child, and the session's preparation of it"""

    def failures(self) -> dict[str, Outcome]:
        self._check_all()
        return (_without_reference(self._names) if self._untuned in self._failed else {}) | self._failed

    def outcomes(self) -> dict[str, Outcome]:
        self._failed = {}
        while True:
            self._check_all()
            if self._untuned in self._failed:
                return _without_reference(self._names) | self._failed
            timed = self._time_interleaved()
            if timed is not None:
                return timed | self._failed

    def _check_all(self) -> None:
        """Check finalists, until the present child holds all that are right and the others have failed; or until the
        reference itself has failed.
        """
        tried = set[str]()
        while missing := [name for name in self._names if name not in self._failed and not self._is_right(name)]:
            self._check_next(missing[0], tried)
            if self._untuned in self._failed:
                return

    def _is_right(self, name: str) -> bool:
        """Whether the present child holds the finalist, and its output was right."""
        return name in self._right and name in self._held()

    def _check_next(self, name: str, tried: set[str]) -> None:
        """`tried`: finalists that lost their child before, and run alone now."""
        self._right.pop(name, None)
        try:
            found = self._check(name, alone=name in tried)
        except CHILD_ERRORS as failure:
            self._failed[name] = Outcome.of(failure)
            return
        if found is None:
            tried.add(name)
        elif found["beyond_ties"] > found["allowed"]:
            self._failed[name] = _wrong(found)
        else:
            self._right[name] = found

    def _check(self, name: str, *, alone: bool) -> dict[str, Any] | None:
        """The finalist's difference to the reference; None when its child does not hold the reference."""

        def check() -> dict[str, Any] | None:
            is_comparable = name == self._untuned or self._untuned in self._held()
            self._load(name)
            timeout_s = _UNTUNED_TIMEOUT_S if name == self._untuned else _CHECK_TIMEOUT_S
            found: dict[str, Any] = self._session.call("check", timeout_s, name=name)
            return found if is_comparable else None

        found = self._session.run([self._batch.codes[name]], self._batch, check, alone=alone)
        if found is None:
            self._session.forget_batch()  # it was compared with itself
        else:
            self._checked = (self._session.preparation, self._held() | {name})
        return found

    def _held(self) -> frozenset[str]:
        """Checked finalists that the present child holds."""
        preparation, names = self._checked
        is_same = self._session.is_prepared(self._batch) and self._session.preparation == preparation
        return names if is_same else frozenset()

    def _time_interleaved(self) -> dict[str, Outcome] | None:
        """Time those that were right; None when the child no longer holds them.

        When that fails, each is timed by itself, which shows the one that made the others fail.
        """

        def time() -> dict[str, Any] | None:
            return self._interleaved(list(self._right)) if self._held() >= set(self._right) else None

        codes = [self._batch.codes[name] for name in self._right]
        try:
            answer = self._session.run(codes, self._batch, time, alone=True)
        except CHILD_ERRORS as error:
            _log.warning("timing %d finalists failed, each is timed by itself: %s", len(self._right), error)
            return {name: self._time_by_itself(name) for name in self._right}
        return None if answer is None else {name: self._timed(answer, name) for name in self._right}

    def _time_by_itself(self, name: str) -> Outcome:
        def time() -> dict[str, Any]:
            self._load(name)
            return self._interleaved([name])

        try:
            answer = self._session.run([self._batch.codes[name]], self._batch, time, alone=True)
        except CHILD_ERRORS as error:
            return Outcome.of(error)
        return self._timed(answer, name)

    def _load(self, name: str) -> None:
        """Load a kernel into the present child."""
        code, implementation = self._batch.codes[name], self._batch.implementation(name)
        self._session.call("load", LOAD_TIMEOUT_S, name=name, code=code, implementation=implementation)

    def _interleaved(self, names: Sequence[str]) -> dict[str, Any]:
        policy = self._batch.repeated(self._session.validation_policy)
        options = {"names": names, "reference": self._untuned, "policy": policy.to_json()}
        answer: dict[str, Any] = self._session.call("time_interleaved", _TIMING_TIMEOUT_S, **options)
        return answer

    def _timed(self, answer: Mapping[str, Any], name: str) -> Outcome:
        """A finalist's part of the answer."""
        own = {
            "run_secs": answer["run_secs"][name],
            "cpu_secs": answer["cpu_secs"][name],
            "policy": answer["policy"][name],
            "max_error": self._right[name]["max_error"],
        }
        return from_json(Outcome, {**answer, **own, "status": Status.OK})


def _wrong(found: Mapping[str, Any]) -> Outcome:
    """`found`: as of `MeasurerChild.check`."""
    error, steps, allowed = found["max_error"], found["steps"], found["allowed"]
    cause = f"output differs from the reference by {error:.2g} of its largest value; {allowed:.2g} is allowed"
    if steps:
        cause = (
            f"output differs from the reference in {found['moved']:.1%} of its values, by up to {steps} steps of its "
            "quantization; one step in 1 % is allowed"
        )
    return Outcome(Status.WRONG_OUTPUT, cause, policy=VALIDATION_POLICY, max_error=error)


def _without_reference(names: Iterable[str]) -> dict[str, Outcome]:
    cause = "the untuned operator itself could not be built or run here, or was wrong: nothing to compare with"
    return {name: Outcome(Status.RUN_FAILED, cause, policy=VALIDATION_POLICY) for name in names}
