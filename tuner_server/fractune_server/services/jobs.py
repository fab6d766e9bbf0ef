"""Jobs: create, look up, cancel, watch."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from fractune_core.convert import spec_from_proto
from fractune_core.errors import QuotaExceeded, ScopeMissing, ServerUnreachable
from fractune_core.jobs import JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.tokens import Scope
from fractune_server.access.gate import Caller, caller
from fractune_server.services.job_feeds import JobFeeds
from fractune_server.services.job_view import job_to_proto
from fractune_server.services.paging import page_size, read_token, write_token
from fractune_server.store.stored_job import StoredJob
from fractune_server.transport.context import ServerContext
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.outgoing import mark_cancelled

MAX_WATCHERS = 1000
"""each holds a thread, which does nothing while its job does not change; others stay free for calls that end at once"""
_LOOK_UP_EVERY_S = 1.0


class JobService(rpc.JobServiceServicer):
    def __init__(self, context: ServerContext, stopping: threading.Event) -> None:
        self._context = context
        self._stopping = stopping
        self._watching = threading.BoundedSemaphore(MAX_WATCHERS)
        self._feeds = JobFeeds(context.notifier, context.store.jobs.revisions, self._view)

    def CreateJob(self, request: pb.CreateJobRequest, context: grpc.ServicerContext) -> pb.Job:
        model = self._context.store.models.get(Collection.MODELS.parse(request.spec.model))
        spec = spec_from_proto(request.spec, model.display_name)
        spec.check()
        offers = live_workers(self._context.redis, self._context.secret).offer(spec.shares)
        first = next(iter(offers.values()))
        asker = caller()
        job = StoredJob(
            id=uuid.uuid4().hex[:12],
            spec=spec,
            created_at=time.time(),
            device=first.device,
            granted={share: offer.granted for share, offer in offers.items()},
            asked_target=spec.target or first.target,
            token=asker.token_id,
        )
        self._context.store.jobs.create(job, asker.quotas)
        return job_to_proto(job)

    def GetJob(self, request: pb.GetJobRequest, context: grpc.ServicerContext) -> pb.Job:
        return self._view(Collection.JOBS.parse(request.name))

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> pb.ListJobsResponse:
        size = page_size(request.page_size, default=50)
        place = read_token(request.page_token, length=1)
        jobs, end = self._context.store.jobs.page(size, int(place[0]) if place else None, open_only=request.open_only)
        token = write_token(None if end is None else [end])
        return pb.ListJobsResponse(jobs=[job_to_proto(job) for job in jobs], next_page_token=token)

    def CancelJob(self, request: pb.CancelJobRequest, context: grpc.ServicerContext) -> pb.Job:
        job = Collection.JOBS.parse(request.name)
        _check_may_cancel(self._context.store.jobs.get(job), caller())
        if self._context.store.jobs.end(job, JobState.CANCELLED, "JobCancelled", "cancelled on request"):
            self._context.notifier.announce()
            mark_cancelled(self._context.redis, job)
        return self._view(job)

    def WatchJob(self, request: pb.WatchJobRequest, context: grpc.ServicerContext) -> Iterator[pb.Job]:
        job = Collection.JOBS.parse(request.name)
        with self._place(), self._feeds.of(job) as feed:
            message: pb.Job | None = self._view(job)
            while context.is_active() and not self._stopping.is_set():
                if message is not None:
                    yield message
                    if message.HasField("end_time"):
                        return
                    seen = message.revision
                message = feed.after(seen, _LOOK_UP_EVERY_S)
        raise ServerUnreachable("the server is stopping; watch the job again when it is back")

    def _view(self, job: str) -> pb.Job:
        store = self._context.store
        stored, operators = store.jobs.get(job), store.jobs.operators(job)
        arithmetic = store.log.arithmetic(operator.workload_hash for operator in operators)
        return job_to_proto(stored, operators, arithmetic, store.roofs.of(stored.device.key))

    @contextmanager
    def _place(self) -> Iterator[None]:
        """One of the places for watchers. Raises QuotaExceeded when all are taken."""
        if not self._watching.acquire(blocking=False):
            raise QuotaExceeded(f"{MAX_WATCHERS} calls watch jobs already; end one, or ask with GetJob")
        try:
            yield
        finally:
            self._watching.release()


def _check_may_cancel(job: StoredJob, asker: Caller) -> None:
    """Raises ScopeMissing for the job of another token, unless the scope is for that."""
    if job.token != asker.token_id and not asker.scope.includes(Scope.OPERATE):
        raise ScopeMissing(
            f"job {job.id} is not of token {asker.token_id}, and to cancel those of others needs the scope operate"
        )
