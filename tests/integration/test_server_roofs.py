"""Roofs on the server: what measurers find is kept, shown, and ends the search of what is near it."""

import json
from collections.abc import Iterator
from functools import partial

import pytest

from fractune_core.analysis.roofline import DOUBTFUL, NEAR, Arithmetic, Roof, reached
from fractune_core.codec.messages import from_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.server_process import Client

GFLOPS_OF_A_CORE = 100.0
WORK = Arithmetic(flops=GFLOPS_OF_A_CORE * 1e9 * 2.4e-4, io_bytes=1 << 20)
"""One candidate in nine comes near its limit (240 us on one core), none beyond: the fastest there is takes 200 us"""
TRIALS = 64
LAUNCH_S = 3e-6
"""as if the shares were of a GPU"""


@pytest.fixture(scope="module")
def fleet(redis_url: str) -> Iterator[SimulatedFleet]:
    with simulated_fleet(redis_url) as fleet:
        for cores in (1, 2):
            fleet.workers[f"measure-{cores}"].roof = Roof(cores * GFLOPS_OF_A_CORE, 1000.0, 1 << 25, cores * LAUNCH_S)
        yield fleet


def model(name: str, **arithmetic: float) -> bytes:
    return json.dumps({"operators": [{"name": name, "weight": 2, **arithmetic}]}).encode()


@pytest.fixture(scope="module")
def done(client: Client) -> pb.Job:
    uploaded = client.upload(model("conv2d_near", flops=WORK.flops, io_bytes=WORK.io_bytes))
    job = client.finish(client.create(uploaded, trials=TRIALS, round_size=8).name)
    assert (job.state, job.message) == (pb.JOB_STATE_DONE, "")
    return job


def test_an_operator_near_its_roof_ends_the_search_and_the_job_says_what_that_saved(done: pb.Job) -> None:
    (operator,) = done.operators
    assert from_proto(Arithmetic, operator.arithmetic) == WORK
    for share in ("cpu:1", "cpu:2"):
        part = reached(WORK, from_proto(Roof, done.roofs[share]), operator.best_s[share])
        assert part is not None
        assert part >= NEAR
    assert done.progress.trials_saved > 0
    assert done.progress.candidates_done + done.progress.trials_saved == TRIALS


def test_the_launch_floor_of_each_share_is_told(done: pb.Job) -> None:
    assert {share: roof.launch_s for share, roof in done.roofs.items()} == {"cpu:1": LAUNCH_S, "cpu:2": 2 * LAUNCH_S}


def test_a_later_job_knows_the_roof_before_anything_is_measured(client: Client, done: pb.Job) -> None:
    again = client.finish(client.create(done.spec.model, more=16).name)
    assert (again.progress.candidates_done, again.progress.trials_saved) == (0, 16)


def test_an_operator_of_which_nothing_is_known_gets_its_whole_budget(client: Client, done: pb.Job) -> None:
    assert done.roofs
    job = client.finish(client.create(client.upload(model("conv2d_unknown")), trials=16).name)
    assert not job.operators[0].HasField("arithmetic")
    assert (job.progress.candidates_done, job.progress.trials_saved) == (16, 0)


def test_records_and_matches_come_with_what_their_speed_is_judged_by(client: Client, done: pb.Job) -> None:
    request = pb.ListRecordsRequest(filter=pb.RecordFilter(operator="conv2d_near"), page_size=3)
    listed = client.log.ListRecords(request)
    assert len(listed.records) == 3
    for record in listed.records:
        assert from_proto(Arithmetic, listed.arithmetic[record.workload_hash]) == WORK
        assert listed.roofs[record.name].gflops == record.granted.units * GFLOPS_OF_A_CORE
    matched = client.log.MatchModel(pb.MatchModelRequest(model=done.spec.model, share="cpu:2"))
    assert matched.roof.gflops == 2 * GFLOPS_OF_A_CORE
    assert from_proto(Arithmetic, matched.matches[0].operator.arithmetic) == WORK
    timed = next(each for each in done.result.shares if each.share == "cpu:2")
    assert len(timed.at_load) > 0
    assert matched.at_load == timed.at_load


def test_a_kernel_that_is_faster_than_its_roof_raises_it(client: Client, done: pb.Job) -> None:
    """The fastest takes 200 us on one core, where the roof of 100 GFLOP/s allows 230 us."""
    work = Arithmetic(flops=GFLOPS_OF_A_CORE * 1e9 * 2.3e-4, io_bytes=1 << 20)
    uploaded = client.upload(model("conv2d_beyond", flops=work.flops, io_bytes=work.io_bytes))
    job = client.finish(client.create(uploaded, trials=TRIALS, round_size=8).name)
    assert done.roofs["cpu:1"].gflops < job.roofs["cpu:1"].gflops < DOUBTFUL * done.roofs["cpu:1"].gflops
    listed = client.log.ListRecords(pb.ListRecordsRequest(filter=pb.RecordFilter(operator="conv2d_beyond")))
    records = map(partial(from_proto, TuningRecord), listed.records)
    parts = [
        reached(work, from_proto(Roof, listed.roofs[f"records/{each.record_id}"]), each.median_s) for each in records
    ]
    assert max(part for part in parts if part is not None) == pytest.approx(1.0)
