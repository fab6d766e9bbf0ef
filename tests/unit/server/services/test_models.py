"""A token's quota of uploads holds for those that arrive at the same time."""

import contextlib
import random
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import grpc
import psutil
import pytest

from fractune_core.access import Quotas, Scope
from fractune_core.errors import QuotaExceeded
from fractune_core.names import DEFAULT_TENANT
from fractune_core.pb import fractune_pb2 as pb, fractune_pb2_grpc as rpc
from fractune_core.planning import planner
from fractune_server.authenticator import AccessInterceptor, Caller
from fractune_server.services import models as module, plans
from fractune_server.services.interceptors import ErrorInterceptor
from fractune_server.services.models import ModelService, arriving
from fractune_server.services.plans import PLANS_AT_ONCE, PlanService
from fractune_server.store.blob_files import BlobStore
from fractune_server.store.database.sight import Sight
from fractune_server.store.store import Store, StoredModel
from fractune_server.transport.context import TenantView
from tests.support.processes.redis_process import wait_until

unused: Any = None
SENDER = Caller("t", Scope.SUBMIT, Quotas(stored_bytes=100))


def test_uploads_at_the_same_time_count_together(store: Store, tmp_path: Path) -> None:
    service, view = ModelService(unused), TenantView(store, BlobStore(tmp_path), Sight(DEFAULT_TENANT))
    with service._room_for(view, "a", 60, SENDER):
        with (
            pytest.raises(QuotaExceeded, match="has 41 bytes, and token t has 40 of 100 left, with 60 in incomplete"),
            service._room_for(view, "b", 41, SENDER),
        ):
            pass
        with service._room_for(view, "b", 1000, Caller("other")), service._room_for(view, "b", 40, SENDER):
            pass
        with service._room_for(view, "a", 60, SENDER):  # the same one, which comes back after a cut
            pass
    store.models.add(StoredModel("a", "net.onnx", 60, "t"))
    with pytest.raises(QuotaExceeded), service._room_for(view, "b", 41, SENDER):
        pass
    with service._room_for(view, "b", 40, SENDER):
        pass
    assert not service._under_way


def test_a_call_that_was_cut_off_counts_no_more_once_a_later_one_has_brought_the_model(
    store: Store, tmp_path: Path
) -> None:
    service, view = ModelService(unused), TenantView(store, BlobStore(tmp_path), Sight(DEFAULT_TENANT))
    with service._room_for(view, "a", 60, SENDER):  # the network has lost it, and the server does not know
        with service._room_for(view, "a", 60, SENDER):
            store.models.add(StoredModel("a", "net.onnx", 60, "t"))
        with service._room_for(view, "b", 40, SENDER):
            pass
        with pytest.raises(QuotaExceeded, match="has 40 of 100 left; ask"), service._room_for(view, "b", 41, SENDER):
            pass


def test_what_is_kept_of_a_cut_upload_counts_but_not_against_itself(store: Store, tmp_path: Path) -> None:
    files = BlobStore(tmp_path)
    with files.parts.open("t", "a", offset=0, size=60) as part:
        part.write(b"x" * 30)
    service, view = ModelService(unused), TenantView(store, files, Sight(DEFAULT_TENANT))
    with (
        pytest.raises(QuotaExceeded, match="has 70 of 100 left, with 30 in incomplete uploads"),
        service._room_for(view, "b", 71, SENDER),
    ):
        pass
    with service._room_for(view, "a", 100, SENDER):
        pass


@pytest.fixture
def cancelled() -> threading.Event:
    return threading.Event()


@pytest.fixture
def context(cancelled: threading.Event) -> Any:
    return SimpleNamespace(cancel=cancelled.set)


def test_what_comes_in_time_passes(context: Any, cancelled: threading.Event) -> None:
    assert list(arriving(iter("abc"), context, 3)) == ["a", "b", "c"]
    assert not cancelled.is_set()


def test_a_slow_sender_is_told(context: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "transfer_s", lambda size: -1.0 if size == 3 else 60.0)
    with pytest.raises(QuotaExceeded, match="3 bytes may take"):
        list(arriving(iter("abc"), context, 3))


def test_a_silent_sender_is_cut_off(context: Any, cancelled: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "transfer_s", lambda _: 0.0)
    monkeypatch.setattr(module, "_SILENCE_S", 0.01)

    def silent() -> Iterator[str]:
        if not cancelled.wait(20):
            yield "the call was not ended"

    assert list(arriving(silent(), context, 3)) == []


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
            found += [child] if planner.__name__ in " ".join(child.cmdline()) else []
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
