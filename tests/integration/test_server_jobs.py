"""The life of jobs on a real server and a real Redis; the fleet is simulated."""

import io
import json
import time
import uuid
import zipfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from fractune_core.fleet.redis_state import CANCELLED, is_marked
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import Kind, candidate_id
from fractune_server.services.jobs import MAX_WATCHERS
from tests.support.processes.fleet_simulated import INSIDE, SimulatedFleet
from tests.support.processes.made_up import DEVICE
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes

OPERATORS = (("conv2d_a", 4), ("conv2d_b", 2), ("dense", 1))


def fresh(*operators: tuple[str, int], space: int = 1_000_000) -> bytes:
    """A model whose operators no other test knows."""
    mark = uuid.uuid4().hex[:6]
    return model_bytes(*((f"{name}_{mark}", weight) for name, weight in operators or OPERATORS), space=space)


def handled(fleet: SimulatedFleet, do: str, *jobs: pb.Job) -> list[Any]:
    """What workers were given to do for these jobs, of one kind."""
    names = {job.name.removeprefix("jobs/") for job in jobs}
    done = (work for worker in fleet.workers.values() for work in worker.handled)
    return [work for work in done if work.task == do and work.job in names]


def test_full_job_then_a_second_run_without_new_trials_then_more(client: Client, fleet: SimulatedFleet) -> None:
    model = client.upload(fresh())
    created = client.create(model, trials=48, round_size=8)
    assert created.state == pb.JOB_STATE_QUEUED
    job = client.finish(created.name)
    assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
    assert job.progress.candidates_done == 48
    assert job.progress.trials_planned == 48
    assert dict(job.progress.trials_done) == {"cpu:1": 48, "cpu:2": 48}
    assert job.progress.trials_per_s > 0
    phases_s = job.progress.phases_s
    assert set(phases_s) == {"queued", "ingesting", "tuning", "validating", "compiling", "timing"}
    assert sum(phases_s.values()) == pytest.approx(job.result.wall_s)
    assert [op.weight for op in job.operators] == [4, 2, 1]
    assert sum(op.trials for op in job.operators) == 48
    for operator in job.operators:
        assert operator.trials >= 48 // 12
        for share in ("cpu:1", "cpu:2"):
            assert 0 < operator.best_s[share] < operator.untuned_s[share]
    assert [(r.share, r.untuned_s, r.tuned_s) for r in job.result.shares] == [
        ("cpu:1", 2.0, 1.0),
        ("cpu:2", 2.0, 1.0),
    ]
    assert [(each.name, each.calls) for each in job.result.shares[1].inside.calls] == [
        (each.name, each.calls) for each in INSIDE.calls
    ]
    request = pb.DownloadBundleRequest(name=job.result.bundle)
    payload = b"".join(part.data for part in client.bundles.DownloadBundle(request))
    assert b'"name": "untuned"' in payload

    before = time.time()
    again = client.finish(client.create(model, trials=48, round_size=8).name)
    assert again.state == pb.JOB_STATE_DONE
    assert dict(again.progress.trials_done) == {"cpu:1": 0, "cpu:2": 0}
    assert again.result.bundle == job.result.bundle
    third = client.finish(client.create(model, trials=48, round_size=8).name)
    for later in (again, third):
        assert [each.earlier_job for each in later.result.shares] == [job.name] * 2
        assert all(0 < each.time.ToSeconds() <= before for each in later.result.shares)
        assert later.result.shares[0].run_secs == job.result.shares[0].run_secs
        assert [len(each.latency_secs) for each in job.result.shares[0].at_load]
        assert later.result.shares[0].at_load == job.result.shares[0].at_load
    assert [each.earlier_job for each in job.result.shares] == ["", ""]
    assert [work.job for work in handled(fleet, "time_model", job, again, third)] == [job.name[5:]] * 2
    measured_again = client.finish(client.create(model, rerank=1).name)
    assert measured_again.result.bundle == job.result.bundle
    assert [each.earlier_job for each in measured_again.result.shares] == ["", ""]

    more = client.finish(client.create(model, more=8, round_size=8).name)
    assert more.progress.candidates_done == 8


def test_a_cpu_limit_is_tuned_at_its_whole_cores_and_timed_under_it(client: Client, fleet: SimulatedFleet) -> None:
    fleet.add("measure", "measure-limit", "cpu:1500m")
    try:
        model = client.upload(fresh())
        alone = client.finish(client.create(model, trials=24, shares=["cpu:1500m"]).name)
        assert (alone.state, dict(alone.progress.trials_done)) == (pb.JOB_STATE_DONE, {"cpu:1": 24, "cpu:2": 24})
        assert [each.share for each in alone.result.shares] == ["cpu:1", "cpu:2", "cpu:1500m"]
        limited = alone.result.shares[2]
        assert (limited.granted.units, limited.granted.limit.quota_m, limited.variant) == (1500, 1500, "cpu:2")
        assert [(each.variant, each.threads) for each in limited.at_load] == [("cpu:1", 1), ("cpu:2", 2)]
        assert any(note.startswith("cpu:1500m: kernels are tuned at cpu:1, cpu:2") for note in alone.notes)
        assert {work.task for work in fleet.workers["measure-limit"].handled} == {"time_model"}

        again = client.finish(client.create(model, trials=96, shares=["cpu:1500m"]).name)
        assert (again.state, again.progress.candidates_done) == (pb.JOB_STATE_DONE, 0)
        assert handled(fleet, "search", again) == handled(fleet, "build", again) == []
        assert f"no search: {alone.name[5:]} tuned this model at cpu:1, cpu:2" in again.notes

        query = pb.MatchModelRequest(model=model, share="cpu:1500m")
        answer = client.log.MatchModel(query)
        assert [(each.variant, each.threads) for each in answer.at_load] == [("cpu:1", 1), ("cpu:2", 2)]
        assert {match.record.granted.share for match in answer.matches} == {"cpu:2"}
        with pytest.raises(grpc.RpcError, match="not timed under the limit; tune it with --shares cpu:500m"):
            client.log.MatchModel(pb.MatchModelRequest(model=model, share="cpu:500m"))
    finally:
        fleet.remove("measure-limit")


def test_without_trials_every_operator_has_its_first_candidate_validated_at_once(
    client: Client, fleet: SimulatedFleet
) -> None:
    model = client.upload(fresh())
    first = client.finish(client.create(model, trials=0).name)
    measured = handled(fleet, "measure", first)
    assert [work.purpose for work in measured] == [Kind.VALIDATION] * 2 * len(first.operators)
    assert all({"cpu:1", "cpu:2"} == set(op.best_s) == set(op.untuned_s) for op in first.operators)
    assert (first.state, [op.trials for op in first.operators]) == (pb.JOB_STATE_DONE, [1] * len(first.operators))
    tuned = client.finish(client.create(model, trials=24).name)
    assert tuned.progress.candidates_done == 24 - len(first.operators)
    known = client.finish(client.create(model, trials=0).name)
    assert dict(known.progress.trials_done) == {"cpu:1": 0, "cpu:2": 0}
    assert known.result.bundle == tuned.result.bundle


def validations(client: Client, model: str) -> Counter[str]:
    """How many the log holds, by the operator's name."""
    wanted = pb.RecordFilter(model=model, kind="validation", share="cpu:1")
    records = client.log.ListRecords(pb.ListRecordsRequest(filter=wanted, page_size=1000)).records
    return Counter(record.operator.rpartition("_")[0] for record in records)


def test_an_operator_without_a_trial_is_not_validated(client: Client) -> None:
    model = client.upload(fresh(("heavy", 9), ("light", 1)))
    first = client.finish(client.create(model, trials=3, only="heavy").name)
    assert first.state == pb.JOB_STATE_DONE
    job = client.finish(client.create(model, rerank=2).name)  # searches nothing
    assert (job.state, [op.trials for op in job.operators]) == (pb.JOB_STATE_DONE, [3, 0])
    assert set(validations(client, model)) == {"heavy"}


def test_a_trial_that_can_gain_the_model_next_to_nothing_is_not_validated(client: Client) -> None:
    model = client.upload(fresh(("heavy", 1000), ("light", 1)))
    job = client.finish(client.create(model, trials=24).name)
    before = validations(client, model)
    assert set(before) == {"heavy", "light"}
    _import_faster_trial(client, model, job.operators[1])
    assert client.finish(client.create(model, trials=24).name).state == pb.JOB_STATE_DONE
    assert validations(client, model) == before
    _import_faster_trial(client, model, job.operators[0])
    assert client.finish(client.create(model, trials=24).name).state == pb.JOB_STATE_DONE
    after = validations(client, model)
    assert after["light"] == before["light"]
    assert after["heavy"] > before["heavy"]


def _import_faster_trial(client: Client, model: str, operator: pb.Operator) -> None:
    """Have the log hold one more trial of the operator, at every share, twice as fast as any."""
    for share in ("cpu:1", "cpu:2"):
        wanted = pb.RecordFilter(model=model, operator=operator.workload_hash, kind="trial", share=share)
        request = pb.ListRecordsRequest(filter=wanted, page_size=1, fastest_first=True)
        record = client.log.ListRecords(request).records[0]
        trace = json.dumps([operator.display_name, "imported"])
        del record.run_secs[:]
        record.MergeFrom(
            pb.Record(
                name=f"records/{uuid.uuid4().hex}",
                trace=trace,
                candidate_id=candidate_id(operator.workload_hash, record.target_key, trace),
                run_secs=[operator.best_s[share] / 2] * 3,
            )
        )
        client.log.ImportRecords(iter([pb.ImportRecordsRequest(record=record)]))


def test_a_share_that_was_never_searched_is_served_by_measuring_the_best_of_another(client: Client) -> None:
    model = client.upload(fresh())
    assert client.finish(client.create(model, trials=24, shares=["cpu:1"]).name).state == pb.JOB_STATE_DONE
    job = client.finish(client.create(model, shares=["cpu:2"], rerank=3).name)
    assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
    assert dict(job.progress.trials_done) == {"cpu:2": 0}
    wanted = pb.RecordFilter(model=model, share="cpu:2")
    records = client.log.ListRecords(pb.ListRecordsRequest(filter=wanted, page_size=1000)).records
    assert {record.kind for record in records} == {"validation"}
    assert len(records) == len(OPERATORS) * (3 + 1)  # the best three and the untuned default
    (table, *_) = client.log.TabulateModel(pb.TabulateModelRequest(model=model, shares=["cpu:1", "cpu:2"])).operators
    assert {(cell.tuned_at, cell.run_at) for cell in table.cells} == {
        (variant, share) for variant in ("untuned", "cpu:1", "cpu:2") for share in ("cpu:1", "cpu:2")
    }


def test_without_a_trial_in_the_log_there_is_nothing_to_measure_again(client: Client) -> None:
    job = client.finish(client.create(client.upload(fresh()), rerank=1).name)
    assert (job.state, job.error) == (pb.JOB_STATE_FAILED, "NotFound")
    assert "tune it first" in job.message


@pytest.mark.parametrize("spec", [{"rerank": -1}, {"variants": "all"}])
def test_a_rerank_or_variants_that_cannot_be_meant(client: Client, spec: dict[str, Any]) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        client.create(client.upload(fresh()), **spec)
    assert as_call(refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT


def test_one_variant_for_all_shares(client: Client) -> None:
    model = client.upload(fresh())
    job = client.finish(client.create(model, trials=24, variants="robust").name)
    assert job.state == pb.JOB_STATE_DONE
    assert [(each.share, each.tuned_s) for each in job.result.shares] == [("cpu:1", 1.0), ("cpu:2", 1.0)]
    assert all(set(each.run_secs) == {"robust", "untuned"} for each in job.result.shares)


def test_a_bundle_names_the_shares_that_could_not_be_verified(client: Client) -> None:
    spec = {"shares": ["cpu:1"], "skipped_shares": {"cpu:500m": "busy"}}
    job = client.finish(client.create(client.upload(fresh()), trials=0, **spec).name)
    request = pb.DownloadBundleRequest(name=job.result.bundle)
    payload = b"".join(part.data for part in client.bundles.DownloadBundle(request))
    manifest = json.loads(zipfile.ZipFile(io.BytesIO(payload)).read("manifest.json"))
    assert manifest["skipped_shares"] == spec["skipped_shares"]
    assert dict(job.spec.skipped_shares) == spec["skipped_shares"]


def test_only_some_operators(client: Client) -> None:
    model = client.upload(fresh())
    job = client.finish(client.create(model, trials=6, only="dense").name)
    assert job.state == pb.JOB_STATE_DONE
    assert [(op.selected, op.trials) for op in job.operators] == [(False, 0), (False, 0), (True, 6)]
    two = client.finish(client.create(model, trials=6, only="conv2d_a, dense").name)
    assert [op.selected for op in two.operators] == [True, False, True]
    none = client.finish(client.create(model, trials=6, only="softmax").name)
    assert none.state == pb.JOB_STATE_FAILED
    assert none.error == "BadModel"
    assert "no operator's name contains 'softmax'" in none.message
    assert "dense_" in none.message


def test_an_operator_whose_space_is_small_ends_without_the_whole_budget(client: Client) -> None:
    job = client.finish(client.create(client.upload(fresh(("tiny", 1), space=5)), trials=20, round_size=4).name)
    assert job.state == pb.JOB_STATE_DONE
    assert job.progress.candidates_done == 5


def test_a_space_that_was_exhausted_is_searched_again_at_another_share_or_for_more(
    client: Client, fleet: SimulatedFleet
) -> None:
    model = client.upload(fresh(("tiny", 1), space=3))
    first, again = (client.finish(client.create(model, trials=20, shares=["cpu:1"]).name) for _ in range(2))
    assert [each.operators[0].trials for each in (first, again)] == [3, 3]
    assert handled(fleet, "search", first)
    assert not handled(fleet, "search", again)
    more = client.finish(client.create(model, more=2, shares=["cpu:1"]).name)
    assert handled(fleet, "search", more)
    for _ in range(2):  # the instance, which has proposed all of them, has none for this share
        elsewhere = client.finish(client.create(model, trials=20, shares=["cpu:2"]).name)
        assert elsewhere.operators[0].trials == 0
        assert handled(fleet, "search", elsewhere)


def test_a_model_that_cannot_be_read_fails_with_the_workers_words(client: Client) -> None:
    job = client.finish(client.create(client.upload(b"not a model", "broken.onnx")).name)
    assert job.state == pb.JOB_STATE_FAILED
    assert (job.error, job.message) == ("BadModel", "broken.onnx is not an ONNX file")


def test_cancel_in_mid_job(client: Client, fleet: SimulatedFleet) -> None:
    builder = fleet.workers["build-1"]
    builder.hold.set()
    try:
        name = client.create(client.upload(fresh()), trials=48).name
        client.wait(name, lambda job: job.state == pb.JOB_STATE_TUNING)
        with ThreadPoolExecutor() as pool:
            watching = pool.submit(client.finish, name)
            cancelled = client.jobs.CancelJob(pb.CancelJobRequest(name=name))
            assert cancelled.state == pb.JOB_STATE_CANCELLED
            assert watching.result(30).state == pb.JOB_STATE_CANCELLED
    finally:
        builder.hold.clear()
    assert client.jobs.CancelJob(pb.CancelJobRequest(name=name)).state == pb.JOB_STATE_CANCELLED


def test_after_a_search_that_was_cancelled_before_it_began_the_next_one_is_told_what_is_known(
    client: Client, fleet: SimulatedFleet
) -> None:
    model = client.upload(fresh(("conv2d", 1)))
    client.finish(client.create(model, trials=6).name)
    fleet.remove("tune-1")
    tuner = fleet.add("tune", "tune-2")  # which knows nothing
    tuner.hold.set()
    try:
        cancelled = client.create(model, trials=12).name
        wait_until(lambda: len(tuner.handled) > 0)
        client.jobs.CancelJob(pb.CancelJobRequest(name=cancelled))
        wait_until(lambda: is_marked(tuner.redis, CANCELLED, tuner.handled[0].round.id))
        tuner.hold.clear()
        assert client.finish(client.create(model, trials=12).name).progress.candidates_done == 6
        assert [len(work.opening.known) for work in tuner.handled] == [6, 6]
    finally:
        fleet.remove("tune-2")
        fleet.add("tune", "tune-1")


def test_what_a_cancelled_job_left_unmeasured_is_asked_for_again(client: Client, fleet: SimulatedFleet) -> None:
    builder, tuner = fleet.workers["build-1"], fleet.workers["tune-1"]
    model = client.upload(fresh())

    def searches(job: str) -> list[Any]:
        return [work for work in tuner.handled if work.job == job.removeprefix("jobs/")]

    builder.hold.set()
    try:
        name = client.create(model, trials=48).name
        wait_until(lambda: len(searches(name)) > 1)  # a second search begins once the first one's proposals are known
        client.jobs.CancelJob(pb.CancelJobRequest(name=name))
        # A job that comes before its rounds are taken back would take them over.
        wait_until(lambda: all(is_marked(tuner.redis, CANCELLED, work.round.id) for work in searches(name)))
        following = client.create(model, trials=48).name
        wait_until(lambda: len(searches(following)) > 0)
    finally:
        builder.hold.clear()
    assert client.finish(following).state == pb.JOB_STATE_DONE
    first = searches(name)[0]
    again = [work for work in searches(following) if work.round.operator == first.round.operator]
    assert len(again[0].lost) == first.count
    assert not any(work.lost for work in again[1:])


def test_results_that_come_twice_count_once(client: Client, fleet: SimulatedFleet) -> None:
    for worker in fleet.workers.values():
        worker.twice = True
    try:
        job = client.finish(client.create(client.upload(fresh()), trials=24).name)
    finally:
        for worker in fleet.workers.values():
            worker.twice = False
    assert job.state == pb.JOB_STATE_DONE
    assert dict(job.progress.trials_done) == {"cpu:1": 24, "cpu:2": 24}
    chosen = pb.RecordFilter(job=job.name, kind="trial")
    assert client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)).total_size == 48


def test_two_jobs_on_the_same_operators_share_their_trials(client: Client) -> None:
    model = client.upload(fresh())
    first, second = (client.create(model, trials=24, priority=priority).name for priority in (0, 1))
    done = [client.finish(name) for name in (first, second)]
    assert all(job.state == pb.JOB_STATE_DONE for job in done)
    assert sum(job.progress.candidates_done for job in done) == 24


def test_a_share_that_nobody_offers(client: Client) -> None:
    model = client.upload(fresh())
    with pytest.raises(grpc.RpcError) as caught:
        client.create(model, shares=["cpu:1", "cpu:7"])
    error = as_call(caught.value)
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert dict(error.trailing_metadata() or ())["fractune-error"] == "ShareUnavailable"
    assert error.details() == (f"no worker offers cpu:7; offered: cpu:1, cpu:2 on {DEVICE.key}. Start a worker for it")


def test_a_missing_role_is_named_while_the_job_waits(client: Client, fleet: SimulatedFleet) -> None:
    fleet.remove("compile-1")
    try:
        name = client.create(client.upload(fresh()), trials=4).name
        waiting = client.wait(name, lambda job: bool(job.notes))
        assert list(waiting.notes) == ["waiting for a worker: role compile"]
        assert waiting.state == pb.JOB_STATE_INGESTING
    finally:
        fleet.add("compile", "compile-1")
    job = client.finish(name)
    assert job.state == pb.JOB_STATE_DONE
    assert list(job.notes) == []


def test_time_is_up_ends_the_search_and_finishes_the_job(client: Client) -> None:
    job = client.finish(client.create(client.upload(fresh()), trials=100_000, minutes=0.02).name)
    assert job.state == pb.JOB_STATE_DONE
    assert 0 < job.progress.candidates_done < 10_000


@pytest.mark.long
def test_watchers_beyond_the_places_are_refused_and_the_others_go_on(client: Client, fleet: SimulatedFleet) -> None:
    fleet.workers["compile-1"].hold.set()
    try:
        name = client.create(client.upload(fresh()), trials=4).name
        calls = [client.jobs.WatchJob(pb.WatchJobRequest(name=name)) for _ in range(MAX_WATCHERS)]
        for call in calls:
            next(call)
        with pytest.raises(grpc.RpcError) as caught:
            next(client.jobs.WatchJob(pb.WatchJobRequest(name=name)))
        assert as_call(caught.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert client.job(name).name == name
        calls[0].cancel()
        wait_until(lambda: _can_watch(client, name))
    finally:
        fleet.workers["compile-1"].hold.clear()
    ends = [list(call)[-1].state for call in calls[1:]]
    assert ends == [pb.JOB_STATE_DONE] * (MAX_WATCHERS - 1)


def _can_watch(client: Client, name: str) -> bool:
    call = client.jobs.WatchJob(pb.WatchJobRequest(name=name))
    try:
        return bool(next(call).name)
    except grpc.RpcError:
        return False
    finally:
        call.cancel()


def test_a_watch_keeps_its_deadline(client: Client, fleet: SimulatedFleet) -> None:
    fleet.workers["compile-1"].hold.set()
    try:
        name = client.create(client.upload(fresh()), trials=4).name
        with pytest.raises(grpc.RpcError) as caught:
            list(client.jobs.WatchJob(pb.WatchJobRequest(name=name), timeout=0.5))
        assert as_call(caught.value).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    finally:
        fleet.workers["compile-1"].hold.clear()
    assert client.finish(name).state == pb.JOB_STATE_DONE


def test_jobs_are_listed_newest_first_page_by_page(client: Client) -> None:
    model = client.upload(fresh())
    made = [client.create(model, trials=1).name for _ in range(3)]
    names: list[str] = []
    token = ""
    while len(names) < 3:
        page = client.jobs.ListJobs(pb.ListJobsRequest(page_size=1, page_token=token))
        names += [job.name for job in page.jobs]
        token = page.next_page_token
    assert names == made[::-1]
    for name in made:
        client.finish(name)
    assert not client.jobs.ListJobs(pb.ListJobsRequest(open_only=True)).jobs
