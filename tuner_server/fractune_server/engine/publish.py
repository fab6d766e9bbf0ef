"""Publishing: a worker compiles the winners into a bundle, and the whole model is timed at every share."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from typing import Any

from fractune_core import __version__
from fractune_core.analysis.match import Match
from fractune_core.codec.plain_json import to_dict
from fractune_core.errors import QuotaExceeded
from fractune_core.files import bundles
from fractune_core.fleet.blobs import open_signed_pieces, put_signed_file, release_blobs, renew_blob, renew_signed_blob
from fractune_core.fleet.messages import Compiled, CompileWork, ModelTimed, TimeModelWork, VariantItem
from fractune_core.fleet.redis_names import COMPILE_QUEUE, bundle_blob, measure_queue
from fractune_core.jobs import JobState
from fractune_core.names import DEFAULT_TENANT, ROBUST_VARIANT, UNTUNED_VARIANT, WITH_GRAPHS, Collection, digest_of
from fractune_core.operators import DIRECT
from fractune_core.records import TuningRecord
from fractune_core.served import is_disturbed
from fractune_core.share_kinds import CUDA
from fractune_core.shares import Share
from fractune_server.engine.active_job import ActiveJob, SingleWork
from fractune_server.engine.ingest import CompileTurns
from fractune_server.engine.rounds import Rounds
from fractune_server.selection.model_match import best_by_goal, served_secs
from fractune_server.selection.variants import (
    Deployment,
    ValidatedOperator,
    Variant,
    measured_secs,
    variants_for,
    with_alternatives,
)
from fractune_server.transport.context import ServerContext
from fractune_server.transport.work_queues import WorkQueues, send_model

_COMPILE = SingleWork("compile")
_WRITING_S = 0.05
"""the engine waits at most this long for a bundle's file, and not for a file behind another one"""


class PublishPhase:
    """Not thread-safe: only the engine's thread calls it."""

    def __init__(self, context: ServerContext, queues: WorkQueues, rounds: Rounds, turns: CompileTurns) -> None:
        self._context = context
        self._queues = queues
        self._rounds = rounds
        self._turns = turns
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="bundles")
        self._last_writing: Future[None] | None = None

    def stop(self) -> None:
        """Wait until the bundle in progress is written."""
        self._writer.shutdown()

    def compile(self, job: ActiveJob) -> None:
        """Request the bundle. If the same bundle exists, take it with its known times.

        The job waits while its token has its pieces in the queue.
        """
        if _COMPILE in job.requested or not self._turns.is_free(job):
            return
        deployment, every = self._deployment(job), self._operators(job)
        operators = [op for op in every if op.weight]
        spec = job.stored.spec
        variants = variants_for(deployment, operators, spec.ranges, robust_only=spec.variants == ROBUST_VARIANT)
        twins = with_alternatives(deployment, [op for op in every if not op.weight], variants)
        made = [*variants, *twins]
        items = with_graphs([VariantItem(variant.name, variant.traces) for variant in made], job.shares)
        bundle = bundle_id(job, items)
        if self._context.files.has_bundle(bundle):
            if not job.stored.spec.rerank:  # a rerank measures again
                job.stored.timings = self._known_timings(job, bundle)
            self._take_bundle(job, bundle)
            return
        work_id = job.work_id(_COMPILE)
        if not self._queues.has(work_id):
            self._send_model(job, job.stored.spec.model)
            measured = measured_secs(deployment, operators, variants)
            choosing = measured_secs(deployment, operators, variants, choosing=True)
            work = CompileWork(
                work_id=work_id,
                job=job.id,
                tenant=job.stored.tenant,
                model=job.stored.spec.model,
                model_name=job.stored.spec.model_name,
                owner=job.stored.token,
                inputs=job.stored.spec.inputs,
                target=job.stored.target,
                bundle=bundle,
                manifest=_manifest(job, made, measured, choosing),
                variants=items,
                records=[_named(job, record).to_json() for record in _published(made)],
                check_inputs=self._sent_inputs(job),
            )
            self._queues.enqueue(COMPILE_QUEUE, work)
        job.note_requested(_COMPILE)
        self._turns.take(job)

    def _sent_inputs(self, job: ActiveJob) -> str:
        """The SHA-256 of the arrays on which the bundle is checked, put where workers find them; empty for none."""
        if not job.stored.spec.check_inputs:
            return ""
        sha256 = Collection.MODELS.parse(job.stored.spec.check_inputs)
        self._send_model(job, sha256)
        return sha256

    def _send_model(self, job: ActiveJob, sha256: str) -> None:
        send_model(self._context.redis, self._context.view_of(job.stored.tenant), sha256)

    def take_compiled(self, job: ActiveJob, event: Compiled) -> None:
        """Store the bundle after a check of its signature. Raises Unsigned, NotFound or QuotaExceeded."""
        bundle = event.bundle
        if not self._context.files.has_bundle(bundle):  # else another job made it, and its blob may be gone
            pieces = open_signed_pieces(self._context.redis, self._context.secret, bundle_blob(bundle))
            self._context.files.add_bundle(bundle, pieces, partial(self._count_bytes, job, bundle))
            job.bundle_sent = True
        self._take_bundle(job, bundle)

    def _count_bytes(self, job: ActiveJob, bundle: str, size_bytes: int) -> None:
        """Raises QuotaExceeded if the job's token may not store so many bytes more."""
        try:
            self._context.store.tokens.add_bundle(job.stored.token, bundle, size_bytes, job.stored.tenant)
        except QuotaExceeded:
            release_blobs(self._context.redis, [bundle_blob(bundle)])
            raise

    def time(self, job: ActiveJob) -> None:
        """Request the missing timings, one share after the other, because the model is timed alone."""
        waiting = [share for share in job.timed_shares if share not in job.stored.timings]
        if not waiting:
            self._end(job)
            return
        share = waiting[0]
        timing = SingleWork("time_model", share)
        if timing in job.requested:
            return
        work_id = job.work_id(timing)
        if not self._queues.has(work_id):
            self._send_bundle(job)
            work = TimeModelWork(
                work_id=work_id, job=job.id, tenant=job.stored.tenant, share=share, bundle=job.stored.bundle
            )
            queue = measure_queue(job.stored.device.key, share)
            self._queues.enqueue(queue, work, at_front=self._rounds.goes_first(job))
        job.note_requested(timing)

    def take_timed(self, job: ActiveJob, event: ModelTimed) -> None:
        if event.share in job.timed_shares:
            job.stored.timings[event.share] = {
                "granted": event.granted.to_json(),
                "run_secs": event.run_secs,
                "max_error": event.max_error,
                "untuned_sum_s": event.untuned_sum_s,
                "at_load": event.at_load,
                "others_cores": event.others_cores,
                "inside": event.inside,
                "job": job.id,
                "timed_at": time.time(),
            }
            job.dirty = True

    def _end(self, job: ActiveJob) -> None:
        """Write the times into the bundle, then end the job. Another thread writes, because it copies the file."""
        if job.bundle_writing is None:
            timings = job.stored.timings
            timed = {share: served_secs(timings[share], share) for share in job.shares}
            served = {share: found for share, timing in timings.items() if (found := _served(timing))}
            others_cores = {share: timings[share].get("others_cores", 0.0) for share in job.shares}
            is_next = self._last_writing is None or self._last_writing.done()
            job.bundle_writing = self._writer.submit(
                self._context.files.add_times, job.stored.bundle, timed, others_cores, served
            )
            self._last_writing = job.bundle_writing
            if is_next:
                wait([job.bundle_writing], _WRITING_S)
        if job.bundle_writing.done():
            job.bundle_writing.result()
            job.end(JobState.DONE)

    def _take_bundle(self, job: ActiveJob, bundle: str) -> None:
        job.stored.bundle = bundle
        job.stored.checked = self._context.files.checked(bundle)
        if job.stored.checked is not None:
            job.note(job.stored.checked.line)
        job.enter(JobState.TIMING)

    def _send_bundle(self, job: ActiveJob) -> None:
        """Put the signed bundle where the measuring workers find it.

        Redis returns the whole bundle for a check of its signature, so a job checks it only once: here, or when it was
        compiled.
        """
        redis, secret, blob = self._context.redis, self._context.secret, bundle_blob(job.stored.bundle)
        if not (renew_blob(redis, blob) if job.bundle_sent else renew_signed_blob(redis, secret, blob)):
            put_signed_file(redis, secret, blob, self._context.files.bundle_path(job.stored.bundle))
        job.bundle_sent = True

    def _known_timings(self, job: ActiveJob, bundle: str) -> dict[str, dict[str, Any]]:
        """Those of the newest job with the bundle that no other program disturbed."""
        known = self._context.store.jobs.timings(bundle, job.stored.device, job.stored.granted)
        return {share: timing for share, timing in known.items() if not is_disturbed(timing["others_cores"])}

    def _deployment(self, job: ActiveJob) -> Deployment:
        return Deployment(job.stored.device.key, job.stored.target_key, job.stored.tuned_at)

    def _operators(self, job: ActiveJob) -> list[ValidatedOperator]:
        spec, stored = job.stored.spec, job.stored
        hashes = (op.workload_hash for op in job.operators)
        shared = self._context.store.log.validated_of(hashes, stored.pool, stored.tenant)
        own = {name: records.of_job(job.id) for name, records in shared.items()} if spec.fresh else shared
        validated = {name: records.exact if spec.exact else records for name, records in own.items()}
        return [ValidatedOperator(op.workload_hash, op.weight, validated[op.workload_hash]) for op in job.operators]


def with_graphs(variants: list[VariantItem], shares: Sequence[str]) -> list[VariantItem]:
    """The variants, and where one of the shares confines a whole process on a GPU, each tuned one with CUDA graphs too.

    A green context confines a stream, and a graph is captured on another one.
    """
    kinds = [Share.parse(share).kind for share in shares]
    if not any(kind.device_kind == CUDA and kind.serves for kind in kinds):
        return variants
    tuned = [each for each in variants if each.name != UNTUNED_VARIANT]
    return [*variants, *(VariantItem(each.name + WITH_GRAPHS, each.traces) for each in tuned)]


def bundle_id(job: ActiveJob, variants: list[VariantItem]) -> str:
    """32 hex digits. The id depends on the version, model, shapes, target, shares and schedules.

    It also depends on the tenant, the namespace of the records, the inputs on which it is checked and skipped shares;
    for a fresh job on the job.
    """
    spec = job.stored.spec
    parts = [
        __version__,
        bundles.FORMAT,
        spec.model,
        spec.inputs,
        job.stored.target,
        sorted(job.stored.granted),
        list(map(to_dict, variants)),
        *([spec.namespace, job.id if spec.fresh else ""] if spec.namespace or spec.fresh else []),
        *([{"tenant": job.stored.tenant}] if job.stored.tenant != DEFAULT_TENANT else []),
        *([spec.check_inputs] if spec.check_inputs else []),
        *([sorted(spec.skipped_shares)] if spec.skipped_shares else []),
    ]
    return digest_of(*parts)


def _served(timing: Mapping[str, Any]) -> dict[str, Any]:
    """The best variant by goal, as JSON; empty if it is not known."""
    return {goal: best.served.to_json() for goal, best in best_by_goal(timing).items()}


def _published(variants: Sequence[Variant]) -> list[TuningRecord]:
    """The records behind the variants, each once."""
    records = (match.record for variant in variants for match in variant.matches.values())
    return list({record.record_id: record for record in records if record is not None}.values())


def _named(job: ActiveJob, record: TuningRecord) -> TuningRecord:
    """The record as the job's tenant knows it: one that another tenant shares has no names of its own."""
    name = record.operator or job.operator(record.workload_hash).name
    return replace(record, operator=name, namespace=job.stored.spec.namespace)


def _manifest(
    job: ActiveJob,
    variants: Sequence[Variant],
    measured: dict[str, dict[str, float]],
    choosing: dict[str, dict[str, float]],
) -> dict[str, Any]:
    stored = job.stored
    limits = {share: each.to_json() for share, each in stored.granted.items() if share not in stored.tuned_at}
    return {
        "model": {"name": stored.spec.model_name, "sha256": stored.spec.model},
        "device": stored.device.to_json(),
        "target": stored.target,
        "target_key": stored.target_key,
        "job": job.id,
        "created_at": stored.created_at,
        "shares": {share: granted.to_json() for share, granted in stored.tuned_at.items()},
        **({"limits": limits} if limits else {}),
        **({"skipped_shares": stored.spec.skipped_shares} if stored.spec.skipped_shares else {}),
        "measured": measured,
        "choosing": choosing,
        "operators": [
            {
                "name": op.name,
                "weight": op.weight,
                "workload_hash": op.workload_hash,
                "untuned_s": dict(op.untuned_s),
                "by_variant": {
                    variant.name: _choice(variant.matches[op.workload_hash])
                    for variant in variants
                    if op.workload_hash in variant.matches
                },
            }
            for op in job.operators
        ],
    }


def _choice(match: Match) -> dict[str, Any]:
    return {
        "record": None if match.record is None else match.record.record_id,
        "implementation": DIRECT if match.record is None else match.record.implementation,
        "how": match.how.value,
        "regret": match.regret,
        "reason": match.reason,
    }
