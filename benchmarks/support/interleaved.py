"""Candidates of several tuners against each other: built again, checked for correct output, timed interleaved.

Nothing else may run on the machine meanwhile; core locks keep other fractune processes of this user away.
"""

import math
import statistics
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from benchmarks.support.models import Operator
from benchmarks.support.processes import import_path
from fractune_core.operators import implementation_of
from fractune_core.records import UNTUNED
from fractune_core.shares import Share
from fractune_workers.builder_process import BuilderProcess
from fractune_workers.child import Child
from fractune_workers.confinement import confinement_for
from fractune_workers.confinement.cpu import CpuConfinement
from fractune_workers.locks.core_locks import CoreLocks, default_lock_dir
from fractune_workers.measuring.session import ArtifactBatch, MeasurementSession
from fractune_workers.measuring.validation import validate

TIMINGS = 3
"""timings of each operator; each times every finalist as often as a validation does (9 times, slow ones less often)"""
_BUILD_LIMIT_CPU_S = 60
_BUNDLES_TIMEOUT_S = 1800.0
_UNTUNED_NAME = "untuned"

_Label = TypeVar("_Label", bound=Hashable)


def median_secs(
    operator: Operator, traces: Mapping[str, str], target: str, session: MeasurementSession, cores: Sequence[int]
) -> dict[str, float]:
    """Median seconds of each finalist, as `interleaved_secs` times them; infinite for one that fails."""
    run_secs = interleaved_secs(operator, traces, target, session, cores)
    return {label: statistics.median(secs) for label, secs in run_secs.items()}


def interleaved_secs(
    operator: Operator, traces: Mapping[str, str], target: str, session: MeasurementSession, cores: Sequence[int]
) -> dict[str, list[float]]:
    """All repeats in seconds of each finalist, named as in `traces`, interleaved; infinite for one that fails or
    gives wrong output.

    `target` is TVM's target as JSON. The untuned operator takes part: it is what outputs are compared with.
    """
    return interleaved_secs_of({operator: traces}, target, session, cores)


def interleaved_secs_of(
    finalists: Mapping[Operator, Mapping[_Label, str]], target: str, session: MeasurementSession, cores: Sequence[int]
) -> dict[_Label, list[float]]:
    """The same for several operators with different arguments. The operators alternate, timing by timing, and so do the
    candidates of each operator. No label may be of two operators.
    """
    entries = [_Entry(operator, traces, target) for operator, traces in finalists.items()]
    for turn in range(TIMINGS):
        for entry in reversed(entries) if turn % 2 else entries:
            with CoreLocks(default_lock_dir()).measuring(cores):
                entry.time(session)
    return {label: secs for entry in entries for label, secs in entry.run_secs().items()}


class _Entry(Generic[_Label]):
    """The candidates of one operator."""

    def __init__(self, operator: Operator, traces: Mapping[_Label, str], target: str) -> None:
        self._traces = traces
        self._names = {trace: f"candidate{index}" for index, trace in enumerate(dict.fromkeys(traces.values()))}
        texts = {_UNTUNED_NAME: UNTUNED, **{name: trace for trace, name in self._names.items()}}
        self._batch = _build(operator, texts, target)
        self._secs: dict[str, list[float]] = {name: [] for name in self._names.values()}

    def time(self, session: MeasurementSession) -> None:
        outcomes = validate(session, self._batch, _UNTUNED_NAME)
        for name, secs in self._secs.items():
            secs.extend(outcomes[name].run_secs or (math.inf,))

    def run_secs(self) -> dict[_Label, list[float]]:
        return {label: self._secs[self._names[trace]] for label, trace in self._traces.items()}


def open_session(share: str) -> tuple[MeasurementSession, list[int]]:
    """A confined child for `share`, and its cores; a share of a GPU has none."""
    wanted = Share.parse(share)
    cores = CpuConfinement(wanted).cores if wanted.mechanism == "cpu" else []
    return MeasurementSession(wanted, cores), cores


def _build(operator: Operator, traces: Mapping[str, str], target: str) -> ArtifactBatch:
    process = BuilderProcess()
    try:
        args_info = process.learn(operator.workload_hash, target, lambda: operator.workload)
        codes = {
            name: process.build(operator.workload_hash, target, trace, _BUILD_LIMIT_CPU_S).code
            for name, trace in traces.items()
        }
    finally:
        process.stop()
    return ArtifactBatch(args_info, 0, codes, {name: implementation_of(trace) for name, trace in traces.items()})


def time_bundles(share: str, finalists: Sequence[tuple[Path, str]], turns: int) -> list[list[float]]:
    """Seconds of one inference, `turns` times, of each (bundle, variant), all interleaved, in one child at `share`."""
    confinement = confinement_for(Share.parse(share))
    cores = CpuConfinement(Share.parse(share)).cores
    child = Child(
        "benchmarks.support.bundles_child",
        [share, ",".join(map(str, cores))],
        env={**confinement.environment(), "PYTHONPATH": import_path()},
    )
    entries = [[str(path), variant] for path, variant in finalists]
    try:
        with CoreLocks(default_lock_dir()).measuring(cores):
            timed: list[list[float]] = child.call("time", _BUNDLES_TIMEOUT_S, finalists=entries, turns=turns)
    finally:
        child.stop()
    return timed
