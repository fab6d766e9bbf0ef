"""The messages of server and workers through Redis: workers' entries, work on queues, events on streams.

`fractune_core.fleet.redis_names` says which queues and streams; all of it is signed:
`fractune_core.fleet.signed_messages`.
"""

import json
import time
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args, get_type_hints

from fractune_core.fleet.redis_names import PROTOCOL
from fractune_core.names import check_tenant
from fractune_core.records import ArtifactItem, Kind, Status, TimingPolicy, TuningRecord, WorkCost, record_id
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


@dataclass(frozen=True)
class CoreHolder:
    """A process that measures on cores of a host."""

    host: str
    pid: int
    cores: list[int]


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """The entry of a live worker, sealed, under `worker_key(name)`, renewed every second."""

    protocol: int = PROTOCOL
    name: str
    role: str
    host: str
    pid: int
    started_at: float
    cores: list[int]
    device: Device | None = None
    """with `granted` None for roles that do not measure"""
    granted: GrantedShare | None = None
    share: str = ""
    target: str = ""
    """TVM's default target of the measuring device as JSON; empty for roles that do not measure"""
    versions: dict[str, str] = field(default_factory=dict)
    state: str = IDLE
    """BUSY or IDLE"""
    uptime_s: float = 0.0
    """seconds since it began to count"""
    counts: list[tuple[str, str, str, float]] = field(default_factory=list)
    """since then: `fractune_core.fleet.redis_state.CountKey`s, each with its number"""
    waits_for: list[CoreHolder] = field(default_factory=list)
    """the measurements that have kept the worker from its cores for some seconds"""


# ---- work, server -> worker or worker -> worker ------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnyWork:
    """The common fields of all work."""

    work_id: str
    job: str
    tenant: str
    """of that job: the name that `fractune_core.names.check_tenant` accepts"""
    traceparent: str = ""
    """W3C trace context: the parent span in the trace of its job; empty where nothing is traced"""

    def __post_init__(self) -> None:
        check_tenant(self.tenant)


@dataclass(frozen=True, kw_only=True)
class ModelWork(AnyWork):
    model: str
    """SHA-256 of the model file: it is the blob `model_blob(model)`"""
    model_name: str
    owner: str
    """id of the token that it is done for; empty = no token was needed. No process reads models of two owners."""
    inputs: dict[str, list[int]]
    target: str
    """for an ingest, target text as the user or the measuring worker gave it; else TVM's target as JSON"""


@dataclass(frozen=True, kw_only=True)
class IngestWork(ModelWork):
    isa: str
    """of the device that will run the code: a worker on such a machine checks that the target fits it"""
    task: Literal["ingest"] = "ingest"


@dataclass(frozen=True)
class PastTrial:
    candidate: str
    trace: str
    """As in a record: that of another implementation follows its name (`fractune_core.operators`). All traces of
    work have this form."""
    secs: dict[str, float]
    """median in seconds by share, at all shares of the round; 0 = failed"""


@dataclass(frozen=True)
class TargetOperator:
    """An operator, and the target that it is compiled for."""

    workload_hash: str
    name: str
    """in the model that it is measured for: a label"""
    target: str
    """TVM's target as JSON"""
    target_key: str


@dataclass(frozen=True)
class WorkRound:
    """The round of an operator that work belongs to. The work's job requested it; others may wait for it."""

    id: str
    namespace: str
    """of that job"""
    operator: TargetOperator
    at_front: bool = False
    """This work, and what follows from it, goes to the front of its queue: the job has got less than others."""
    repeat_ms: float | None = None
    """length of one repeat of a validation; None = the policy's own length"""
    validates: bool = False
    """Its one candidate has no competitor: it is validated at once, beside the untuned default. Its trial is the
    repeats that choose."""


@dataclass(frozen=True, kw_only=True)
class RoundWork(AnyWork):
    round: WorkRound


@dataclass(frozen=True)
class SearchOpening:
    """The log's knowledge of an operator, for an instance that is new to the search."""

    history: list[PastTrial]
    """of the operator"""
    known: list[str]
    """candidates that were measured at one of these shares, and must not be proposed"""
    transferred: list[str]
    """traces to try first, of donors: operators of the same kind, or this operator at other shares"""


@dataclass(frozen=True, kw_only=True)
class SearchWork(RoundWork):
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
    task: Literal["search"] = "search"


@dataclass(frozen=True)
class BuiltItem:
    """How a candidate that ran well was built."""

    build_secs: float
    versions: dict[str, str]


@dataclass(frozen=True)
class CandidateItem:
    candidate: str
    trace: str
    built: BuiltItem | None = None
    """Only for a candidate that was built in this round. It is not built again while its artifact exists."""


@dataclass(frozen=True, kw_only=True)
class BuildWork(RoundWork):
    purpose: Kind
    """trial or validation"""
    device_key: str
    shares: list[str]
    candidates: list[CandidateItem]
    reply: str
    """stream for the results"""
    task: Literal["build"] = "build"


@dataclass(frozen=True, kw_only=True)
class MeasureWork(RoundWork):
    purpose: Kind
    share: str
    args_info: list[Any]
    """MetaSchedule's argument descriptions, `["TENSOR", dtype, shape]` each"""
    candidates: list[ArtifactItem]
    """their signed bytes are blobs named `artifact_blob(round.id, candidate)`"""
    reply: str
    task: Literal["measure"] = "measure"


@dataclass(frozen=True)
class VariantItem:
    name: str
    """`untuned`, the share it was tuned at, or `robust`; of the last two also with `+graph` behind, of a share
    also with `+attention`"""
    traces: dict[str, str]
    """trace by workload hash; an operator that is missing stays untuned"""


@dataclass(frozen=True, kw_only=True)
class CompileWork(ModelWork):
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
    task: Literal["compile"] = "compile"


@dataclass(frozen=True, kw_only=True)
class TimeModelWork(AnyWork):
    share: str
    bundle: str
    task: Literal["time_model"] = "time_model"


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
    return work.round.id if isinstance(work, RoundWork) else work.job


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
    operator = work.round.operator
    return TuningRecord(
        record_id=record_id(_measured_in(work), item.candidate, granted.share),
        kind=work.purpose,
        candidate_id=item.candidate,
        workload_hash=operator.workload_hash,
        operator=operator.name,
        target=operator.target,
        target_key=operator.target_key,
        trace=item.trace,
        device=device,
        share=granted.share,
        granted=granted,
        status=status,
        cause=cause,
        run_secs=(),
        policy=policy,
        anchor_ratio=0.0,
        neighbours=0,
        job=work.job,
        worker="",
        measured_at=time.time(),
        namespace=work.round.namespace,
    )


def _measured_in(work: BuildWork | MeasureWork) -> str:
    return f"{work.round.id}-validated" if work.round.validates else work.round.id


def trial_of(work: BuildWork | MeasureWork, validated: TuningRecord) -> TuningRecord:
    """The trial of a candidate that was validated at once: the repeats that choose, which no other record reports."""
    chosen = validated.policy.choosing or len(validated.run_secs)
    return replace(
        validated,
        record_id=record_id(work.round.id, validated.candidate_id, validated.share),
        kind=Kind.TRIAL,
        run_secs=validated.run_secs[:chosen],
        policy=replace(validated.policy, repeats=chosen, choosing=0) if chosen else validated.policy,
    )


# ---- events, worker -> server ------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class AnyEvent:
    job: str


@dataclass(frozen=True)
class OperatorItem:
    workload_hash: str
    name: str
    weight: int
    workload: str
    """the text that the hash is of"""
    flops: float
    """with the bytes an Arithmetic"""
    io_bytes: int
    written_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Ingested(AnyEvent):
    event: Literal["ingested"] = "ingested"
    target: str
    target_key: str
    operators: list[OperatorItem]


@dataclass(frozen=True, kw_only=True)
class Proposed(AnyEvent):
    event: Literal["proposed"] = "proposed"
    round_id: str
    workload_hash: str
    candidates: list[str]
    exhausted: bool
    """True when the operator's space holds no further candidate"""


@dataclass(frozen=True, kw_only=True)
class SearchForgotten(AnyEvent):
    """In place of Proposed, if the instance does not know the search and got no records of it."""

    event: Literal["search_forgotten"] = "search_forgotten"
    round_id: str


@dataclass(frozen=True, kw_only=True)
class Measured(AnyEvent):
    event: Literal["measured"] = "measured"
    round_id: str
    record: TuningRecord
    traceparent: str = ""
    """of the batch, as `AnyWork.traceparent`"""


@dataclass(frozen=True, kw_only=True)
class RoofMeasured(AnyEvent):
    """The limits of a share, whenever a measuring process finds better ones."""

    event: Literal["roof_measured"] = "roof_measured"
    device_key: str
    share_key: str
    roof: dict[str, Any]
    """Roof as JSON"""


@dataclass(frozen=True, kw_only=True)
class Compiled(AnyEvent):
    event: Literal["compiled"] = "compiled"
    bundle: str


@dataclass(frozen=True, kw_only=True)
class ModelTimed(AnyEvent):
    event: Literal["model_timed"] = "model_timed"
    share: str
    granted: GrantedShare
    run_secs: dict[str, list[float]]
    """by variant: all repeats, interleaved"""
    max_error: dict[str, float]
    """by variant: largest difference to the untuned output, over that output's largest value"""
    untuned_sum_s: float = 0.0
    """seconds of the untuned variant's operators; then it was too slow to run, and is not in `run_secs`. 0 = it ran"""
    at_load: list[dict[str, Any]]
    """AtLoads as JSON, the variant for the share first"""
    others_cores: float
    """cores of the share that other programs had meanwhile, on average; 0 on a GPU"""
    inside: dict[str, Any] | None
    """Inside as JSON; None where the calls inside the model were not timed"""


@dataclass(frozen=True)
class PieceDone(WorkCost):
    """The cost of a piece of work, beside its results."""

    event: Literal["piece_done"] = "piece_done"


@dataclass(frozen=True, kw_only=True)
class WorkFailed(AnyEvent):
    event: Literal["work_failed"] = "work_failed"
    task: str
    round_id: str = ""
    """empty for work without a round"""
    error: str
    """class name in fractune_core.errors"""
    message: str


Event = Ingested | Proposed | SearchForgotten | Measured | RoofMeasured | Compiled | ModelTimed | PieceDone | WorkFailed
EVENT_BY_KIND = _by_literal("event", Event)
