"""Build: candidates -> signed artifacts on the queue of every share asked for. Built once, measured at K shares."""

import math
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from fractune_core.errors import as_message
from fractune_core.fleet.blobs import has_blob
from fractune_core.fleet.messages import BuildWork, CandidateItem, MeasureWork
from fractune_core.fleet.redis_names import BUILD_QUEUE, artifact_blob, kernel_blob, measure_queue
from fractune_core.records import UNTUNED, ArtifactItem, Kind, Status
from fractune_workers.builder_process import LIMIT_CPU_S, BuilderProcess, BuiltCandidate, build_failure
from fractune_workers.child.errors import CALL_ERRORS, retry_if_killed
from fractune_workers.context import WorkerContext
from fractune_workers.roles import Role

_LONGEST_S, _LONGEST_VALIDATED_S = LIMIT_CPU_S, 60
_TIMES_ANY, _SHORTEST_ANY_S = 8, 2
_TIMES_OWN, _SHORTEST_OWN_S = 4, 1
_KNOWN = 4
_WINDOW = 64
_KEPT_S = 900
"""how long a finalist's code is kept for the bundle"""


class Deadline:
    """CPU time that the build of a trial may take: four times the median of the operator's builds, or eight times that
    of all builds while the operator has few. A longer build is unrolled beyond reason, and the builds after it wait.
    """

    def __init__(self) -> None:
        self._any: deque[float] = deque(maxlen=_WINDOW)
        self._own: defaultdict[str, deque[float]] = defaultdict(lambda: deque(maxlen=_WINDOW))

    def note(self, workload_hash: str, build_secs: float) -> None:
        self._any.append(build_secs)
        self._own[workload_hash].append(build_secs)

    def limit_cpu_s(self, workload_hash: str) -> int:
        """Whole seconds: the kernel counts no others."""
        own = self._own[workload_hash]
        if len(own) >= _KNOWN:
            return _limit(own, _TIMES_OWN, _SHORTEST_OWN_S)
        return _limit(self._any, _TIMES_ANY, _SHORTEST_ANY_S)


def _limit(secs: Collection[float], times: int, shortest_s: int) -> int:
    usual_s = statistics.median(secs) if secs else _LONGEST_S
    return min(_LONGEST_S, max(shortest_s, math.ceil(times * usual_s)))


class Builder(Role):
    def __init__(
        self, context: WorkerContext, memory_bytes: int | None = None, secret_files: Sequence[Path] = ()
    ) -> None:
        """Its child cannot read `secret_files`."""
        self._context = context
        self._deadline = Deadline()
        self._process = BuilderProcess(memory_bytes, secret_files)

    def warm_up(self) -> None:
        self._context.load(self._process.child)
        self._process.child.log_lacking("compiles candidates")

    def queue(self) -> str:
        return BUILD_QUEUE

    def stop(self) -> None:
        self._process.stop()

    def handle(self, work: BuildWork) -> None:
        transaction = self._context.transaction(work)
        artifacts: list[ArtifactItem] = []
        for item in work.candidates:
            if work.round.validates and item.trace == UNTUNED and artifacts[0].status is not Status.OK:
                continue  # the one candidate could not be built: there is nothing to compare
            with self._context.computing(self._process.child):
                artifact, code, kernel = self._build(work, item)
            artifacts.append(artifact)
            if code:
                transaction.blob(artifact_blob(work.round.id, item.candidate), code)
            # No process that has built for other tenants makes code for a tenant's bundle.
            if kernel and work.purpose is Kind.VALIDATION and self._process.tenants == {work.tenant}:
                transaction.blob(kernel_blob(work.tenant, item.candidate), kernel.encode() + b"\n" + code, _KEPT_S)
        args_info = retry_if_killed(lambda: self._learn(work))
        for place, share in enumerate(work.shares):
            measure = _measure_work(work, place, args_info, artifacts)
            transaction.enqueue(measure_queue(work.device_key, share), measure)
        transaction.send()

    def _build(self, work: BuildWork, item: CandidateItem) -> tuple[ArtifactItem, bytes, str]:
        """Build one candidate: its code, and what names its kernel. The item names the cause of a failure."""
        before = item.built
        if before is not None and has_blob(self._context.redis, artifact_blob(work.round.id, item.candidate)):
            return _artifact(item, Status.OK, "", before.build_secs, before.versions), b"", ""
        try:
            built = retry_if_killed(lambda: self._build_once(work, item.trace))
        except CALL_ERRORS as error:
            return _artifact(item, *build_failure(error)), b"", ""
        if built.status is Status.OK:
            self._deadline.note(work.round.operator.workload_hash, built.build_secs)
        artifact = _artifact(item, built.status, built.cause, built.build_secs, built.versions)
        return artifact, built.code, built.kernel

    def _build_once(self, work: BuildWork, trace: str) -> BuiltCandidate:
        operator = work.round.operator
        self._learn(work)
        return self._process.build(operator.workload_hash, operator.target, trace, self._limit_cpu_s(work, trace))

    def _limit_cpu_s(self, work: BuildWork, trace: str) -> int:
        # A finalist was built in time before: the present median must not cost a winner its place. The untuned default
        # was not built before, and without it nothing is published: a GPU's may be unrolled far.
        if work.purpose is Kind.VALIDATION and (trace == UNTUNED or not work.round.validates):
            return _LONGEST_VALIDATED_S
        return self._deadline.limit_cpu_s(work.round.operator.workload_hash)

    def _learn(self, work: BuildWork) -> list[Any]:
        """The workload's argument descriptions, once the present child knows it."""
        name, target = work.round.operator.workload_hash, work.round.operator.target
        return self._process.learn(name, target, lambda: self._context.workload(name), work.tenant)


def _artifact(
    item: CandidateItem, status: Status, cause: str, build_secs: float = 0.0, versions: dict[str, str] | None = None
) -> ArtifactItem:
    """The cause may be a compiler's message, with any bytes in it."""
    return ArtifactItem(item.candidate, item.trace, status, as_message(cause), build_secs, versions or {})


def _measure_work(work: BuildWork, place: int, args_info: list[Any], artifacts: list[ArtifactItem]) -> MeasureWork:
    return MeasureWork(
        work_id=f"{work.work_id}-m{place}",  # not random: see `roles/tune.py`
        job=work.job,
        tenant=work.tenant,
        round=work.round,
        purpose=work.purpose,
        share=work.shares[place],
        args_info=args_info,
        candidates=artifacts,
        reply=work.reply,
    )
