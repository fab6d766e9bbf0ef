"""Plans over gRPC: what is sent is what arrives."""

import pytest

from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.errors import BadRequest
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.planning.devices import DeviceType, Partitioning, cpu_type, gpu_type
from fractune_core.planning.planner import make_plan
from fractune_core.planning.plans import MOST_MODELS, ModelDemand, Plan, PlanRequest
from fractune_core.planning.speeds import Basis, Row
from fractune_core.planning.wire import LoggedModel, add_logged_rows, request_from_proto, request_to_proto

ROWS = (Row(1, 8, 2, 100.0, 0.16, Basis.MEASURED), Row(2, 8, 2, 170.0, 0.1), Row(3, 1, 1, 90.0, 0.011))


def fleet() -> PlanRequest:
    models = (ModelDemand("a", ROWS, 120.5, 0.4, 2.5), ModelDemand("b", ROWS, 33.0))
    return PlanRequest(
        gpu_type("A100-80GB", Partitioning.MIG),
        models,
        7,
        {("a", "b"): 1.25},
        penalty=0.0,
        headroom=0.1,
        latency_part=0.45,
    )


def jobs() -> PlanRequest:
    host = cpu_type(4, 16.0)
    return PlanRequest(host, (ModelDemand("a", (Row(1, 1, 1, 10.0, 0.1),)), ModelDemand("b", ROWS)))


@pytest.mark.parametrize("asked", [fleet(), jobs()], ids=["fleet", "jobs"])
def test_a_request_arrives_as_it_was_sent(asked: PlanRequest) -> None:
    message = request_to_proto(asked, {}, simulate=True, seed=5)
    assert request_from_proto(message) == asked
    assert (message.simulate, message.seed) == (True, 5)


@pytest.mark.parametrize("asked", [fleet(), jobs()], ids=["fleet", "jobs"])
def test_a_plan_arrives_as_it_was_made(asked: PlanRequest) -> None:
    plan = make_plan(asked, simulated=asked.is_fleet)
    assert from_proto(Plan, to_proto(plan, pb.Plan)) == plan


def test_the_log_is_asked_for_what_it_knows() -> None:
    asked: list[LoggedModel] = []

    def rows_of(logged: LoggedModel, device: DeviceType) -> tuple[Row, ...]:
        asked.append(logged)
        assert device.name == "4 cores"
        return ROWS

    known = LoggedModel("models/ab", {"data": [1, 3]}, 4)
    demand = ModelDemand("a", (), 50.0)
    message = request_to_proto(PlanRequest(cpu_type(4), (demand,)), {"a": known}, simulate=False, seed=0)
    add_logged_rows(message, rows_of)
    assert request_from_proto(message).models[0].rows == ROWS
    assert asked == [known]
    message.models.extend([message.models[0]] * MOST_MODELS)
    with pytest.raises(BadRequest, match=f"has {MOST_MODELS + 1} models; it may have at most {MOST_MODELS}"):
        add_logged_rows(message, rows_of)


def test_what_a_stranger_leaves_out_has_defaults_and_what_is_wrong_is_refused() -> None:
    row = pb.PlanRow(share="3g", throughput_per_s=10.0, latency_s=0.1)
    message = pb.MakePlanRequest(gpu="h100-80gb", models=[pb.PlanModel(name="a", rate_per_s=1.0, rows=[row])])
    asked = request_from_proto(message)
    assert (asked.penalty, asked.latency_part, asked.count) == (0.13, 0.5, None)
    assert asked.models[0].rows == (Row(3, 1, 1, 10.0, 0.1),)
    row.share, row.units = "", 9
    with pytest.raises(BadRequest, match="units is 9"):
        request_from_proto(pb.MakePlanRequest(gpu="H100-80GB", models=[pb.PlanModel(rows=[row])]))
    for bad in (pb.MakePlanRequest(), pb.MakePlanRequest(gpu="H100-80GB", cores=2)):
        with pytest.raises(BadRequest, match="give either gpu or cores"):
            request_from_proto(bad)
    with pytest.raises(BadRequest, match="partitioning 'slices': write mig, mps, green, cpu"):
        request_from_proto(pb.MakePlanRequest(gpu="H100-80GB", layouts="slices"))
