"""Jobs: create, look up, cancel, watch."""

import logging
import statistics
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import grpc

from fractune_core.access import Scope
from fractune_core.analysis.inside import Inside
from fractune_core.analysis.roofline import Arithmetic, Roof
from fractune_core.analysis.validated import ValidatedRecords
from fractune_core.codec.messages import from_lists, from_proto, seconds, timestamp, to_proto
from fractune_core.errors import BadRequest, QuotaExceeded, ScopeMissing, ServerUnreachable
from fractune_core.files.model_files import shapes_by_name
from fractune_core.jobs import JobSpec, JobState, Priority
from fractune_core.names import ROBUST_VARIANT, UNTUNED_VARIANT, Collection, check_file_name
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_core.shares import GrantedShare, with_kernel_shares
from fractune_server.authenticator import Caller, caller
from fractune_server.selection.model_match import served_variant, timed_at_load
from fractune_server.services.paging import PageTokens, first_page, page_size
from fractune_server.store.jobs import StoredJob, StoredOperator
from fractune_server.transport.context import CallContext, JobNotifier, TenantView
from fractune_server.transport.live_workers import live_workers
from fractune_server.transport.work_queues import mark_cancelled

LEAST_GAP_S = 0.2
"""seconds between two looks; changes in between are seen as one"""
_LOOK_EVERY_S = 1.0

_log = logging.getLogger(__name__)


class JobFeed:
    """The newest state of one job. Any thread may call."""

    def __init__(self, read: Callable[[], pb.Job]) -> None:
        self.read = read
        self._changed = threading.Condition()
        self._newest: pb.Job | None = None
        self._error: Exception | None = None

    @property
    def revision(self) -> int | None:
        """None before the first `put`."""
        return None if self._newest is None else self._newest.revision

    def put(self, message: pb.Job) -> None:
        with self._changed:
            self._newest = message
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def after(self, revision: int, timeout_s: float) -> pb.Job | None:
        """The newest state after this revision; None if there is none in time. Raises the error of a failed look."""

        def is_there() -> bool:
            return self._error is not None or (self._newest is not None and self._newest.revision > revision)

        with self._changed:
            if not self._changed.wait_for(is_there, timeout_s):
                return None
            if self._error is not None:
                raise self._error
            return self._newest


class JobFeeds:
    """Any thread may call. A separate thread looks at the watched jobs while there are any."""

    def __init__(self, notifier: JobNotifier, revisions: Callable[[Iterable[str]], Mapping[str, int]]) -> None:
        """`revisions` returns the revisions of jobs by id."""
        self._notifier = notifier
        self._revisions = revisions
        self._lock = threading.Lock()
        self._feeds: dict[str, JobFeed] = {}
        self._watchers: Counter[str] = Counter()
        self._looks = False

    @contextmanager
    def of(self, job: str, read: Callable[[], pb.Job]) -> Iterator[JobFeed]:
        """The job's feed, for one watcher. `read`: the job as the watcher sees it, and so do its other watchers."""
        with self._lock:
            feed = self._feeds.setdefault(job, JobFeed(read))
            self._watchers[job] += 1
            if not self._looks:
                self._looks = True
                threading.Thread(target=self._look_on, name="watch", daemon=True).start()
        try:
            yield feed
        finally:
            with self._lock:
                self._watchers[job] -= 1
                if not self._watchers[job]:
                    del self._watchers[job], self._feeds[job]

    def _look_on(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                feeds = dict(self._feeds)
                if not feeds:
                    self._looks = False
                    return
            changes = self._notifier.count
            try:
                self._look(feeds)
            except Exception as error:  # noqa: BLE001  every error must reach the watchers
                _log.exception("jobs cannot be watched")
                for feed in feeds.values():
                    feed.fail(error)
            pause.wait(LEAST_GAP_S)
            self._notifier.wait(changes, _LOOK_EVERY_S)

    def _look(self, feeds: Mapping[str, JobFeed]) -> None:
        """Put newer states into the feeds, which are by job."""
        for job, revision in self._revisions(feeds).items():
            if revision != feeds[job].revision:
                feeds[job].put(feeds[job].read())


_SHORTEST_SEARCH_S = 0.1
"""A job that searches nothing takes less. Trials of other jobs may still be shared with it later"""


def job_to_proto(
    job: StoredJob,
    operators: Sequence[StoredOperator] = (),
    arithmetic: Mapping[str, Arithmetic] = MappingProxyType({}),
    roofs: Mapping[str, Roof] = MappingProxyType({}),
    validated: Mapping[str, ValidatedRecords] = MappingProxyType({}),
) -> pb.Job:
    """`arithmetic` holds what is known of the operators, by workload hash, and `validated` their validations; `roofs`
    those of the device by share key.
    """
    return to_proto(
        job,
        pb.Job,
        progress=_progress(job),
        operators=[
            to_proto(
                operator,
                pb.Operator,
                arithmetic=arithmetic_to_proto(arithmetic.get(operator.workload_hash)),
                implementations=_implementations(job, operator, validated.get(operator.workload_hash)),
            )
            for operator in operators
        ],
        model_display_name=job.spec.model_name,
        roofs={share: to_proto(roofs[each.key], pb.Roof) for share, each in job.granted.items() if each.key in roofs},
        result=_result(job) if job.state is JobState.DONE else None,
    )


def _implementations(job: StoredJob, operator: StoredOperator, validated: ValidatedRecords | None) -> dict[str, str]:
    """By share: the implementation of the validation that gave the operator's best time."""
    if validated is None:
        return {}
    return {
        share: record.implementation
        for share, granted in job.granted.items()
        for record in validated.measured(job.device.key, job.target_key, granted.mechanism).records
        if record.granted.key == granted.key and record.median_s == operator.best_s.get(share)
    }


def arithmetic_to_proto(arithmetic: Arithmetic | None) -> pb.Arithmetic | None:
    return None if arithmetic is None else to_proto(arithmetic, pb.Arithmetic)


def _progress(job: StoredJob) -> pb.Progress:
    progress, now = job.progress, max(time.time(), job.latest)
    tuning_s = (job.tuning_ended or job.ended_at or now) - (job.tuning_began or now)
    return to_proto(
        progress,
        pb.Progress,
        trials_per_s=(progress.done + progress.shared) / tuning_s if tuning_s > _SHORTEST_SEARCH_S else 0.0,
        elapsed_s=max(job.ended_at or now, job.latest) - job.created_at,
        phases_s=job.phases_s(now),
    )


def _result(job: StoredJob) -> pb.JobResult:
    return pb.JobResult(
        wall_s=(job.ended_at or 0.0) - job.created_at,
        shares=[_share_result(job.id, share, timing) for share, timing in job.timings.items()],
        bundle=Collection.BUNDLES.of(job.bundle),
    )


def _share_result(job: str, share: str, timing: dict[str, Any]) -> pb.ShareResult:
    run_secs, timed_by = timing["run_secs"], timing["job"]
    tuned = ROBUST_VARIANT if share not in run_secs and ROBUST_VARIANT in run_secs else served_variant(timing, share)
    return pb.ShareResult(
        share=share,
        granted=to_proto(GrantedShare.from_json(timing["granted"]), pb.GrantedShare),
        untuned_s=statistics.median(run_secs.get(UNTUNED_VARIANT) or [timing["untuned_sum_s"]]),
        tuned_s=statistics.median(run_secs[tuned]),
        run_secs=from_lists(run_secs, pb.Repeats),
        max_error=timing["max_error"],
        earlier_job=Collection.JOBS.of(timed_by) if timed_by != job else "",
        time=timestamp(timing["timed_at"]),
        at_load=[to_proto(each, pb.AtLoad) for each in timed_at_load(timing)],
        others_cores=timing["others_cores"],
        variant=tuned,
        inside=to_proto(Inside.from_json(timing["inside"]), pb.Inside) if timing["inside"] else None,
    )


MAX_WATCHERS = 1000
"""each watcher holds a thread, which sleeps while its job does not change; the other threads serve short calls"""
_LOOK_UP_EVERY_S = 1.0
_MOST_SPEC_BYTES = 2**14
"""limit of a job's spec, so that a page of jobs holds many"""


def _check_size(spec: pb.CreateJobRequest | pb.JobSpec) -> None:
    """Raises BadRequest."""
    size = spec.ByteSize()
    if size > _MOST_SPEC_BYTES:
        raise BadRequest(f"the job's spec has {size} bytes, and {_MOST_SPEC_BYTES} is the limit; name less in it")


class JobService(rpc.JobServiceServicer):
    def __init__(self, context: CallContext, feeds: JobFeeds, stopping: threading.Event) -> None:
        self._context = context
        self._stopping = stopping
        self._watching = threading.BoundedSemaphore(MAX_WATCHERS)
        self._feeds = feeds
        self._tokens = PageTokens(context.secret)

    def CreateJob(self, request: pb.CreateJobRequest, context: grpc.ServicerContext) -> pb.Job:
        _check_size(request)
        view = self._context.view().own
        model = view.models.get(Collection.MODELS.parse(request.spec.model))
        name = request.spec.model_name or model.display_name
        check_file_name(name, "model_name")
        spec = from_proto(JobSpec, request.spec, model_name=name)
        spec.check()
        if request.sizes:
            held = view.files.interface(model.sha256)
            spec = replace(spec, inputs=shapes_by_name(held, spec.inputs, dict(request.sizes)))
            _check_size(to_proto(spec, pb.JobSpec))
        if spec.check_inputs:
            view.files.check_inputs(Collection.MODELS.parse(spec.check_inputs))
        asker = caller()
        _check_priority(spec, asker)
        offers = live_workers(self._context.redis, self._context.secret).offer(with_kernel_shares(spec.shares))
        first = next(iter(offers.values()))
        job = StoredJob(
            id=uuid.uuid4().hex[:12],
            spec=spec,
            created_at=time.time(),
            device=first.device,
            granted={share: offer.granted for share, offer in offers.items()},
            asked_target=spec.target or first.target,
            notes=[f"{share} is skipped: {cause}" for share, cause in spec.skipped_shares.items()],
            token=asker.token_id,
            tenant=asker.tenant,
        )
        view.jobs.create(job, asker.quotas)
        return job_to_proto(job)

    def GetJob(self, request: pb.GetJobRequest, context: grpc.ServicerContext) -> pb.Job:
        return _read_job(self._context.view(), Collection.JOBS.parse(request.name))

    def ListJobs(self, request: pb.ListJobsRequest, context: grpc.ServicerContext) -> pb.ListJobsResponse:
        size = page_size(request.page_size, default=50)
        place = self._tokens.read(request.page_token, length=1)
        rows = self._context.view().jobs.page(size + 1, int(place[0]) if place else None, open_only=request.open_only)
        jobs, end = first_page([(seq, job_to_proto(job)) for seq, job in rows], size)
        return pb.ListJobsResponse(jobs=jobs, next_page_token=self._tokens.write(None if end is None else [end]))

    def CancelJob(self, request: pb.CancelJobRequest, context: grpc.ServicerContext) -> pb.Job:
        job, view = Collection.JOBS.parse(request.name), self._context.view()
        _check_may_cancel(view.jobs.get(job), caller())
        if view.jobs.end(job, JobState.CANCELLED, "JobCancelled", "on request"):
            self._context.notifier.announce()
            mark_cancelled(self._context.redis, job)
        return _read_job(view, job)

    def WatchJob(self, request: pb.WatchJobRequest, context: grpc.ServicerContext) -> Iterator[pb.Job]:
        job, asker = Collection.JOBS.parse(request.name), caller()
        view = self._context.view()
        view.jobs.get(job)  # first: a job's feed is for those who see the job
        read = partial(_read_job, view, job)
        with self._place(), self._feeds.of(job, read) as feed:
            message: pb.Job | None = read()
            while context.is_active() and not self._stopping.is_set():
                asker.check()  # nothing may change for hours
                if message is not None:
                    yield message
                    if message.HasField("end_time"):
                        return
                    seen = message.revision
                message = feed.after(seen, _LOOK_UP_EVERY_S)
        raise ServerUnreachable("the server is stopping; watch the job again when it is back")

    def ListCosts(self, request: pb.ListCostsRequest, context: grpc.ServicerContext) -> pb.ListCostsResponse:
        if request.with_tokens and not caller().scope.includes(Scope.ADMIN):
            raise ScopeMissing("only the scope admin may see the tokens of jobs; use such a token, or leave them out")
        store, size = self._context.view(), page_size(request.page_size, default=50)
        if request.job:
            rows = [(0, store.jobs.get(Collection.JOBS.parse(request.job)))]
        else:
            place = self._tokens.read(request.page_token, length=1)
            rows = store.jobs.page(size + 1, int(place[0]) if place else None, open_only=False)
        since = seconds(request.since) if request.HasField("since") else 0.0
        spent = store.ledger.spent([job.id for _, job in rows], since)
        costs = [
            pb.JobCost(
                job=job_to_proto(job),
                spent=[to_proto(each, pb.Spending) for each in spent.get(job.id, ())],
                token=job.token if request.with_tokens else "",
            )
            for _, job in rows
        ]
        page, end = first_page([(seq, cost) for (seq, _), cost in zip(rows, costs, strict=True)], size)
        return pb.ListCostsResponse(
            costs=[cost for cost in page if request.job or cost.spent],
            next_page_token=self._tokens.write(None if end is None else [end]),
        )

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Hold one of the places for watchers. Raises QuotaExceeded if all are taken."""
        if not self._watching.acquire(blocking=False):
            raise QuotaExceeded(f"{MAX_WATCHERS} calls watch jobs already; end one, or poll with GetJob")
        try:
            yield
        finally:
            self._watching.release()


def _read_job(view: TenantView, job: str) -> pb.Job:
    """Raises NotFound."""
    with view.reading():
        stored, operators = view.jobs.get(job), view.jobs.operators(job)
        arithmetic = view.log.arithmetic(operator.workload_hash for operator in operators)
        roofs, validated = view.roofs.of(stored.device.key), {}
        if stored.state is JobState.DONE:
            hashes = (operator.workload_hash for operator in operators)
            validated = view.log.validated_of(hashes, stored.pool, stored.tenant)
    return job_to_proto(stored, operators, arithmetic, roofs, validated)


def _check_priority(spec: JobSpec, asker: Caller) -> None:
    """Raises ScopeMissing for a priority above the highest of the token."""
    priority = Priority.of(spec.priority)
    if priority.number > asker.max_priority.number:
        raise ScopeMissing(
            f"priority {priority} is above {asker.max_priority}, the highest of token {asker.token_id}; request that "
            "priority, or ask the server's operator for another token"
        )


def _check_may_cancel(job: StoredJob, asker: Caller) -> None:
    """Raises ScopeMissing for the job of another token without the scope `operate`."""
    if job.token != asker.token_id and not asker.scope.includes(Scope.OPERATE):
        raise ScopeMissing(
            f"job {job.id} does not belong to token {asker.token_id}; cancelling it needs the scope operate"
        )
