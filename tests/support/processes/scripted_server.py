"""A gRPC server that answers from a script: the remote side for tests of the client alone."""
# ruff: noqa: ARG002, N802  - gRPC hands every handler a request and a context, and names it as in the .proto

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NoReturn

import grpc

from fractune_core.errors import FractuneError, NotFound
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc


def abort(context: grpc.ServicerContext, error: FractuneError) -> NoReturn:
    context.set_trailing_metadata((("fractune-error", type(error).__name__),))
    context.abort(grpc.StatusCode[error.grpc_status], str(error))


class ScriptedServer(
    rpc.ModelServiceServicer,
    rpc.JobServiceServicer,
    rpc.LogServiceServicer,
    rpc.BundleServiceServicer,
    rpc.FleetServiceServicer,
    rpc.PlanServiceServicer,
):
    """Models and bundles are kept; a watched job goes through `script`."""

    def __init__(self) -> None:
        self.address = ""
        self.models: dict[str, bytes] = {}
        self.uploads = 0
        self.specs: list[pb.JobSpec] = []
        self.script: list[pb.Job] = []
        self.cancelled: list[str] = []
        self.costs: list[pb.JobCost] = []
        self.cost_requests: list[pb.ListCostsRequest] = []
        self.bundles: dict[str, bytes] = {}
        self.records: list[pb.Record] = []
        self.workload = "[]"
        self.pairs: list[pb.MeasuredPair] = []
        self.runtime_times: list[pb.RuntimeTime] = []
        self.tables: list[pb.OperatorTable] = []
        self.imported: list[pb.ImportRecordsRequest] = []
        self.imports: list[int] = []
        """number of parts of each call"""
        self.filters: list[pb.RecordFilter] = []
        self.plan_requests: list[pb.MakePlanRequest] = []
        self.plans: list[pb.Plan] = []
        self.workers = [pb.Worker(name="workers/w1", role="build", host="here", pid=1)]
        self.waiting: list[pb.WaitingWork] = []
        self.fail_with: FractuneError | None = None
        self.fail_jobs: FractuneError | None = None
        """as `fail_with`, of the list of jobs"""
        self.fail_get: FractuneError | None = None
        """as `fail_with`, of one job"""
        self.fail_create: FractuneError | None = None
        """as `fail_with`, of a new job"""
        self.offered: list[pb.OfferedShare] = []
        self.before_list: Callable[[], object] = lambda: None
        """called before the jobs are listed"""
        self.lists = 0
        """how often the jobs were listed"""
        self.watch: Callable[[grpc.ServicerContext], Iterator[pb.Job]] | None = None

    def _maybe_fail(self, context: grpc.ServicerContext) -> None:
        if self.fail_with is not None:
            abort(context, self.fail_with)

    def GetModel(self, request: pb.GetModelRequest, context: Any) -> pb.Model:
        self._maybe_fail(context)
        if request.name not in self.models:
            abort(context, NotFound(f"no {request.name}"))
        return pb.Model(name=request.name)

    def GetUpload(self, request: pb.GetUploadRequest, context: Any) -> pb.Upload:
        return pb.Upload(name=request.name)

    def UploadModel(self, request_iterator: Iterator[pb.UploadModelRequest], context: Any) -> pb.Model:
        header = next(request_iterator).header
        payload = b"".join(part.data for part in request_iterator)
        assert hashlib.sha256(payload).hexdigest() == header.sha256
        assert len(payload) == header.size_bytes
        self.uploads += 1
        self.models[f"models/{header.sha256}"] = payload
        return pb.Model(name=f"models/{header.sha256}", display_name=header.display_name)

    def CreateJob(self, request: pb.CreateJobRequest, context: Any) -> pb.Job:
        self.specs.append(request.spec)
        if self.fail_create is not None:
            abort(context, self.fail_create)
        return self.script[0]

    def GetJob(self, request: pb.GetJobRequest, context: Any) -> pb.Job:
        if self.fail_get is not None:
            abort(context, self.fail_get)
        found = next((each for each in reversed(self.script) if each.name == request.name), None)
        if found is None:
            abort(context, NotFound(f"no job '{request.name}'; list them with 'fractune jobs'"))
        return found

    def ListJobs(self, request: pb.ListJobsRequest, context: Any) -> pb.ListJobsResponse:
        self.lists += 1
        self.before_list()
        if self.fail_jobs is not None:
            abort(context, self.fail_jobs)
        start = int(request.page_token or 0)
        stop = start + min(request.page_size, 2)  # small pages, so that the client must turn them
        token = str(stop) if stop < len(self.script) else ""
        return pb.ListJobsResponse(jobs=self.script[start:stop], next_page_token=token)

    def ListCosts(self, request: pb.ListCostsRequest, context: Any) -> pb.ListCostsResponse:
        self.cost_requests.append(pb.ListCostsRequest.FromString(request.SerializeToString()))
        start = int(request.page_token or 0)
        token = str(start + 1) if start + 1 < len(self.costs) else ""
        return pb.ListCostsResponse(costs=self.costs[start : start + 1], next_page_token=token)

    def CancelJob(self, request: pb.CancelJobRequest, context: Any) -> pb.Job:
        self.cancelled.append(request.name)
        return pb.Job(name=request.name, spec=pb.JobSpec(model="models/ab"), state=pb.JOB_STATE_CANCELLED)

    def WatchJob(self, request: pb.WatchJobRequest, context: Any) -> Iterator[pb.Job]:
        yield from self.watch(context) if self.watch else self.script

    def ListRecords(self, request: pb.ListRecordsRequest, context: Any) -> pb.ListRecordsResponse:
        self.filters.append(request.filter)
        start = int(request.page_token or 0)
        stop = start + min(request.page_size, 2)
        token = str(stop) if stop < len(self.records) else ""
        return pb.ListRecordsResponse(
            records=self.records[start:stop], next_page_token=token, total_size=len(self.records)
        )

    def ExportRecords(self, request: pb.ExportRecordsRequest, context: Any) -> Iterator[pb.ExportRecordsResponse]:
        self.filters.append(request.filter)
        if request.with_workloads:
            yield pb.ExportRecordsResponse(workload=pb.Workload(workload_hash="0123", json=self.workload))
        for record in self.records:
            yield pb.ExportRecordsResponse(record=record)

    def ImportRecords(
        self, request_iterator: Iterator[pb.ImportRecordsRequest], context: Any
    ) -> pb.ImportRecordsResponse:
        call = list(request_iterator)
        self.imported += call
        self.imports.append(len(call))
        added = sum(part.WhichOneof("part") == "record" for part in call)
        return pb.ImportRecordsResponse(added=added)

    def PruneRecords(self, request: pb.PruneRecordsRequest, context: Any) -> pb.PruneRecordsResponse:
        self.filters.append(request.filter)
        return pb.PruneRecordsResponse(deleted=len(self.records) - request.keep_best, kept=request.keep_best)

    def ListUnreadable(self, request: pb.ListUnreadableRequest, context: Any) -> pb.ListUnreadableResponse:
        kept = pb.UnreadableResult(place="fractune:results:tune-1 7-0", reason="KeyError('kind')", event="{}")
        kept.set_aside_time.FromSeconds(1_000_000_000)
        return pb.ListUnreadableResponse(results=[kept][: request.page_size], total_size=3)

    def ReplayUnreadable(self, request: pb.ReplayUnreadableRequest, context: Any) -> pb.ReplayUnreadableResponse:
        return pb.ReplayUnreadableResponse(replayed=3)

    def AddPair(self, request: pb.AddPairRequest, context: Any) -> pb.AddPairResponse:
        self.pairs.insert(0, request.pair)
        return pb.AddPairResponse(added=True)

    def ListPairs(self, request: pb.ListPairsRequest, context: Any) -> pb.ListPairsResponse:
        return pb.ListPairsResponse(pairs=self.pairs)

    def AddRuntimeTimes(self, request: pb.AddRuntimeTimesRequest, context: Any) -> pb.AddRuntimeTimesResponse:
        self.runtime_times = [*request.times, *self.runtime_times]
        return pb.AddRuntimeTimesResponse(added=len(request.times))

    def ListRuntimeTimes(self, request: pb.ListRuntimeTimesRequest, context: Any) -> pb.ListRuntimeTimesResponse:
        return pb.ListRuntimeTimesResponse(times=[each for each in self.runtime_times if each.model == request.model])

    def MatchModel(self, request: pb.MatchModelRequest, context: Any) -> pb.MatchModelResponse:
        operator = pb.Operator(display_name="conv", weight=2, workload_hash="0123")
        match = pb.OperatorMatch(operator=operator, how="none", reason="no published record")
        return pb.MatchModelResponse(matches=[match])

    def TabulateModel(self, request: pb.TabulateModelRequest, context: Any) -> pb.TabulateModelResponse:
        if not self.tables:
            abort(context, NotFound(f"nothing of {request.model} was measured"))
        return pb.TabulateModelResponse(operators=self.tables)

    def MakePlan(self, request: pb.MakePlanRequest, context: Any) -> pb.Plan:
        self._maybe_fail(context)
        self.plan_requests.append(request)
        return self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]

    def DownloadBundle(self, request: pb.DownloadBundleRequest, context: Any) -> Iterator[pb.DownloadBundleResponse]:
        if request.name not in self.bundles:
            abort(context, NotFound(f"no {request.name}"))
        payload = self.bundles[request.name]
        for start in range(0, len(payload), 4):
            yield pb.DownloadBundleResponse(data=payload[start : start + 4])

    def ListWorkers(self, request: pb.ListWorkersRequest, context: Any) -> pb.ListWorkersResponse:
        self._maybe_fail(context)
        return pb.ListWorkersResponse(workers=self.workers, waiting=self.waiting)

    def ListShares(self, request: pb.ListSharesRequest, context: Any) -> pb.ListSharesResponse:
        return pb.ListSharesResponse(shares=self.offered)


@contextlib.contextmanager
def serving(servicer: ScriptedServer, address: str = "127.0.0.1:0") -> Iterator[ScriptedServer]:
    """Serve until the block ends; `servicer.address` says where."""
    server = grpc.server(futures.ThreadPoolExecutor(4))
    rpc.add_ModelServiceServicer_to_server(servicer, server)
    rpc.add_JobServiceServicer_to_server(servicer, server)
    rpc.add_LogServiceServicer_to_server(servicer, server)
    rpc.add_BundleServiceServicer_to_server(servicer, server)
    rpc.add_FleetServiceServicer_to_server(servicer, server)
    rpc.add_PlanServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    servicer.address = f"127.0.0.1:{port}" if address.startswith("127.") else address
    server.start()
    try:
        yield servicer
    finally:
        server.stop(grace=None).wait()
