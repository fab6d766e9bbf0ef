"""The messages of server and workers through Redis: workers' entries, work on queues, events on streams.

`fractune_core.fleet.redis_names` says which queues and streams; all of it is signed:
`fractune_core.fleet.signed_messages`.
"""

from __future__ import annotations

import json
import time
from typing import Any, Literal, NotRequired, TypedDict, get_args, get_type_hints

from fractune_core.records import Kind, Status, TimingPolicy, TuningRecord, record_id
from fractune_core.shares import Device, GrantedShare
from fractune_core.targets import is_cuda

CPU_BATCH = 8
"""Several builders share a round, and the anchor is timed once for each piece."""
CUDA_BATCH = 2
"""A build by nvcc takes about a second, far longer than an anchor (H200): a first round of 8 waited for one builder."""


def build_batch(target_key: str) -> int:
    """The most candidates in a piece of build work for this target. It depends on nothing else: a search that is
    repeated must yield the same pieces.
    """
    return CUDA_BATCH if is_cuda(json.loads(target_key)) else CPU_BATCH


BUSY, IDLE = "busy", "idle"
MOST_EVENT_BYTES = 64 << 20
"""of an event as it is sent; that of an ingest has the text of every operator"""


class CoreHolder(TypedDict):
    """A process that measures on cores of a host."""

    host: str
    pid: int
    cores: list[int]


class WorkerInfo(TypedDict):
    """The entry of a live worker, sealed, under `worker_key(name)`, renewed every second."""

    protocol: int
    name: str
    role: str
    host: str
    pid: int
    started_at: float
    cores: list[int]
    device: dict[str, Any]
    """Device as JSON; empty for roles that do not measure"""
    granted: dict[str, Any]
    """GrantedShare as JSON; empty for roles that do not measure"""
    share: str
    target: str
    """TVM's default target of the measuring device as JSON; empty for roles that do not measure"""
    versions: dict[str, str]
    state: NotRequired[str]
    """BUSY or IDLE; older workers lack this field and those below"""
    uptime_s: NotRequired[float]
    """seconds since it began to count"""
    counts: NotRequired[list[list[Any]]]
    """since then: `fractune_core.fleet.worker_entries.counts_to_json`"""
    waits_for: NotRequired[list[CoreHolder]]
    """the measurements that have kept the worker from its cores for some seconds"""


# ---- work, server -> worker or worker -> worker ------------------------------------------------------------------


class AnyWork(TypedDict):
    """The common fields of all work."""

    work_id: str
    job: str
    traceparent: NotRequired[str]
    """W3C trace context: the parent span in the trace of its job; absent where nothing is traced"""


class ModelWork(AnyWork):
    model: str
    """SHA-256 of the model file: it is the blob `model_blob(model)`"""
    model_name: str
    owner: str
    """id of the token that it is done for; empty = no token was needed. No process reads models of two owners."""
    inputs: dict[str, list[int]]
    target: str
    """for an ingest, target text as the user or the measuring worker gave it; else TVM's target as JSON"""


class IngestWork(ModelWork):
    task: Literal["ingest"]
    isa: str
    """of the device that will run the code: a worker on such a machine checks that the target fits it"""


class PastTrial(TypedDict):
    candidate: str
    trace: str
    """As in a record: that of another implementation follows its name (`fractune_core.implementations`). All traces of
    work have this form."""
    secs: dict[str, float]
    """median in seconds by share, at all shares of the round; 0 = failed"""


class TargetOperator(TypedDict):
    """An operator, and the target that it is compiled for."""

    workload_hash: str
    name: str
    """in the model that it is measured for: a label"""
    target: str
    """TVM's target as JSON"""
    target_key: str


class RoundWork(AnyWork):
    """The common fields of the work of one round of an operator. `job` requested the round; others may wait for it."""

    round_id: str
    namespace: str
    """of that job"""
    operator: TargetOperator
    at_front: NotRequired[bool]
    """This work, and what follows from it, goes to the front of its queue: the job has got less than others."""
    repeat_ms: NotRequired[float]
    """length of one repeat of a validation; the policy's own length if absent"""


class SearchOpening(TypedDict):
    """The log's knowledge of an operator, for an instance that is new to the search."""

    history: list[PastTrial]
    """of the operator"""
    known: list[str]
    """candidates that were measured at one of these shares, and must not be proposed"""
    transferred: list[str]
    """traces to try first, of donors: operators of the same kind, or this operator at other shares"""


class SearchWork(RoundWork):
    task: Literal["search"]
    device_key: str
    shares: list[str]
    """of all jobs that wait for the round"""
    fresh: bool
    """The job shares no searches: this search is its own, and learns from its own results alone."""
    count: int
    """number of requested candidates"""
    exact: bool
    """only candidates that round like the operator itself"""
    seed: int
    lost: list[str]
    """candidates that this instance proposed for a job that ended before they were measured: to be proposed again"""
    opening: SearchOpening | None
    """None if the instance has searched the operator before. An instance that has lost the search must not begin again,
    because it would propose measured candidates. It answers with SearchForgotten."""


class BuiltItem(TypedDict):
    """How a candidate that ran well was built."""

    build_secs: float
    versions: dict[str, str]


class CandidateItem(TypedDict):
    candidate: str
    trace: str
    built: NotRequired[BuiltItem]
    """Only for a candidate that was built in this round. It is not built again while its artifact exists."""


class BuildWork(RoundWork):
    task: Literal["build"]
    purpose: str
    """Kind: trial or validation"""
    device_key: str
    shares: list[str]
    candidates: list[CandidateItem]
    reply: str
    """stream for the results"""


class ArtifactItem(TypedDict):
    candidate: str
    trace: str
    build_secs: float
    status: str
    """Status.OK, or how the build failed. A failed build has no artifact, and the measurer only writes the record."""
    cause: str
    versions: NotRequired[dict[str, str]]
    """what made the code, beside TVM, for the record: `compiler`"""


class MeasureWork(RoundWork):
    task: Literal["measure"]
    purpose: str
    share: str
    args_info: list[Any]
    """MetaSchedule's argument descriptions, `["TENSOR", dtype, shape]` each"""
    artifacts: list[ArtifactItem]
    """their signed bytes are blobs named `artifact_blob(round_id, candidate)`"""
    reply: str


class VariantItem(TypedDict):
    name: str
    """`untuned`, the share it was tuned at, or `robust`; of the last two also with `+graph` behind, of a share
    also with `+attention`"""
    traces: dict[str, str]
    """trace by workload hash; an operator that is missing stays untuned"""


class CompileWork(ModelWork):
    task: Literal["compile"]
    bundle: str
    """its id; the worker puts the signed bundle into the blob `bundle_blob(bundle)`"""
    manifest: dict[str, Any]
    """the server's part of the bundle's manifest: job, device, shares, records"""
    variants: list[VariantItem]
    records: list[dict[str, Any]]
    """the published TuningRecords as JSON, to travel inside the bundle"""
    check_inputs: str
    """SHA-256 of a file of arrays on which the bundle is compared with its model too, a blob as the model; empty =
    none"""


class TimeModelWork(AnyWork):
    task: Literal["time_model"]
    share: str
    bundle: str


def _by_literal(field: str, union: Any) -> dict[str, type[Any]]:
    """The members of a union, each by the one value that this field of it may have."""
    return {get_args(get_type_hints(member)[field])[0]: member for member in get_args(union)}


Work = IngestWork | SearchWork | BuildWork | MeasureWork | CompileWork | TimeModelWork
WORK_BY_KIND = _by_literal("task", Work)
WORK_KINDS = tuple(WORK_BY_KIND)


def cancelled_by(work: Work) -> str:
    """The id whose mark CANCELLED cancels this work: that of its round, which may outlive the job that requested it, or
    of its job for work without a round.
    """
    return str(work.get("round_id", work["job"]))


def round_work(
    round_id: str, job: str, namespace: str, operator: TargetOperator, *, at_front: bool, repeat_ms: float | None = None
) -> RoundWork:
    """What all work of a round has in common; `repeat_ms` as in RoundWork."""
    made: RoundWork = {
        "work_id": round_id,
        "round_id": round_id,
        "job": job,
        "namespace": namespace,
        "operator": operator,
        "at_front": at_front,
    }
    return made if repeat_ms is None else {**made, "repeat_ms": repeat_ms}


def _same_round(work: RoundWork) -> RoundWork:
    operator, at_front, repeat_ms = work["operator"], work.get("at_front", False), work.get("repeat_ms")
    return round_work(
        work["round_id"], work["job"], work["namespace"], operator, at_front=at_front, repeat_ms=repeat_ms
    )


def build_work(
    of: RoundWork,
    work_id: str,
    purpose: Kind,
    device_key: str,
    shares: list[str],
    candidates: list[CandidateItem],
    reply: str,
) -> BuildWork:
    """The work that builds the candidates, in the round of the work `of`."""
    return {
        **_same_round(of),
        "task": "build",
        "work_id": work_id,
        "purpose": purpose.value,
        "device_key": device_key,
        "shares": shares,
        "candidates": candidates,
        "reply": reply,
    }


def measure_work(
    of: BuildWork, work_id: str, share: str, args_info: list[Any], artifacts: list[ArtifactItem]
) -> MeasureWork:
    """The work that measures what the work `of` has built, at one of its shares."""
    return {
        **_same_round(of),
        "task": "measure",
        "work_id": work_id,
        "purpose": of["purpose"],
        "share": share,
        "args_info": args_info,
        "artifacts": artifacts,
        "reply": of["reply"],
    }


def work_record(
    work: BuildWork | MeasureWork,
    item: CandidateItem | ArtifactItem,
    device: Device,
    granted: GrantedShare,
    status: Status,
    cause: str,
    policy: TimingPolicy,
) -> TuningRecord:
    """A record of one candidate of the work under the share `granted`, measured now.

    It has the fields of the work, and the end of the measurement. The measurer adds what it measured.
    """
    operator = work["operator"]
    return TuningRecord(
        record_id=record_id(work["round_id"], item["candidate"], granted.share),
        kind=Kind(work["purpose"]),
        candidate_id=item["candidate"],
        workload_hash=operator["workload_hash"],
        operator=operator["name"],
        target=operator["target"],
        target_key=operator["target_key"],
        trace=item["trace"],
        device=device,
        share=granted.share,
        granted=granted,
        status=status,
        cause=cause,
        run_secs=(),
        policy=policy,
        anchor_ratio=0.0,
        neighbours=0,
        job=work["job"],
        worker="",
        measured_at=time.time(),
        namespace=work["namespace"],
    )


# ---- events, worker -> server ------------------------------------------------------------------------------------


class AnyEvent(TypedDict):
    job: str


class OperatorItem(TypedDict):
    workload_hash: str
    name: str
    weight: int
    workload: str
    """the text that the hash is of"""
    flops: NotRequired[float]
    """with `io_bytes` an Arithmetic; older workers lack both"""
    io_bytes: NotRequired[int]


class Ingested(AnyEvent):
    event: Literal["ingested"]
    target: str
    target_key: str
    operators: list[OperatorItem]


class Proposed(AnyEvent):
    event: Literal["proposed"]
    round_id: str
    workload_hash: str
    candidates: list[str]
    exhausted: bool
    """True when the operator's space holds no further candidate"""


class SearchForgotten(AnyEvent):
    """In place of Proposed, if the instance does not know the search and got no records of it."""

    event: Literal["search_forgotten"]
    round_id: str


class Measured(AnyEvent):
    event: Literal["measured"]
    round_id: str
    record: dict[str, Any]
    """TuningRecord as JSON"""
    traceparent: NotRequired[str]
    """of the batch, as `AnyWork.traceparent`"""


class RoofMeasured(AnyEvent):
    """The limits of a share, whenever a measuring process finds better ones."""

    event: Literal["roof_measured"]
    device_key: str
    share_key: str
    roof: dict[str, Any]
    """Roof as JSON"""


class Compiled(AnyEvent):
    event: Literal["compiled"]
    bundle: str


class ModelTimed(AnyEvent):
    event: Literal["model_timed"]
    share: str
    granted: dict[str, Any]
    run_secs: dict[str, list[float]]
    """by variant: all repeats, interleaved"""
    max_error: dict[str, float]
    """by variant: largest difference to the untuned output, over that output's largest value"""
    at_load: NotRequired[list[dict[str, Any]]]
    """AtLoads as JSON, the variant for the share first; older workers lack it and `others_cores`"""
    others_cores: NotRequired[float]
    """cores of the share that other programs had meanwhile, on average; 0 on a GPU"""


class PieceDone(AnyEvent):
    """The cost of a piece of work, beside its results: a `fractune_core.spending.WorkCost`."""

    event: Literal["piece_done"]
    work_id: str
    task: str
    share: str
    worked_s: float
    cpu_s: float
    ended_at: float


class WorkFailed(AnyEvent):
    event: Literal["work_failed"]
    task: str
    round_id: NotRequired[str]
    error: str
    """class name in fractune_core.errors"""
    message: str


Event = Ingested | Proposed | SearchForgotten | Measured | RoofMeasured | Compiled | ModelTimed | PieceDone | WorkFailed
EVENT_BY_KIND = _by_literal("event", Event)
