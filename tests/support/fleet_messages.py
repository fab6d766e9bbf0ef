"""Messages as they are under way between server and workers, for tests that put them into Redis by hand."""

from collections.abc import Iterable
from typing import Any

import redis

from fractune_core.fleet import redis_names
from fractune_core.fleet.messages import (
    BuildWork,
    CandidateItem,
    IngestWork,
    MeasureWork,
    SearchOpening,
    SearchWork,
    TargetOperator,
    TimeModelWork,
    WorkerInfo,
    WorkRound,
)
from fractune_core.fleet.signed_messages import seal_event, seal_replayed
from fractune_core.records import ArtifactItem, Kind, TuningRecord
from tests.support.processes.made_up import DEVICE, made_up_record
from tests.support.samples import WORKLOAD
from tests.support.secret import SECRET

STREAM = redis_names.tuner_stream("tune-1")
CONV2D = TargetOperator(WORKLOAD, "conv2d", "{}", "{}")
TIME_MODEL = TimeModelWork(work_id="work1", job="job1", tenant="default", share="cpu:1", bundle="b")
_COMMON: dict[str, Any] = {"work_id": "work1", "job": "job1", "tenant": "default"}
_REQUEST: dict[str, Any] = {**_COMMON, "device_key": DEVICE.key, "shares": ["cpu:1"]}


def operator_of(workload: dict[str, Any], target: str = "") -> TargetOperator:
    """Of `matmul_workload`."""
    return TargetOperator(workload["hash"], "matmul", target or workload["target"], target or workload["key"])


def search_work(operator: TargetOperator, round_id: str = "round1", **more: Any) -> SearchWork:
    """Four candidates of a new search; `more`: other fields, or other values."""
    search = {"count": 4, "exact": False, "seed": 3, "lost": [], "fresh": False, "opening": SearchOpening([], [], [])}
    return SearchWork(round=WorkRound(round_id, "", operator), **{**_REQUEST, **search, **more})


def build_work(
    operator: TargetOperator, candidates: list[CandidateItem], round_id: str = "round1", **more: Any
) -> BuildWork:
    work = {**_REQUEST, "purpose": Kind.TRIAL, "reply": redis_names.SERVER_STREAM, **more}
    return BuildWork(round=WorkRound(round_id, "", operator), candidates=candidates, **work)


def measure_work(
    operator: TargetOperator, artifacts: Iterable[ArtifactItem] = (), round_id: str = "round1", **more: Any
) -> MeasureWork:
    place = {"share": "cpu:1", "args_info": [], "reply": redis_names.SERVER_STREAM}
    work = {**_COMMON, "purpose": Kind.TRIAL, **place, **more}
    return MeasureWork(round=WorkRound(round_id, "", operator), candidates=list(artifacts), **work)


def ingest_work(sha256: str, **more: Any) -> IngestWork:
    model = {"model": sha256, "model_name": "small.onnx", "owner": "", "inputs": {}, "target": "llvm", "isa": ""}
    return IngestWork(**{**_COMMON, **model, **more})


BUILD = build_work(
    CONV2D, [CandidateItem("c1", "[1]"), CandidateItem("c2", "[2]")], shares=["cpu:1", "cpu:2"], reply=STREAM
)


def record(candidate: str, share: str = "cpu:1") -> TuningRecord:
    return made_up_record(measure_work(CONV2D, share=share), candidate, f'["{candidate}"]')


def send(connection: redis.Redis, *records: TuningRecord, stream: str = STREAM) -> None:
    for each in records:
        connection.xadd(stream, {redis_names.EVENT_FIELD: _sealed(each)})


def send_once_more(connection: redis.Redis, *records: TuningRecord) -> None:
    """As if an operator had asked for it: they count though no round waits for them."""
    for each in records:
        replayed = seal_replayed(SECRET, _sealed(each))
        connection.xadd(redis_names.SERVER_STREAM, {redis_names.REPLAYED_FIELD: replayed})


def _sealed(record: TuningRecord) -> str:
    event: Any = {"event": "measured", "job": "job1", "round_id": "round1", "record": record.to_json()}
    return seal_event(SECRET, event)


def worker_info(name: str, started_at: float, role: str = "build") -> WorkerInfo:
    """The entry of a worker without a share; `started_at` in seconds since 1970."""
    return WorkerInfo(name=name, role=role, started_at=started_at, host="", pid=0, cores=[])
