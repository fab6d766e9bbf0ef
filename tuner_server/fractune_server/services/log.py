"""The tuning log: list, export, import, prune, match."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import grpc

from fractune_core.analysis.match import How, Policy
from fractune_core.analysis.model_times import MeasuredPair, RuntimeTime
from fractune_core.analysis.roofline import Arithmetic
from fractune_core.codec.messages import from_proto, to_lists, to_proto
from fractune_core.errors import BadRequest, QuotaExceeded
from fractune_core.jobs import OperatorTask
from fractune_core.names import Collection
from fractune_core.operators import check_workload
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_core.records import Kind, TuningRecord
from fractune_core.shares import parse_shares
from fractune_core.targets import check_target
from fractune_server.authenticator import Places, caller
from fractune_server.selection.model_match import Matcher, MatchQuery, OperatorAnswer, OperatorRow
from fractune_server.services.jobs import arithmetic_to_proto
from fractune_server.services.models import arriving
from fractune_server.services.paging import PageTokens, first_page, page_size
from fractune_server.store.database.sight import namespace_of
from fractune_server.store.records.log import RecordPlace
from fractune_server.store.records.rows import RecordFilter, check_record
from fractune_server.transport.context import CallContext, TenantView
from fractune_server.transport.unreadable import SetAsideResult, replay, unreadable_results

IMPORT_LIMIT_BYTES = 32 << 20
"""of one call, which holds all of them in memory; clients send a larger log in several calls"""
_IMPORTS_AT_ONCE = 2
_IMPORT_WAIT_S = 60.0
_MOST_RUNTIME_TIMES = 1000
_MOST_QUERY_BYTES = 16 << 10
"""of a match, as of a job's spec"""
_LONGEST_FILTER = 256
"""characters of a text in a filter"""


class LogService(rpc.LogServiceServicer):
    def __init__(self, context: CallContext, matcher: Matcher) -> None:
        self._view = context.view
        self._matcher = matcher
        self._redis, self._secret = context.redis, context.secret
        self._tokens = PageTokens(context.secret)
        self._imports = Places(_IMPORTS_AT_ONCE, "imports", _IMPORT_WAIT_S)

    def ListRecords(self, request: pb.ListRecordsRequest, context: grpc.ServicerContext) -> pb.ListRecordsResponse:
        chosen, view = _filter(request.filter), self._view()
        token = self._tokens.read(request.page_token, length=2)
        after = RecordPlace(float(token[0]), int(token[1])) if token else None
        size = page_size(request.page_size, default=100)
        rows = view.log.page(chosen, size + 1, after, fastest_first=request.fastest_first)
        page, end = first_page([(place, record_to_proto(record)) for place, record in rows], size)
        records = [record for _, record in rows[: len(page)]]
        return pb.ListRecordsResponse(
            records=page,
            next_page_token=self._tokens.write(None if end is None else [end.ranking_median_s, end.seq]),
            total_size=view.log.count(chosen),
            arithmetic={
                name: to_proto(each, pb.Arithmetic)
                for name, each in view.log.arithmetic(record.workload_hash for record in records).items()
            },
            roofs=_roofs_of(view, records),
        )

    def ExportRecords(
        self, request: pb.ExportRecordsRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.ExportRecordsResponse]:
        sent, log = set[str](), self._view().log
        for record in log.all(_filter(request.filter)):
            name = record.workload_hash
            if request.with_workloads and name not in sent:
                sent.add(name)
                workload = pb.Workload(workload_hash=name, json=log.workload(name))
                yield pb.ExportRecordsResponse(workload=workload)
            yield pb.ExportRecordsResponse(record=record_to_proto(record))

    def ImportRecords(
        self, request_iterator: Iterator[pb.ImportRecordsRequest], context: Any
    ) -> pb.ImportRecordsResponse:
        with self._imports.place(caller().owner):
            return self._import(request_iterator, context)

    def _import(self, requests: Iterator[pb.ImportRecordsRequest], context: Any) -> pb.ImportRecordsResponse:
        workloads: dict[str, str] = {}
        records: dict[str, TuningRecord] = {}
        # Read everything before writing anything: a slow sender must not delay the recorder.
        size = 0
        for request in arriving(requests, context, IMPORT_LIMIT_BYTES):
            size += request.ByteSize()
            if size > IMPORT_LIMIT_BYTES:
                raise QuotaExceeded(f"an import is limited to {IMPORT_LIMIT_BYTES} bytes; send it in parts")
            if request.WhichOneof("part") == "workload":
                workload = request.workload
                check_workload(workload.workload_hash, workload.json)
                workloads[workload.workload_hash] = workload.json
            else:
                record = from_proto(TuningRecord, request.record)
                check_record(record)
                records[record.record_id] = record
        added = self._view().log.import_all(workloads.items(), list(records.values()))
        return pb.ImportRecordsResponse(added=added, already_there=len(records) - added)

    def PruneRecords(self, request: pb.PruneRecordsRequest, context: grpc.ServicerContext) -> pb.PruneRecordsResponse:
        if request.keep_best < 0:
            raise BadRequest(f"keep_best is {request.keep_best}; it must be 0 or more")
        chosen = _filter(request.filter)
        deleted, kept = self._view().log.prune(chosen, request.keep_best, dry_run=request.dry_run)
        return pb.PruneRecordsResponse(deleted=deleted, kept=kept)

    def AddPair(self, request: pb.AddPairRequest, context: grpc.ServicerContext) -> pb.AddPairResponse:
        pair = from_proto(MeasuredPair, request.pair)
        pair.check()
        return pb.AddPairResponse(added=self._view().pairs.add(pair))

    def ListPairs(self, request: pb.ListPairsRequest, context: grpc.ServicerContext) -> pb.ListPairsResponse:
        found = self._view().pairs.newest(page_size(request.page_size, default=100), request.model_name)
        return pb.ListPairsResponse(pairs=[to_proto(each, pb.MeasuredPair) for each in found])

    def AddRuntimeTimes(
        self, request: pb.AddRuntimeTimesRequest, context: grpc.ServicerContext
    ) -> pb.AddRuntimeTimesResponse:
        if len(request.times) > _MOST_RUNTIME_TIMES:
            raise BadRequest(f"{len(request.times)} times; send {_MOST_RUNTIME_TIMES} at once")
        times = [from_proto(RuntimeTime, each) for each in request.times]
        for each in times:
            each.check()
        return pb.AddRuntimeTimesResponse(added=self._view().runtime_times.add(times))

    def ListRuntimeTimes(
        self, request: pb.ListRuntimeTimesRequest, context: grpc.ServicerContext
    ) -> pb.ListRuntimeTimesResponse:
        model = Collection.MODELS.parse(request.model) if request.model else ""
        found = self._view().runtime_times.newest(page_size(request.page_size, default=100), model)
        return pb.ListRuntimeTimesResponse(times=[to_proto(each, pb.RuntimeTime) for each in found])

    def MatchModel(self, request: pb.MatchModelRequest, context: grpc.ServicerContext) -> pb.MatchModelResponse:
        answer = self._matcher.match(_query(self._view(), request, context), request.share, _policy(request))
        return pb.MatchModelResponse(
            matches=[_answer(each) for each in answer.operators],
            roof=None if answer.roof is None else to_proto(answer.roof, pb.Roof),
            at_load=[to_proto(each, pb.AtLoad) for each in answer.at_load],
            others_cores=answer.others_cores,
            inside=None if answer.inside is None else to_proto(answer.inside, pb.Inside),
        )

    def TabulateModel(
        self, request: pb.TabulateModelRequest, context: grpc.ServicerContext
    ) -> pb.TabulateModelResponse:
        shares = [str(share) for share in parse_shares(",".join(request.shares))]
        rows = self._matcher.tabulate(_query(self._view(), request, context), shares)
        return pb.TabulateModelResponse(operators=[_row(row) for row in rows])

    def ListUnreadable(
        self, request: pb.ListUnreadableRequest, context: grpc.ServicerContext
    ) -> pb.ListUnreadableResponse:
        size = page_size(request.page_size, default=100)
        found, total = unreadable_results(self._redis, size)
        page, _ = first_page([(each.entry, _unreadable(each)) for each in found], size)
        return pb.ListUnreadableResponse(results=page, total_size=total)

    def ReplayUnreadable(
        self, request: pb.ReplayUnreadableRequest, context: grpc.ServicerContext
    ) -> pb.ReplayUnreadableResponse:
        return pb.ReplayUnreadableResponse(replayed=replay(self._redis, self._secret))


def _unreadable(found: SetAsideResult) -> pb.UnreadableResult:
    message = pb.UnreadableResult(place=found.place, reason=found.reason, event=found.event)
    message.set_aside_time.FromMilliseconds(int(found.set_aside_at * 1000))
    return message


def record_to_proto(record: TuningRecord) -> pb.Record:
    """With the namespace as its tenant knows it."""
    return to_proto(replace(record, namespace=namespace_of(record.namespace)), pb.Record)


def _roofs_of(view: TenantView, records: Sequence[TuningRecord]) -> dict[str, pb.Roof]:
    """By record name, where they are known."""
    by_device = {key: view.roofs.of(key) for key in {record.device.key for record in records}}
    found = {record.record_id: by_device[record.device.key].get(record.granted.key) for record in records}
    known = {Collection.RECORDS.of(name): roof for name, roof in found.items() if roof is not None}
    return {name: to_proto(roof, pb.Roof) for name, roof in known.items()}


def _query(
    view: TenantView, request: pb.MatchModelRequest | pb.TabulateModelRequest, context: grpc.ServicerContext
) -> MatchQuery:
    """Raises NotFound for a model that is not seen."""
    if (size := request.ByteSize()) > _MOST_QUERY_BYTES:
        raise BadRequest(f"the request has {size} bytes, and {_MOST_QUERY_BYTES} is the limit; name less in it")
    check_target(request.target)
    model = view.models.get(Collection.MODELS.parse(request.model))
    return MatchQuery(
        model.sha256,
        to_lists(request.inputs),
        request.target,
        context.time_remaining(),
        caller().owner,
        view.of_tenant(model.tenant),
        request.namespace,
        context.is_active,
    )


def _policy(request: pb.MatchModelRequest) -> Policy:
    ways = [How.EXACT, How.NEAR, How.ROBUST]
    if request.loosest and request.loosest not in ways:
        raise BadRequest(f"policy '{request.loosest}' is unknown; write {', '.join(ways)}")
    return Policy(How(request.loosest or How.ROBUST), request.allow_unmeasured)


def _task(task: OperatorTask, arithmetic: Arithmetic | None = None) -> pb.Operator:
    return to_proto(task, pb.Operator, selected=True, arithmetic=arithmetic_to_proto(arithmetic))


def _row(row: OperatorRow) -> pb.OperatorTable:
    cells = [
        pb.TableCell(tuned_at=variant, run_at=share, record=record_to_proto(record))
        for (variant, share), record in row.cells.items()
    ]
    return pb.OperatorTable(operator=_task(row.task), cells=cells)


def _answer(answer: OperatorAnswer) -> pb.OperatorMatch:
    task, match = answer.task, answer.match
    operator = _task(task, answer.arithmetic)
    if match.untuned_s is not None:
        operator.untuned_s[answer.share] = match.untuned_s
    return pb.OperatorMatch(
        operator=operator,
        how=match.how.value,
        record=None if match.record is None else record_to_proto(match.record),
        regret=match.regret,
        reason=match.reason,
    )


def _filter(message: pb.RecordFilter) -> RecordFilter:
    for field, value in message.ListFields():
        if len(value) > _LONGEST_FILTER:
            raise BadRequest(f"{field.name} has {len(value)} characters, and {_LONGEST_FILTER} is the limit")
    try:
        kind = Kind(message.kind) if message.kind else None
    except ValueError as error:
        raise BadRequest(f"kind is '{message.kind}'; write {' or '.join(Kind)}, or leave it out") from error
    return RecordFilter(
        model=message.model.removeprefix(f"{Collection.MODELS}/"),
        operator=message.operator,
        share=message.share,
        device=message.device,
        kind=kind,
        job=Collection.JOBS.parse(message.job) if message.job else "",
        namespace=message.namespace,
    )
