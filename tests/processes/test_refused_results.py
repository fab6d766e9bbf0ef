"""A result that the server cannot record is final: its job fails with the cause, and the work is not requested again.

Real servers and a real Redis; the simulated readers report what no real one would.
"""

import json
import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest
import redis

from fractune_core.fleet.redis_names import SERVER_STREAM, UNREADABLE
from fractune_core.pb import fractune_pb2 as pb
from tests.support.processes.fleet_simulated import SimulatedFleet, simulated_fleet
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, ServerProcess, as_call, model_bytes, running_server

pytestmark = pytest.mark.timeout(120)
_GROWTH_BYTES = 4 << 20


class Refusing:
    def __init__(self, url: str, fleet: SimulatedFleet, server: ServerProcess, client: Client) -> None:
        self.redis = redis.Redis.from_url(url)
        self.fleet, self.server, self.client = fleet, server, client

    def ingests(self, job: str) -> int:
        """How often its model was read."""
        handled = [work for worker in self.fleet.workers.values() for work in worker.handled]
        return sum(work.task == "ingest" and job in (work.job, f"jobs/{work.job}") for work in handled)

    def used_bytes(self) -> int:
        memory: Any = self.redis.info("memory")
        return int(memory["used_memory_dataset"])


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refusing]:
    with ExitStack() as stack:
        url = stack.enter_context(running_redis())
        fleet = stack.enter_context(simulated_fleet(url))
        server = stack.enter_context(running_server(url, tmp_path_factory.mktemp("refusing") / "state"))
        yield Refusing(url, fleet, server, stack.enter_context(server.client()))


def model(**operator: Any) -> bytes:
    return json.dumps({"operators": [{"name": "op", "weight": 1, "space": 9, **operator}]}).encode()


_REFUSED = [
    ({"name": "a\0b"}, "is not a text that can be stored"),
    ({"name": "half \ud800"}, "is not a text that can be stored"),
    ({"name": "two\nlines"}, "has an operator named 'two"),
    ({"name": "n" * 201}, "has an operator named 'nnnn"),
    ({"name": ""}, "has an operator named ''"),
    ({"flops": math.inf}, "takes inf operations, which cannot be"),
    ({"flops": math.nan}, "takes nan operations, which cannot be"),
    ({"flops": -1.0}, "takes -1 operations, which cannot be"),
    ({"io_bytes": 2**70}, "has more than 64 bits"),
    ({"io_bytes": -8}, "reads and writes -8 bytes, which cannot be"),
    ({"io_bytes": 8, "written_bytes": 9}, "writes 9 bytes, which cannot be"),
    ({"weight": 2**40}, "times, which cannot be"),
]


@pytest.mark.parametrize(("operator", "words"), _REFUSED, ids=[str(each)[:30] for each, _ in _REFUSED])
def test_a_model_whose_operators_cannot_be_recorded_fails_its_job_once(
    refusing: Refusing, operator: dict[str, Any], words: str
) -> None:
    client = refusing.client
    job = client.create(client.upload(model(**operator)), shares=["cpu:1"], trials=2).name
    ended = client.finish(job)
    assert (ended.state, ended.error) == (pb.JOB_STATE_FAILED, "BadModel")
    assert ended.message.startswith("a result of it (ingest) cannot be recorded: ")
    assert words in ended.message
    assert refusing.ingests(job) == 1


def test_many_refused_results_take_a_bounded_memory(refusing: Refusing) -> None:
    """Each of them is larger than a megabyte."""
    client, before = refusing.client, refusing.used_bytes()
    uploaded = client.upload(model(name="a\0b", text="x" * (1 << 20)))
    for _ in range(3):
        assert client.finish(client.create(uploaded, shares=["cpu:1"], trials=2).name).error == "BadModel"
    assert refusing.redis.xlen(SERVER_STREAM) < 10
    assert refusing.redis.xlen(UNREADABLE) >= 3
    assert refusing.used_bytes() - before < 3 * (2 << 20) + _GROWTH_BYTES


def test_a_call_that_waits_for_such_a_model_is_refused(refusing: Refusing) -> None:
    uploaded = refusing.client.upload(model(name="waited\0for"))
    with pytest.raises(grpc.RpcError) as refused:
        refusing.client.log.MatchModel(pb.MatchModelRequest(model=uploaded, share="cpu:1"), timeout=60)
    assert as_call(refused.value).code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a result of it (ingest) cannot be recorded" in str(as_call(refused.value).details())


def test_the_server_serves_on(refusing: Refusing) -> None:
    job = refusing.client.create(refusing.client.upload(model_bytes(("op", 1))), shares=["cpu:1"], trials=2).name
    assert refusing.client.finish(job).state == pb.JOB_STATE_DONE
    assert refusing.server.process.poll() is None
