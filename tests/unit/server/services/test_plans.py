"""Plans over a real channel. Each has a process of its own, which ends with its deadline or its caller."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from concurrent import futures
from typing import Any, cast

import grpc
import psutil
import pytest

from fractune_core.pb import fractune_pb2 as pb
from fractune_core.pb import fractune_pb2_grpc as rpc
from fractune_core.planning import process
from fractune_server.access.authenticator import AccessInterceptor
from fractune_server.services import plans
from fractune_server.services.interceptors import ErrorInterceptor
from fractune_server.services.plans import PLANS_AT_ONCE, PlanService
from tests.support.processes.redis_process import wait_until


@pytest.fixture(scope="module")
def stub() -> Iterator[Any]:
    server = grpc.server(
        futures.ThreadPoolExecutor(2 * PLANS_AT_ONCE), interceptors=[ErrorInterceptor(), AccessInterceptor(None, 8)]
    )
    rpc.add_PlanServiceServicer_to_server(PlanService(cast("Any", None), cast("Any", None)), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield rpc.PlanServiceStub(channel)
    server.stop(None).wait()


def request(models: int) -> pb.MakePlanRequest:
    draws = random.Random(1)
    found = pb.MakePlanRequest(gpu="A100-80GB", layouts="mps", simulate=models > 1)
    for number in range(models):
        speed = draws.uniform(5, 50)
        rows = [
            pb.PlanRow(share=f"mps:{p}", throughput_per_s=speed * p**0.8, latency_s=1 / speed) for p in (5, 40, 100)
        ]
        found.models.add(name=f"m{number}", rate_per_s=draws.uniform(10, 90), latency_s=1.0, rows=rows)
    return found


def planners() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):  # it has ended meanwhile
            found += [child] if process.__name__ in " ".join(child.cmdline()) else []
    return found


def test_a_plan_is_made_and_a_refusal_keeps_its_name(stub: Any) -> None:
    plan = stub.MakePlan(request(1), timeout=60)
    assert {part.model for device in plan.devices for part in device.parts} == {"m0"}
    with pytest.raises(grpc.RpcError) as refused:
        stub.MakePlan(pb.MakePlanRequest(gpu="A100-80GB"), timeout=60)
    error = cast("grpc.Call", refused.value)
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert error.details() == "the plan has no model; add one as [[models]]"


def test_few_plans_are_made_at_once_and_none_for_a_caller_that_has_left(stub: Any) -> None:
    most = PLANS_AT_ONCE // 2  # of one caller
    begun = [stub.MakePlan.future(request(200), timeout=600) for _ in range(most)]
    wait_until(lambda: len(planners()) == most)
    with pytest.raises(grpc.RpcError, match="the server has as many plans as it can hold; try again") as refused:
        stub.MakePlan(request(1), timeout=60)
    assert cast("grpc.Call", refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert len(planners()) == most
    for call in begun:
        call.cancel()
    wait_until(lambda: not planners(), timeout_s=20)

    def is_free() -> bool:
        try:
            return bool(stub.MakePlan(request(1), timeout=60).devices)
        except grpc.RpcError:
            return False

    wait_until(is_free)


def test_a_plan_that_takes_too_long_is_ended(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "LONGEST_S", 1.0)
    with pytest.raises(
        grpc.RpcError, match="the plan takes longer than 1 s, and none may; plan fewer models"
    ) as refused:
        stub.MakePlan(request(200), timeout=60)
    assert cast("grpc.Call", refused.value).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not planners()
