"""Models and the tuning log through gRPC: upload, list, export, import, prune, match. The fleet is simulated."""

import hashlib
import statistics
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
import redis

from fractune_core.analysis.model_times import MeasuredPair, RuntimeTime
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.files.bundles import Bundle
from fractune_core.fleet import redis_names
from fractune_core.fleet.signed_messages import seal_event
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.speeds import CALL_OVERHEAD_S
from fractune_core.records import TuningRecord
from fractune_server.transport.unreadable import UnreadableStream
from tests.support.fleet_messages import CONV2D, measure_work
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.fleet_simulated import SimulatedFleet
from tests.support.processes.made_up import DEVICE, TARGET_KEY, made_up_record
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes, running_server
from tests.support.secret import SECRET

MODEL = model_bytes(("conv2d", 2), ("dense", 1))
NEVER = model_bytes(("never_planned", 1))


@pytest.fixture(scope="module")
def done(client: Client) -> pb.Job:
    job = client.finish(client.create(client.upload(MODEL, "net.onnx"), trials=16).name)
    assert job.state == pb.JOB_STATE_DONE
    return job


def refused(call: object, *args: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args)  # type: ignore[operator]
    error = as_call(caught.value)
    return error.code(), error.details() or ""


def export(client: Client, **chosen: str) -> list[pb.ExportRecordsResponse]:
    request = pb.ExportRecordsRequest(filter=pb.RecordFilter(**chosen), with_workloads=True)
    return list(client.log.ExportRecords(request))


def as_import(parts: list[pb.ExportRecordsResponse]) -> list[pb.ImportRecordsRequest]:
    return [
        pb.ImportRecordsRequest(workload=part.workload)
        if part.WhichOneof("part") == "workload"
        else pb.ImportRecordsRequest(record=part.record)
        for part in parts
    ]


def test_an_upload_twice_is_one_model(client: Client) -> None:
    first = client.upload(b"some bytes", "a.onnx")
    assert client.upload(b"some bytes", "b.onnx") == first
    model = client.models.GetModel(pb.GetModelRequest(name=first))
    assert (model.display_name, model.size_bytes) == ("a.onnx", 10)


def test_an_upload_that_does_not_match_its_digest_is_refused(client: Client) -> None:
    digest = hashlib.sha256(b"right").hexdigest()
    header = pb.UploadModelRequest(header=pb.ModelHeader(display_name="a", sha256=digest, size_bytes=5))
    code, said = refused(client.models.UploadModel, iter([header, pb.UploadModelRequest(data=b"wrong")]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert digest in said
    code, _ = refused(client.models.GetModel, pb.GetModelRequest(name=f"models/{digest}"))
    assert code is grpc.StatusCode.NOT_FOUND
    code, _ = refused(client.models.UploadModel, iter([]))
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_bad_requests_are_refused_by_name(client: Client, done: pb.Job) -> None:
    bad: dict[str, dict[str, Any]] = {
        "trials is -1": {"trials": -1},
        "round_size is -5": {"round_size": -5},
        "extra_trials is -1": {"more": -1},
        "minutes is -1.0": {"minutes": -1},
        "unknown mechanism 'gpu'": {"shares": ["gpu:1"]},
        "no share named": {"shares": []},
    }
    for complaint, spec in bad.items():
        with pytest.raises(grpc.RpcError, match=complaint):
            client.create(done.spec.model, **spec)
    code, _ = refused(client.job, "jobs/none")
    assert code is grpc.StatusCode.NOT_FOUND
    code, said = refused(client.job, "models/none")
    assert (code, said[-7:]) == (grpc.StatusCode.INVALID_ARGUMENT, "jobs/ID")


def test_the_log_is_listed_page_by_page_fastest_first(client: Client, done: pb.Job) -> None:
    found: list[pb.Record] = []
    token = ""
    while True:
        request = pb.ListRecordsRequest(
            filter=pb.RecordFilter(model=done.spec.model), page_size=7, page_token=token, fastest_first=True
        )
        page = client.log.ListRecords(request)
        found += page.records
        token = page.next_page_token
        if not token:
            break
    assert len({record.name for record in found}) == len(found) == page.total_size
    medians = [from_proto(TuningRecord, record).median_s for record in found]
    assert medians == sorted(medians)
    chosen = pb.RecordFilter(model="net", operator="dense", share="cpu:2", kind="validation", device="simulated")
    validations = client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)).records
    assert {(r.operator, r.granted.share, r.kind) for r in validations} == {("dense", "cpu:2", "validation")}
    code, said = refused(client.log.ListRecords, pb.ListRecordsRequest(filter=pb.RecordFilter(kind="best")))
    assert (code, said) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "kind is 'best'; write trial or validation, or leave it out",
    )


def test_what_one_log_exports_another_takes_once(client: Client, done: pb.Job, redis_url: str, tmp_path: Path) -> None:
    parts = export(client, job=done.name)
    records = [part.record for part in parts if part.WhichOneof("part") == "record"]
    known: set[str] = set()
    for part in parts:
        if part.WhichOneof("part") == "workload":
            known.add(part.workload.workload_hash)
        else:
            assert part.record.workload_hash in known
    with running_redis() as url, running_server(url, tmp_path / "state") as server, server.client() as other:
        answer = other.log.ImportRecords(iter(as_import(parts)))
        assert (answer.added, answer.already_there) == (len(records), 0)
        answer = other.log.ImportRecords(iter(as_import(parts)))
        assert (answer.added, answer.already_there) == (0, len(records))
        assert [part.record for part in export(other) if part.WhichOneof("part") == "record"] == records

        broken = as_import(parts)
        broken[-1].record.run_secs.append(-1.0)
        code, said = refused(other.log.ImportRecords, iter(broken))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert broken[-1].record.name in said
    assert redis_url


def test_an_import_without_its_workload_changes_nothing(client: Client, done: pb.Job, tmp_path: Path) -> None:
    parts = [part for part in as_import(export(client, job=done.name)) if part.WhichOneof("part") == "record"]
    with running_redis() as url, running_server(url, tmp_path / "state") as server, server.client() as other:
        code, said = refused(other.log.ImportRecords, iter(parts))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "import it together with its workload" in said
        assert export(other) == []


def match(client: Client, model: str, share: str) -> list[pb.OperatorMatch]:
    request = pb.MatchModelRequest(model=model, share=share)
    return list(client.log.MatchModel(request, timeout=20).matches)


def test_match_says_which_record_and_why(client: Client, done: pb.Job, fleet: SimulatedFleet) -> None:
    for share in ("cpu:1", "cpu:2"):
        for answer in match(client, done.spec.model, share):
            assert answer.how == "exact"
            assert answer.record.granted.share == share
            assert answer.record.device.isa == DEVICE.isa
            assert answer.record.target_key == TARGET_KEY
            assert share.removeprefix("cpu:") + " core" in answer.reason
    unread = client.upload(model_bytes(("never_tuned", 1)))
    answers = match(client, unread, "cpu:1")
    assert [(a.operator.display_name, a.how, a.reason) for a in answers] == [
        ("never_tuned", "none", "no published record of this operator")
    ]
    code, said = refused(match, client, client.upload(b"no model", "x.onnx"), "cpu:1")
    assert (code, said) == (grpc.StatusCode.INVALID_ARGUMENT, "x.onnx is not an ONNX file")
    code, said = refused(match, client, done.spec.model, "mig:1g.18gb")
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "no worker offers it, and the log holds no record of it" in said
    fleet.remove("compile-1")
    try:
        code, said = refused(match, client, client.upload(model_bytes(("unread", 1))), "cpu:1")
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "no worker of the role compile" in said
    finally:
        fleet.add("compile", "compile-1")


def plan_of(client: Client, cores: int = DEVICE.units, **model: Any) -> pb.Plan:
    asked = pb.PlanModel(name="net", **{"rate_per_s": 100.0, **model})
    request = pb.MakePlanRequest(cores=cores, models=[asked], penalty=0.0)
    return client.plans.MakePlan(request, timeout=20)


def test_a_plan_is_made_of_the_whole_models_times(client: Client, done: pb.Job) -> None:
    """What the job timed at each share, and not the sum of the model's operators."""
    secs = {each.share: statistics.median(each.run_secs[each.share].secs) for each in done.result.shares}
    assert min(secs.values()) > 2 * sum_of_operators(client, done.spec.model, "cpu:1")
    download = client.bundles.DownloadBundle(pb.DownloadBundleRequest(name=done.result.bundle))
    assert Bundle(b"".join(part.data for part in download)).manifest["timed"] == pytest.approx(secs)
    wanted = 1.5 / secs["cpu:1"]
    plan = plan_of(client, model=done.spec.model, rate_per_s=wanted)
    parts = [part for device in plan.devices for part in device.parts]
    assert {part.basis for part in parts} == {"measured"}
    for part in parts:
        assert part.latency_s == pytest.approx(secs[part.share])
        assert part.throughput_per_s == pytest.approx(1 / secs[part.share])
    assert sum(part.throughput_per_s for part in parts) >= wanted * (1 - 1e-5)
    batched = plan_of(client, model=done.spec.model, requests_per_run=8, rate_per_s=wanted)
    assert len(batched.devices[0].parts) == 1
    assert batched.devices[0].parts[0].batch == 8


def sum_of_operators(client: Client, model: str, share: str) -> float:
    found = match(client, model, share)
    return sum(each.operator.weight * statistics.median(each.record.run_secs) for each in found)


def test_a_model_that_was_never_timed_is_planned_by_its_operators_and_the_plan_says_so(
    client: Client, done: pb.Job
) -> None:
    assert done.state == pb.JOB_STATE_DONE
    never_timed = client.upload(model_bytes(("conv2d", 3), ("dense", 1)))
    plan = plan_of(client, model=never_timed, rate_per_s=1.0)
    (part,) = (part for device in plan.devices for part in device.parts)
    assert part.basis == "operators"
    assert part.latency_s == pytest.approx(sum_of_operators(client, never_timed, part.share) + CALL_OVERHEAD_S)
    assert any("are sums over the model's operators" in note for note in plan.notes)


def test_a_plan_that_cannot_be_is_refused_by_name(client: Client, done: pb.Job) -> None:
    known = done.spec.model
    for code, complaint, model in (
        (grpc.StatusCode.INVALID_ARGUMENT, "model 'net': rate_per_s is -1", {"model": known, "rate_per_s": -1.0}),
        (grpc.StatusCode.INVALID_ARGUMENT, "nothing is known of its speed", {}),
        (grpc.StatusCode.INVALID_ARGUMENT, "requests_per_run is -1", {"model": known, "requests_per_run": -1}),
        (grpc.StatusCode.FAILED_PRECONDITION, "model 'net' is too slow", {"model": known, "latency_s": 1e-9}),
        (grpc.StatusCode.NOT_FOUND, "no time at a cpu share of 2 cores", {"model": client.upload(NEVER, "n.onnx")}),
    ):
        found, said = refused(lambda model=model: plan_of(client, **model))
        assert (found, complaint in said) == (code, True), said
    code, said = refused(lambda: plan_of(client, 64, model=known))
    assert code is grpc.StatusCode.NOT_FOUND
    assert "the log has no records of 64 cores: its records are of a simulated processor with 2 cores" in said


def test_match_without_a_measurer_takes_the_share_from_the_log(
    client: Client, done: pb.Job, fleet: SimulatedFleet
) -> None:
    fleet.remove("measure-1")
    try:
        assert {answer.how for answer in match(client, done.spec.model, "cpu:1")} == {"exact"}
    finally:
        fleet.add("measure", "measure-1", "cpu:1")


def test_the_fleet_is_listed(client: Client) -> None:
    workers = client.fleet.ListWorkers(pb.ListWorkersRequest()).workers
    assert sorted(worker.role for worker in workers) == ["build", "compile", "measure", "measure", "tune"]
    shares = client.fleet.ListShares(pb.ListSharesRequest()).shares
    assert [(share.granted.share, share.workers) for share in shares] == [("cpu:1", 1), ("cpu:2", 1)]


def test_prune_counts_first_and_then_deletes(client: Client, done: pb.Job) -> None:
    chosen = pb.RecordFilter(job=done.name)
    before = client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)).total_size
    request = pb.PruneRecordsRequest(filter=chosen, keep_best=2, dry_run=True)
    counted = client.log.PruneRecords(request)
    assert counted.deleted + counted.kept == before
    assert client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)).total_size == before
    pruned = client.log.PruneRecords(pb.PruneRecordsRequest(filter=chosen, keep_best=2))
    assert (pruned.deleted, pruned.kept) == (counted.deleted, counted.kept)
    left = client.log.ListRecords(pb.ListRecordsRequest(filter=chosen, page_size=1000)).records
    trials = [record for record in left if record.kind == "trial"]
    assert len(trials) == 2 * 2 * 2
    assert len(left) > len(trials)


def test_a_result_that_cannot_be_read_is_kept_and_read_once_more_when_asked(client: Client, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as connection:
        incomplete: Any = {"event": "measured"}
        torn = seal_event(SECRET, incomplete)
        connection.xadd(redis_names.SERVER_STREAM, {redis_names.EVENT_FIELD: torn})
        wait_until(lambda: client.log.ListUnreadable(pb.ListUnreadableRequest()).total_size == 1)
        (kept,) = client.log.ListUnreadable(pb.ListUnreadableRequest(page_size=5)).results
        assert (kept.event, kept.reason) == (torn, "Object missing required field `job`")
        assert kept.place.startswith(f"{redis_names.SERVER_STREAM} ")
        assert abs(kept.set_aside_time.ToSeconds() - time.time()) < 600
        # Another version has left one that this one can read.
        readable = made_up_record(measure_work(CONV2D, job="gone"), "left behind", '["left behind"]')
        event: Any = {"event": "measured", "job": "gone", "round_id": "gone", "record": readable.to_json()}
        UnreadableStream(connection).keep("elsewhere 1-0", seal_event(SECRET, event).encode(), "KeyError('exact')")
        assert client.log.ReplayUnreadable(pb.ReplayUnreadableRequest()).replayed == 2
        wait_until(lambda: client.log.ListUnreadable(pb.ListUnreadableRequest()).total_size == 1)
        (again,) = client.log.ListUnreadable(pb.ListUnreadableRequest()).results
        assert again.event == torn
        chosen = pb.RecordFilter(operator=readable.workload_hash)
        wait_until(lambda: client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)).total_size == 1)
        connection.delete(redis_names.UNREADABLE)


def test_a_measured_pair_is_kept_once(client: Client) -> None:
    pair = to_proto(measured_pair(), pb.MeasuredPair)
    added = [client.log.AddPair(pb.AddPairRequest(pair=pair)).added for _ in range(2)]
    assert added == [True, False]
    (found,) = client.log.ListPairs(pb.ListPairsRequest(model_name="a")).pairs
    assert from_proto(MeasuredPair, found) == measured_pair()
    assert not client.log.ListPairs(pb.ListPairsRequest(model_name="none")).pairs
    pair.rounds = 0
    code, says = refused(client.log.AddPair, pb.AddPairRequest(pair=pair))
    assert (code, "rounds is 0" in says) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert refused(client.log.AddPair, pb.AddPairRequest())[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_a_time_of_another_runtime_is_kept_once(client: Client) -> None:
    time_of_one = to_proto(runtime_time(), pb.RuntimeTime)
    asked = pb.AddRuntimeTimesRequest(times=[time_of_one])
    assert [client.log.AddRuntimeTimes(asked).added for _ in range(2)] == [1, 0]
    of_model = pb.ListRuntimeTimesRequest(model=f"models/{runtime_time().model}")
    (found,) = client.log.ListRuntimeTimes(of_model).times
    assert from_proto(RuntimeTime, found) == runtime_time()
    of_another = pb.ListRuntimeTimesRequest(model=f"models/{'c' * 64}")
    assert not client.log.ListRuntimeTimes(of_another).times
    time_of_one.loop_s = 0
    for wrong in (time_of_one, pb.RuntimeTime()):
        request = pb.AddRuntimeTimesRequest(times=[wrong])
        assert refused(client.log.AddRuntimeTimes, request)[0] == grpc.StatusCode.INVALID_ARGUMENT
    many = pb.AddRuntimeTimesRequest(times=[asked.times[0]] * 1001)
    assert "send 1000 at once" in refused(client.log.AddRuntimeTimes, many)[1]
