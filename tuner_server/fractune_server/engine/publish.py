"""Publishing: the winners are compiled into a bundle, and the whole model is timed at every share."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from typing import Any

from fractune_core import bundles
from fractune_core.analysis.match import Match
from fractune_core.blobs import get_blob, has_blob, open_signed, put_blob, sign
from fractune_core.jobs import JobState
from fractune_core.messages import (
    COMPILE_QUEUE,
    Compiled,
    CompileWork,
    ModelTimed,
    TimeModelWork,
    VariantItem,
    measure_queue,
)
from fractune_core.names import ROBUST_VARIANT
from fractune_core.records import TuningRecord
from fractune_server.engine.active_job import ActiveJob
from fractune_server.selection.variants import Deployment, ValidatedOperator, Variant, measured_secs, variants_for
from fractune_server.transport.context import ServerContext
from fractune_server.transport.outgoing import send_model
from fractune_server.transport.work_queues import WorkQueues

_log = logging.getLogger(__name__)


class PublishPhase:
    """One thread only."""

    def __init__(self, context: ServerContext, queues: WorkQueues) -> None:
        self._context = context
        self._queues = queues

    def compile(self, run: ActiveJob) -> None:
        """Ask for the bundle, unless the very same one was made before."""
        if "compile" in run.asked:
            return
        place, operators = self._place(run), self._operators(run)
        variants = variants_for(place, operators, robust_only=run.job.spec.variants == ROBUST_VARIANT)
        items: list[VariantItem] = [{"name": variant.name, "traces": variant.traces} for variant in variants]
        bundle = _bundle_id(run, items)
        if self._context.files.has_bundle(bundle):
            self._take_bundle(run, bundle)
            return
        work_id = f"{run.id}-compile-{run.attempts['compile']}"
        if not self._queues.has(work_id):
            send_model(self._context, run.job.spec.model)
            manifest = _manifest(run, variants, measured_secs(place, operators, variants))
            records = [record.to_json() for record in _published(variants)]
            self._queues.enqueue(COMPILE_QUEUE, _compile_work(run, work_id, bundle, manifest, items, records))
        run.attempts["compile"] += 1
        run.asked.add("compile")

    def take_compiled(self, run: ActiveJob, event: Compiled) -> None:
        """Keep the bundle, its signature checked. Raises Unsigned or NotFound."""
        bundle = event["bundle"]
        payload = open_signed(self._context.secret, get_blob(self._context.redis, bundle))
        self._context.files.add_bundle(bundle, payload)
        self._take_bundle(run, bundle)

    def time(self, run: ActiveJob) -> None:
        """Ask for the timings, one share after the other: the model is timed alone."""
        waiting = [share for share in run.shares if share not in run.job.timings]
        if not waiting:
            run.end(JobState.DONE)
            return
        share = waiting[0]
        if share in run.asked:
            return
        work_id = f"{run.id}-time{run.shares.index(share)}-{run.attempts[share]}"
        if not self._queues.has(work_id):
            self._send_bundle(run.job.bundle)
            work: TimeModelWork = {
                "do": "time_model",
                "work_id": work_id,
                "job": run.id,
                "share": share,
                "bundle": run.job.bundle,
            }
            self._queues.enqueue(measure_queue(run.job.device.key, share), work)
        run.attempts[share] += 1
        run.asked.add(share)

    def take_timed(self, run: ActiveJob, event: ModelTimed) -> None:
        if event["share"] in run.shares:
            run.job.timings[event["share"]] = {
                "granted": event["granted"],
                "run_secs": event["run_secs"],
                "max_error": event["max_error"],
            }
            run.dirty = True

    def _take_bundle(self, run: ActiveJob, bundle: str) -> None:
        run.job.bundle = bundle
        run.enter(JobState.TIMING)

    def _send_bundle(self, bundle: str) -> None:
        """Put the bundle where the measuring workers find it, signed."""
        if not has_blob(self._context.redis, bundle):
            payload = b"".join(self._context.files.bundle(bundle))
            put_blob(self._context.redis, bundle, sign(self._context.secret, payload))

    def _place(self, run: ActiveJob) -> Deployment:
        return Deployment(run.job.device.key, run.job.target_key, run.job.granted)

    def _operators(self, run: ActiveJob) -> list[ValidatedOperator]:
        finals = self._context.store.log.finals_of(op.workload_hash for op in run.operators)
        return [ValidatedOperator(op.workload_hash, op.weight, finals[op.workload_hash]) for op in run.operators]


def _compile_work(
    run: ActiveJob,
    work_id: str,
    bundle: str,
    manifest: dict[str, Any],
    variants: list[VariantItem],
    records: list[dict[str, Any]],
) -> CompileWork:
    spec = run.job.spec
    return {
        "do": "compile",
        "work_id": work_id,
        "job": run.id,
        "model": spec.model,
        "model_name": spec.model_name,
        "inputs": spec.inputs,
        "target": run.job.target,
        "bundle": bundle,
        "manifest": manifest,
        "variants": variants,
        "records": records,
    }


def _bundle_id(run: ActiveJob, variants: list[VariantItem]) -> str:
    """32 hex digits: the same model, shapes, target, shares and schedules make the same bundle."""
    spec = run.job.spec
    parts = [bundles.FORMAT, spec.model, spec.inputs, run.job.target, sorted(run.job.granted), variants]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _published(variants: Sequence[Variant]) -> list[TuningRecord]:
    """The records behind the variants, each once."""
    records = (match.record for variant in variants for match in variant.matches.values())
    return list({record.record_id: record for record in records if record is not None}.values())


def _manifest(run: ActiveJob, variants: Sequence[Variant], measured: dict[str, dict[str, float]]) -> dict[str, Any]:
    job = run.job
    return {
        "model": {"name": job.spec.model_name, "sha256": job.spec.model},
        "device": job.device.to_json(),
        "target": job.target,
        "target_key": job.target_key,
        "job": job.id,
        "created_at": job.created_at,
        "shares": {share: granted.to_json() for share, granted in job.granted.items()},
        "measured": measured,
        "operators": [
            {
                "name": op.name,
                "weight": op.weight,
                "workload_hash": op.workload_hash,
                "by_variant": {
                    variant.name: _choice(variant.matches[op.workload_hash])
                    for variant in variants
                    if op.workload_hash in variant.matches
                },
            }
            for op in run.operators
        ],
    }


def _choice(match: Match) -> dict[str, Any]:
    return {
        "record": None if match.record is None else match.record.record_id,
        "how": match.how.value,
        "regret": match.regret,
        "reason": match.reason,
    }
