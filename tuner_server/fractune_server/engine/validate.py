"""Validation: finalists of every operator are checked for correct output, and timed again.

They are timed alone on the device, interleaved with the untuned default.
"""

import uuid
from collections.abc import Iterable

from fractune_core.analysis.validated import choosing_order
from fractune_core.errors import NotFound
from fractune_core.fleet.messages import BuildWork, CandidateItem, WorkFailed
from fractune_core.fleet.redis_names import BUILD_QUEUE, SERVER_STREAM
from fractune_core.jobs import JobState
from fractune_core.records import Kind, Status, TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.engine.rounds import LiveRound, Rounds
from fractune_server.scheduler import finalists
from fractune_server.store.jobs import Round, StoredOperator
from fractune_server.store.records.log import LogKey
from fractune_server.transport.context import ServerContext, reported_error

_PASSES = 3
"""limit of validation rounds of an operator in a job; after each, the next best replace the failed finalists"""


class ValidatePhase:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, context: ServerContext, rounds: Rounds) -> None:
        self._log = context.store.log
        self._rounds = rounds

    def advance(self, job: ActiveJob) -> None:
        """Start the missing validations. Begin compiling when every operator is validated."""
        own = [live for live in self._rounds.validations() if job.id in live.subscribers]
        if not job.validation_began and not own:
            self._begin(job)
        job.validation_began = True
        under_way = {live.stored.workload_hash for live in own}
        for operator in job.selected:
            name = operator.workload_hash
            if name not in job.validated | under_way and not self._is_validated_elsewhere(job, name):
                self._validate(job, operator)
        if all(operator.workload_hash in job.validated for operator in job.selected):
            job.enter(JobState.COMPILING)

    def _is_validated_elsewhere(self, job: ActiveJob, workload_hash: str) -> bool:
        """Whether another job's round measures finalists of the operator at a share of this job.

        The log will then show what is left to do.
        """
        key, shares = job.log_key(workload_hash), set(job.shares)
        return any(live.key == key and live.is_due(shares) for live in self._rounds.validations())

    def take_failed(self, job: ActiveJob, live: LiveRound, event: WorkFailed) -> None:
        """The finalists could not be built or measured. Raises the error after the last round that is allowed."""
        if job.validations[live.stored.workload_hash] >= _PASSES:
            raise reported_error(event)
        self._rounds.end(live)

    def _begin(self, job: ActiveJob) -> None:
        """Skip operators that cannot matter to the model. A rerank skips none."""
        if job.stored.spec.rerank:
            self._check_known(job)
            return
        known = self._earlier(job, [op.workload_hash for op in job.selected])
        best = {name: self._best(job, name, earlier) for name, earlier in known.items()}
        worth, lengths_ms = set[str](), list[dict[str, float]]()
        for share in job.share_keys:
            outlooks = {
                op.workload_hash: finalists.outlook(
                    op.search_weight, best[op.workload_hash][share], known[op.workload_hash], share
                )
                for op in job.selected
            }
            worth |= finalists.worth_validating(outlooks)
            lengths_ms.append(finalists.short_repeats_ms(outlooks))
        # Short at all shares, and as long as the share needs at which the operator matters most.
        job.repeats_ms = {
            name: max(each[name] for each in lengths_ms) for name in set.intersection(*map(set, lengths_ms))
        }
        for operator in job.selected:
            if operator.workload_hash not in worth:
                self._end(job, operator, known[operator.workload_hash])

    def _validate(self, job: ActiveJob, operator: StoredOperator) -> None:
        """Take the validations from the log, or start a round for the missing ones."""
        name = operator.workload_hash
        earlier = self._earlier(job, [name])[name]
        count = job.stored.spec.rerank or finalists.BEST_PER_SHARE
        chosen = finalists.finalists(self._best(job, name, earlier), earlier, job.untuned(name), count)
        if finalists.is_settled(chosen, earlier, job.share_keys) or job.validations[name] >= _PASSES:
            self._end(job, operator, earlier)
            return
        job.validations[name] += 1
        self._start(job, operator, chosen)

    def _earlier(self, job: ActiveJob, workload_hashes: Iterable[str]) -> dict[str, list[TuningRecord]]:
        """Validations of each operator in the log, by any job."""
        found = self._log.validated_of(workload_hashes, job.stored.pool, job.stored.tenant)
        return {
            name: [record for record in validated.records if job.log_key(name).has(record)]
            for name, validated in found.items()
        }

    def _end(self, job: ActiveJob, operator: StoredOperator, earlier: list[TuningRecord]) -> None:
        job.validated.add(operator.workload_hash)
        _copy_times(job, operator, earlier)

    def _best(self, job: ActiveJob, workload_hash: str, earlier: list[TuningRecord]) -> dict[str, list[TuningRecord]]:
        """The fastest trials by share key, enough to choose the finalists from."""
        refused = {record.candidate_id for record in earlier if record.status is not Status.OK}
        rerank = job.stored.spec.rerank
        key, count = job.log_key(workload_hash), rerank or finalists.BEST_PER_SHARE
        shares = self._shares_known(job, key) if rerank else job.share_keys
        return {share: self._log.best_trials(key, share, count + len(refused)) for share in shares}

    def _shares_known(self, job: ActiveJob, key: LogKey) -> list[str]:
        """Keys of the shares that the operator was tuned at, of the job's mechanisms."""
        mechanisms = sorted({granted.mechanism for granted in job.stored.tuned_at.values()})
        return [share for each in mechanisms for share in self._log.share_keys(key, each)]

    def _check_known(self, job: ActiveJob) -> None:
        """Raises NotFound if the log has no trials of operators that matter to the model."""
        weights = {op.workload_hash: op.weight for op in job.selected}
        known = [name for name in weights if self._shares_known(job, job.log_key(name))]
        if finalists.tuned_part(weights, self._log.arithmetic(weights), known) < finalists.NEGLIGIBLE:
            names = ", ".join(job.operator(name).name for name in known)
            raise NotFound(
                f"the log holds no trial of {job.stored.spec.model_name} on this device for this target"
                f"{f' (only of {names}, a negligible part of the model)' if known else ''}; "
                "tune it first by 'fractune tune'"
            )

    def _start(self, job: ActiveJob, operator: StoredOperator, chosen: dict[str, str]) -> None:
        round_id = uuid.uuid4().hex
        name, at_front = operator.workload_hash, self._rounds.goes_first(job)
        work = BuildWork(
            work_id=round_id,
            job=job.id,
            tenant=job.stored.tenant,
            round=job.work_round(round_id, name, at_front=at_front, repeat_ms=job.repeats_ms.get(name)),
            purpose=Kind.VALIDATION,
            device_key=job.stored.device.key,
            shares=job.shares,
            candidates=[CandidateItem(name, trace) for name, trace in chosen.items()],
            reply=SERVER_STREAM,
        )
        stored = Round(round_id, job.id, Kind.VALIDATION, operator.workload_hash, "", len(chosen))
        stored.granted = job.stored.tuned_at
        key = job.log_key(operator.workload_hash)
        live = LiveRound(stored, key, job.stored.device, job.stored.tenant, {job.id: job})
        live.propose(chosen)
        self._rounds.start(live, BUILD_QUEUE, [work])


def _copy_times(job: ActiveJob, operator: StoredOperator, validations: list[TuningRecord]) -> None:
    """Copy an operator's validated times to the job. The newest measurement of each finalist counts.

    The repeats for selection choose the fastest finalist; its other repeats are reported.
    """
    untuned = job.untuned(operator.workload_hash)
    for share, granted in job.stored.tuned_at.items():
        newest: dict[str, TuningRecord] = {}
        for record in sorted(validations, key=lambda record: record.measured_at):
            if record.granted.key == granted.key and record.status is Status.OK:
                newest[record.candidate_id] = record
        if newest:
            operator.best_s[share] = min(newest.values(), key=choosing_order).median_s
        if untuned in newest:
            operator.untuned_s[share] = newest[untuned].median_s
    job.dirty = True
