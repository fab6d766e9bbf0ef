"""Model files, workloads, and marks of cancelled work, which workers need beside their work."""

from __future__ import annotations

import redis

from fractune_core.fleet.blobs import put_blob, put_signed_blob, renew_blob, renew_signed_blob
from fractune_core.fleet.marks import CANCELLED, mark
from fractune_core.fleet.messages import IngestWork
from fractune_core.fleet.redis_names import COMPILE_QUEUE, model_blob, workload_blob
from fractune_server.store.models import IngestKey
from fractune_server.transport.context import ServerContext, TenantView
from fractune_server.transport.work_queues import WorkQueues


def request_ingest(
    view: TenantView,
    queues: WorkQueues,
    key: IngestKey,
    owner: str,
    isa: str,
    job: str,
    work_id: str,
    model_name: str = "",
) -> None:
    """Hand out the ingest of a model for `owner`. Errors call the file `model_name`, or as its first upload did. Raises
    NotFound if the model or its file is missing.
    """
    model = view.models.get(key.model)
    send_model(queues.redis, view, key.model)
    work = IngestWork(
        work_id=work_id,
        job=job,
        tenant=key.tenant,
        model=key.model,
        model_name=model_name or model.display_name,
        owner=owner,
        inputs=key.inputs,
        target=key.target,
        isa=isa,
    )
    queues.enqueue(COMPILE_QUEUE, work)


def send_model(connection: redis.Redis, view: TenantView, sha256: str) -> None:
    """Put a model file of the view where workers find it. Raises NotFound."""
    name = model_blob(view.sight.own, sha256)
    if not renew_blob(connection, name):
        put_blob(connection, name, view.files.model(sha256))


def send_workload(context: ServerContext, workload_hash: str) -> None:
    """Put a workload where workers find it."""
    name = workload_blob(workload_hash)
    if not renew_signed_blob(context.redis, context.secret, name):
        put_signed_blob(context.redis, context.secret, name, context.store.log.workload(workload_hash).encode())


def mark_cancelled(connection: redis.Redis, name: str) -> None:
    """Workers skip the rest of the round, or the rest of the job's own work."""
    mark(connection, CANCELLED, name)
