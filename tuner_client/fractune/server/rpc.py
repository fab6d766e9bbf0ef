"""The calls of the public contract, with its protobuf messages.

Every call has a deadline, and every failure raises an error of fractune. Users get `fractune.features.client.Client`.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from fractune.server.credentials import PLAIN, Credentials
from fractune.server.uploads import send_model
from fractune_core import errors
from fractune_core.access import CLIENT_KEEPALIVE, MOST_MESSAGE_BYTES, UNIX
from fractune_core.codec.messages import timestamp, to_proto
from fractune_core.errors import BadRequest, FractuneError, QuotaExceeded, ServerUnreachable, StateUnusable
from fractune_core.files.new_bundle import NewBundle
from fractune_core.host.machine import is_full
from fractune_core.jobs import JobSpec, JobState
from fractune_core.names import Collection
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc

Request = TypeVar("Request")
Answer = TypeVar("Answer")

ERROR_METADATA = "fractune-error"
CALL_TIMEOUT_S = 30.0
TRANSFER_TIMEOUT_S = 600.0
"""downloads, exports and imports"""
MATCH_TIMEOUT_S = 300.0
"""a model that the server has not seen is ingested first"""
RECONNECT_S = 60.0
"""default seconds to wait for an unreachable server of a job, which may be restarting"""
REPORT_EVERY_S = 5.0
"""seconds between reports that the server is away"""
RECONNECT_EVERY_S = 0.1
_NO_ANSWER = (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_MOST_ANSWER_BYTES = 64 << 20
IMPORT_PART_BYTES = 16 << 20
"""of a log that is sent in one call; the server accepts twice as much"""
_MAX_RECONNECT_MS = 5000

_ENDED = {pb.JobState.Value(f"JOB_STATE_{state.name}") for state in JobState if not state.open}


@dataclass(frozen=True)
class Absence:
    """An unreachable server. Times in seconds."""

    server: str
    away_s: float
    reconnect_s: float
    """longest time to wait for it"""


def _ignore(_: Absence) -> None:
    pass


def job_name(text: str) -> str:
    """The resource name of a job from its name with or without `jobs/`."""
    return text if text.startswith("jobs/") else f"jobs/{text}"


class RpcClient:
    """A connection to a server at HOST:PORT or unix:PATH; close it, or use it as a context manager.

    Thread-safe. Every method raises the error that the server answered, of fractune_core.errors. It raises
    ServerUnreachable if there is no server or the answer is late.
    """

    def __init__(
        self,
        address: str,
        timeout_s: float = CALL_TIMEOUT_S,
        credentials: Credentials = PLAIN,
        reconnect_s: float = RECONNECT_S,
        skipped_shares: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`reconnect_s`: how long `watch_job` waits for an unreachable server. `skipped_shares`: those that the
        server's stack could not verify, each with the cause; jobs by `create_job` leave them out.

        Raises BadRequest for credentials that do not fit this address, and for an address of another form.
        """
        scheme, separator, _ = address.partition("://")
        if separator:
            raise BadRequest(f"server '{scheme}://...': write HOST:PORT, and --ca FILE for TLS")
        host, _, port = address.rpartition(":")
        if not address.startswith(UNIX) and not (host and port.isdecimal()):
            raise BadRequest(f"server '{address}': write HOST:PORT, such as localhost:50051, or unix:PATH")
        self.address = address
        self._tls = credentials.ca is not None and not address.startswith(UNIX)
        self._timeout_s = timeout_s
        self._reconnect_s = reconnect_s
        self._skipped_shares = skipped_shares
        self._closed = False
        limits = [
            ("grpc.max_receive_message_length", _MOST_ANSWER_BYTES),
            ("grpc.max_send_message_length", MOST_MESSAGE_BYTES),
            *CLIENT_KEEPALIVE,
        ]
        # Proxies of the environment are for the web, not for a server on this machine or in this cluster.
        # gRPC would wait up to two minutes before it looks for a server that is back.
        options = [*limits, ("grpc.enable_http_proxy", 0), ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_MS)]
        self._channel = credentials.channel(address, options)
        self._models = rpc.ModelServiceStub(self._channel)
        self._jobs = rpc.JobServiceStub(self._channel)
        self._log = rpc.LogServiceStub(self._channel)
        self._bundles = rpc.BundleServiceStub(self._channel)
        self._fleet = rpc.FleetServiceStub(self._channel)
        self._plans = rpc.PlanServiceStub(self._channel)
        self._health: Any = health_pb2_grpc.HealthStub(self._channel)  # its types lack its methods

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection and every call in progress."""
        self._closed = True
        self._channel.close()

    @property
    def is_guarded(self) -> bool:
        """Whether the server answers only callers with credentials, or callers that may open its socket."""
        return self._tls or self.address.startswith(UNIX)

    # ---- models and jobs -----------------------------------------------------------------------------------

    def upload_model(self, path: Path) -> pb.Model:
        """Upload the missing part of the model file. Raises BadModel if it cannot be read."""
        return send_model(self._call, self._models, path, lambda: self._closed)

    def create_job(self, spec: JobSpec) -> pb.Job:
        message = to_proto(spec.without(self._skipped_shares), pb.JobSpec)
        return self._call(self._jobs.CreateJob, pb.CreateJobRequest(spec=message))

    def get_job(self, job: str) -> pb.Job:
        return self._call(self._jobs.GetJob, pb.GetJobRequest(name=job_name(job)))

    def cancel_job(self, job: str) -> pb.Job:
        return self._call(self._jobs.CancelJob, pb.CancelJobRequest(name=job_name(job)))

    def jobs(self, *, open_only: bool = False, limit: int = 1000) -> Iterator[pb.Job]:
        """Jobs, newest first, at most `limit`."""
        token = ""
        while limit > 0:
            request = pb.ListJobsRequest(page_size=min(limit, 1000), page_token=token, open_only=open_only)
            page = self._call(self._jobs.ListJobs, request)
            yield from page.jobs
            limit -= len(page.jobs)
            token = page.next_page_token
            if not token:
                return

    def costs(self, job: str = "", *, since: float | None, tokens: bool, limit: int) -> Iterator[pb.JobCost]:
        """The costs of the job, or of each job with costs: newest first, at most `limit`."""
        request = pb.ListCostsRequest(
            job=job and job_name(job), with_tokens=tokens, page_size=min(max(limit, 50), 1000)
        )
        if since is not None:
            request.since.CopyFrom(timestamp(since))
        while limit > 0:
            page = self._call(self._jobs.ListCosts, request)
            yield from page.costs[:limit]
            limit -= len(page.costs)
            request.page_token = page.next_page_token
            if not request.page_token:
                return

    def watch_job(self, job: str, report_absence: Callable[[Absence], None] = _ignore) -> Iterator[pb.Job]:
        """The job now and at each change, until it has ended. While a lost server is awaited, `report_absence` is
        called every REPORT_EVERY_S.
        """
        revision = -1
        lost_at: float | None = None
        request = pb.WatchJobRequest(name=job_name(job))
        while True:
            try:
                for seen in self._stream(self._jobs.WatchJob, request, timeout_s=None):
                    lost_at = None
                    if seen.revision != revision:
                        revision = seen.revision
                        yield seen
                    if seen.state in _ENDED:
                        return
                raise self._unreachable()  # an orderly shutdown of the server ends the stream before the job
            except ServerUnreachable as error:
                lost_at = lost_at or time.monotonic()
                # The server itself sent a named error; only silence is waited out.
                if type(error) is not ServerUnreachable or self._closed:
                    raise
                time.sleep(RECONNECT_EVERY_S)
                self._await_connection(lost_at, report_absence)

    def _await_connection(self, lost_at: float, report_absence: Callable[[Absence], None]) -> None:
        """Raises ServerUnreachable if the server is not back `reconnect_s` after `lost_at`, or this client is
        closed.
        """
        deadline = lost_at + self._reconnect_s
        while not self._closed and (now := time.monotonic()) < deadline:
            end = min(deadline, now + REPORT_EVERY_S - (now - lost_at) % REPORT_EVERY_S)
            if self._answers_within(end - now):
                return
            if end <= time.monotonic() < deadline:
                report_absence(Absence(self.address, time.monotonic() - lost_at, self._reconnect_s))
            time.sleep(RECONNECT_EVERY_S)
        raise self._unreachable()

    def _answers_within(self, timeout_s: float) -> bool:
        """Whether a server answers, even with an error. Closing this client ends the wait."""
        try:
            self._health.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s, wait_for_ready=True)
        except grpc.RpcError as error:
            call: Any = error  # what a call raises is the call
            return call.code() not in _NO_ANSWER
        except ValueError:  # the channel is closed
            return False
        return True

    # ---- the tuning log ------------------------------------------------------------------------------------

    def records(
        self, record_filter: pb.RecordFilter, limit: int, *, fastest_first: bool = False, page: str = ""
    ) -> pb.ListRecordsResponse:
        """At most `limit` records that pass the filter, from a `page` on, all pages as one."""
        found = pb.ListRecordsResponse()
        token = page
        while len(found.records) < limit:
            size = min(limit - len(found.records), 1000)
            request = pb.ListRecordsRequest(
                filter=record_filter, page_size=size, page_token=token, fastest_first=fastest_first
            )
            answer = self._call(self._log.ListRecords, request)
            found.MergeFrom(answer)
            found.next_page_token = token = answer.next_page_token
            if not token:
                break
        return found

    def export_records(
        self, record_filter: pb.RecordFilter, *, with_workloads: bool
    ) -> Iterator[pb.ExportRecordsResponse]:
        """All records that pass the filter, oldest first; each workload comes before its first record."""
        request = pb.ExportRecordsRequest(filter=record_filter, with_workloads=with_workloads)
        return self._stream(self._log.ExportRecords, request, TRANSFER_TIMEOUT_S)

    def import_records(self, parts: Iterable[pb.ImportRecordsRequest]) -> pb.ImportRecordsResponse:
        """Add records to the log: all or none of each IMPORT_PART_BYTES. What was added before an error stays."""
        total = pb.ImportRecordsResponse()
        for call in _calls_of_import(parts):
            answer = self._call(self._log.ImportRecords, iter(call), TRANSFER_TIMEOUT_S)
            total.added += answer.added
            total.already_there += answer.already_there
        return total

    def prune_records(
        self, record_filter: pb.RecordFilter, keep_best: int, *, dry_run: bool
    ) -> pb.PruneRecordsResponse:
        """Delete records that pass the filter, except the `keep_best` fastest of each operator, target, device and
        share. `dry_run` counts them only.
        """
        request = pb.PruneRecordsRequest(filter=record_filter, keep_best=keep_best, dry_run=dry_run)
        return self._call(self._log.PruneRecords, request, TRANSFER_TIMEOUT_S)

    def match_model(self, request: pb.MatchModelRequest) -> pb.MatchModelResponse:
        return self._call(self._log.MatchModel, request, MATCH_TIMEOUT_S)

    def tabulate_model(self, request: pb.TabulateModelRequest) -> list[pb.OperatorTable]:
        """The schedule published for each share at each of the others, by operator."""
        return list(self._call(self._log.TabulateModel, request, MATCH_TIMEOUT_S).operators)

    def make_plan(self, request: pb.MakePlanRequest) -> pb.Plan:
        return self._call(self._plans.MakePlan, request, MATCH_TIMEOUT_S)

    def unreadable(self, limit: int) -> pb.ListUnreadableResponse:
        """The newest results that the server could not read, at most `limit`."""
        return self._call(self._log.ListUnreadable, pb.ListUnreadableRequest(page_size=limit))

    def replay_unreadable(self) -> int:
        """Have the server read them again. Returns the number of results."""
        return self._call(self._log.ReplayUnreadable, pb.ReplayUnreadableRequest(), TRANSFER_TIMEOUT_S).replayed

    def add_pair(self, pair: pb.MeasuredPair) -> bool:
        """False if the log has it already."""
        return self._call(self._log.AddPair, pb.AddPairRequest(pair=pair)).added

    def pairs(self, model_name: str, limit: int) -> list[pb.MeasuredPair]:
        """The newest first; with `model_name` only those with a model of this name."""
        request = pb.ListPairsRequest(page_size=limit, model_name=model_name)
        return list(self._call(self._log.ListPairs, request).pairs)

    def add_runtime_times(self, times: Iterable[pb.RuntimeTime]) -> int:
        """The number of those that the log did not have."""
        return self._call(self._log.AddRuntimeTimes, pb.AddRuntimeTimesRequest(times=times)).added

    def runtime_times(self, model: str, limit: int) -> list[pb.RuntimeTime]:
        """The newest first; with `model` (`models/...`) only those of this model."""
        request = pb.ListRuntimeTimesRequest(page_size=limit, model=model)
        return list(self._call(self._log.ListRuntimeTimes, request).times)

    # ---- bundles and the fleet -----------------------------------------------------------------------------

    def download_bundle(self, name: str, new: NewBundle) -> None:
        """Write the bundle `bundles/...` to a file, whole or not at all. Raises StateUnusable, and BadRequest for a
        bundle there that serves more, or another file.
        """
        to = new.path
        draft = to.with_name(f".{to.name}.{os.getpid()}.part")
        request = pb.DownloadBundleRequest(name=name)
        try:
            to.parent.mkdir(parents=True, exist_ok=True)
            draft.unlink(missing_ok=True)
            with draft.open("xb") as file:  # in a folder of others it may be a link
                for part in self._stream(self._bundles.DownloadBundle, request, TRANSFER_TIMEOUT_S):
                    file.write(part.data)
            new.check_made(draft)
            draft.replace(to)
        except OSError as error:
            remedy = "a folder that has room" if is_full(error) else "another path"
            raise StateUnusable(f"cannot write the bundle {to}: {error.strerror}; pass --out with {remedy}") from error
        finally:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)

    def workers(self) -> list[pb.Worker]:
        return list(self.fleet().workers)

    def fleet(self) -> pb.ListWorkersResponse:
        answer: pb.ListWorkersResponse = self._call(self._fleet.ListWorkers, pb.ListWorkersRequest())
        return answer

    def shares(self) -> list[pb.OfferedShare]:
        """The available shares."""
        return list(self._call(self._fleet.ListShares, pb.ListSharesRequest()).shares)

    def measurers(self) -> Counter[str]:
        """The current number of measurers by share as text."""
        counts: Counter[str] = Counter()
        for offered in self.shares():
            counts[offered.granted.share] += offered.workers
        return counts

    def is_serving(self, service: str) -> bool:
        """Whether gRPC's health service reports a service or a `fractune_core.names.HealthPart` as serving."""
        request = health_pb2.HealthCheckRequest(service=service)
        answer = self._call(self._health.Check, request)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    # ---- calls ---------------------------------------------------------------------------------------------

    def _call(self, method: Callable[..., Answer], request: object, timeout_s: float | None = None) -> Answer:
        with self._own_errors():
            return method(request, timeout=timeout_s or self._timeout_s)

    def _stream(
        self, method: grpc.UnaryStreamMultiCallable[Request, Answer], request: Request, timeout_s: float | None
    ) -> Iterator[Answer]:
        with self._own_errors():
            call = method(request, timeout=timeout_s)
            try:
                yield from call
            finally:
                call.cancel()

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.RpcError as error:
            raise self._error_from(error) from error
        except RuntimeError as error:
            # An exception of a signal within gRPC's wait for a lock appears as an error of that lock.
            if error.__context__ is None or isinstance(error.__context__, Exception):
                raise
            raise error.__context__ from None
        except ValueError as error:  # gRPC's error for a channel that was closed during a call
            if "closed channel" not in str(error):
                raise
            raise ServerUnreachable(f"the connection to {self.address} was closed") from error

    def _error_from(self, error: grpc.RpcError) -> FractuneError:
        code, details = error.code(), " ".join((error.details() or "").split())
        metadata = error.trailing_metadata() or ()
        named = next((entry.value for entry in metadata if entry.key == ERROR_METADATA), None)
        if named is not None:
            return errors.error_from_name(str(named), details)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServerUnreachable(f"the server at {self.address} did not answer in time; look at its log")
        if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
            return self._unreachable(details)
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ServerUnreachable(f"{self.address} is not a fractune server, or has another version: {details}")
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:  # gRPC's own limits, of a message and of calls at once
            return QuotaExceeded(f"the server at {self.address} does not take the call: {details}")
        return FractuneError(f"the server at {self.address} failed: {code.name} {details}; look at its log")

    def _unreachable(self, details: str = "") -> ServerUnreachable:
        """`details` are gRPC's own, which alone have the cause of a failed TLS connection."""
        if "WRONG_VERSION_NUMBER" in details:
            return ServerUnreachable(f"the server at {self.address} does not use TLS; check the address, or omit --ca")
        if "CERTIFICATE_VERIFY_FAILED" in details or "Hostname Verification" in details:
            return ServerUnreachable(
                f"the server at {self.address} has no certificate for that name by the authority in --ca; nothing was "
                "sent to it: check --ca and the address"
            )
        if self._tls:
            return ServerUnreachable(
                f"no fractune server answers at {self.address} with TLS; check the address, and whether it requires "
                "--client-cert and --client-key"
            )
        closed = "; a server with TLS needs --ca" if "Socket closed" in details else ""
        return ServerUnreachable(
            f"no fractune server answers at {self.address}; start one with 'fractune up', or check the address{closed}"
        )


def _calls_of_import(parts: Iterable[pb.ImportRecordsRequest]) -> Iterator[list[pb.ImportRecordsRequest]]:
    """The parts of each call, all workloads first: a call may have records whose workload came with an earlier one."""
    call: list[pb.ImportRecordsRequest] = []
    size = 0
    for part in sorted(parts, key=lambda part: part.WhichOneof("part") == "record"):
        size += part.ByteSize()
        if call and size > IMPORT_PART_BYTES:
            yield call
            call, size = [], part.ByteSize()
        call.append(part)
    yield call


def submit(client: RpcClient, model: Path, spec: JobSpec) -> pb.Job:
    """Upload the model and the inputs for its check unless the server has them, and create the job."""
    sha256 = Collection.MODELS.parse(client.upload_model(model).name)
    arrays = client.upload_model(Path(spec.check_inputs)).name if spec.check_inputs else ""
    return client.create_job(replace(spec, model=sha256, check_inputs=arrays))
