"""A real server with TLS, tokens and a real Redis: requests to all of its methods, and results on its streams.

The fleet beside it is simulated, in this process.
"""

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import redis
from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from fractune_core.access import Quotas, Scope, TokenText
from fractune_core.codec.messages import to_proto
from fractune_core.errors import FractuneError, error_kinds
from fractune_core.fleet.redis_names import EVENT_FIELD, RECORDER, SERVER_STREAM
from fractune_core.fleet.redis_state import drop_entry, put_entry
from fractune_core.pb import fractune_pb2 as pb
from fractune_core.records import TuningRecord
from fractune_server.admin import Admin
from tests.support.certificates import Authority
from tests.support.fuzz.files import RECORD
from tests.support.fuzz.mutations import Mutator
from tests.support.fuzz.sealed import event_of, worker_of
from tests.support.fuzz.target import DEADLINE_S, Target
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, ServerProcess, model_bytes, running_server
from tests.support.samples import WORKLOAD

_REFUSALS = {grpc.StatusCode[kind.grpc_status] for kind in error_kinds().values()} - {
    grpc.StatusCode.INTERNAL,  # a plain FractuneError: a mistake of the server's own
    grpc.StatusCode.UNAVAILABLE,
} | {grpc.StatusCode.UNIMPLEMENTED}
_MOST_ANSWERS = 3
"""that are read of a stream"""
_RECORD = to_proto(TuningRecord.from_json(RECORD), pb.Record)
_SPEC = pb.JobSpec(shares=["cpu:1"], trials=1, round_size=1)
_ROW = pb.PlanRow(units=1, throughput_per_s=5.0, latency_s=0.1)
_PLAN = pb.MakePlanRequest(
    gpu="A100-80GB", models=[pb.PlanModel(name="m", rate_per_s=4.0, latency_s=1.0, rows=[_ROW])], count=2
)
_VALID: dict[str, list[Message]] = {
    "CreateJobRequest": [pb.CreateJobRequest(spec=_SPEC, sizes={"n": 4})],
    "MakePlanRequest": [_PLAN],
    "ImportRecordsRequest": [
        pb.ImportRecordsRequest(record=_RECORD),
        pb.ImportRecordsRequest(workload=pb.Workload(workload_hash=WORKLOAD, json="[]")),
    ],
    "UploadModelRequest": [
        pb.UploadModelRequest(header=pb.ModelHeader(display_name="m", sha256="a" * 64, size_bytes=3)),
        pb.UploadModelRequest(data=b"abc"),
    ],
}
"""by the name of the message; of others an empty one is changed"""


class Refusal(FractuneError):
    """A status that belongs to one of fractune's errors."""


class ServedPlace:
    """The server while it runs, and ways to it."""

    def __init__(self, server: ServerProcess, redis_url: str, channels: Sequence[tuple[grpc.Channel, str]]) -> None:
        self.server = server
        self.redis = redis.Redis.from_url(redis_url)
        self.channels = channels
        """each with the text of the token that it shows; empty = none"""
        self.texts: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises AssertionError when the server has ended, or has written down a mistake of its own."""
        said = self.server.said()
        assert self.server.process.poll() is None, f"the server ended: {said.splitlines()[-1]}"
        found = said.find("Traceback")
        assert found < 0, f"the server's log has a traceback: {said[found : found + 3000]}"


@contextlib.contextmanager
def _channels(folder: Path, authority: Authority, server: ServerProcess) -> Iterator[list[tuple[grpc.Channel, str]]]:
    """The socket of the server's own user, and over TLS: an admin, a reader, nobody, and a stranger."""
    tls = grpc.ssl_channel_credentials(authority.cert.read_bytes())
    scopes = (Scope.ADMIN, Scope.READ)
    tokens = [Admin(folder / "state").create_token("fuzz", scope, None, Quotas(open_jobs=5)).text for scope in scopes]
    with contextlib.ExitStack() as opened:
        found = [(opened.enter_context(grpc.insecure_channel(f"unix:{folder / 's'}")), "")]
        shown = (*tokens, "", TokenText.new().text)
        found += [(opened.enter_context(grpc.secure_channel(server.address, tls)), text) for text in shown]
        yield found


@contextlib.contextmanager
def served_place() -> Iterator[ServedPlace]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name, running_redis() as url, simulated_fleet(url):
        folder = Path(name)
        authority = Authority.make(folder / "authority")
        pair = authority.issue("server", "localhost", "127.0.0.1")
        tls = {"cert": str(pair.cert), "key": str(pair.key)}
        options = {"tls": tls, "local_socket": str(folder / "s"), "listen": "localhost:0"}
        with running_server(url, folder / "state", **options) as server:
            with _channels(folder, authority, server) as channels:
                place = ServedPlace(server, url, channels)
                place.texts = _real_texts(f"unix:{folder / 's'}")
                yield place
            place.check()


def _real_texts(address: str) -> tuple[str, ...]:
    """Names of things that are there, and what fields may hold."""
    with Client(address) as client:
        model = client.upload(model_bytes(("conv", 2), ("dense", 1)))
        job = client.create(model, shares=["cpu:1"], trials=2, round_size=2).name
        client.finish(job)
        record = client.log.ListRecords(pb.ListRecordsRequest(page_size=1)).records[0].name
        bundle = client.job(job).result.bundle
    return (
        model,
        model,
        job,
        record,
        bundle,
        "cpu:1",
        "cpu:2",
        "trial",
        "validation",
        "near",
        "robust",
        "conv",
        "A100-80GB",
    )


class Calls:
    """Requests to every method that the server has."""

    def __init__(self) -> None:
        self._place: ServedPlace | None = None
        self._methods = _methods()

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with served_place() as self._place:
            yield

    def make(self, mutator: Mutator) -> tuple[str, int, list[bytes]]:
        """The method, which channel, and the bodies of the requests."""
        assert self._place is not None
        draw = mutator.random.random()
        channel = 0 if draw < 0.7 else mutator.random.randrange(1, len(self._place.channels))
        path, kind, streams = mutator.random.choice(self._methods)
        count = mutator.random.choice((0, 1, 2, 2, 3)) if streams else 1
        return path, channel, [self._body(mutator, kind) for _ in range(count)]

    def _body(self, mutator: Mutator, kind: Callable[[], Message]) -> bytes:
        assert self._place is not None
        draw, texts = mutator.random.random(), self._place.texts
        valid = mutator.random.choice(_VALID.get(kind().DESCRIPTOR.name, [kind()]))
        if isinstance(valid, pb.CreateJobRequest):
            valid.spec.model = texts[0]
        if draw < 0.1:
            return mutator.random.randbytes(mutator.random.randint(0, 60))
        if draw < 0.25:
            return mutator.blob(valid.SerializeToString())
        if draw < 0.65:
            return mutator.changed(valid, texts).SerializeToString()
        return mutator.message(kind, texts).SerializeToString()

    def take(self, made: tuple[str, int, list[bytes]]) -> None:
        assert self._place is not None
        path, number, bodies = made
        channel, token = self._place.channels[number]
        metadata = [("authorization", f"Bearer {token}")] if token else []
        method: Any = channel.stream_stream(path)
        call = method(iter(bodies), timeout=DEADLINE_S - 1, metadata=metadata)
        answers: list[bytes] = []
        try:
            for answer in call:
                answers.append(answer)
                if len(answers) == _MOST_ANSWERS:
                    call.cancel()
                    break
        except grpc.RpcError:
            code, details = call.code(), call.details()
            if code not in _REFUSALS and not _is_waiting(path, code, answers):
                raise AssertionError(f"{path}: {code.name}: {details}") from None
            raise Refusal(str(details)) from None
        if path.endswith("/CreateJob") and answers:
            self._cancel(pb.Job.FromString(answers[0]).name)

    def _cancel(self, job: str) -> None:
        """A job of the largest budget would go on for days."""
        assert self._place is not None
        cancel: Any = self._place.channels[0][0].unary_unary("/fractune.v1.JobService/CancelJob")
        cancel(pb.CancelJobRequest(name=job).SerializeToString(), timeout=DEADLINE_S)


def _is_waiting(path: str, code: grpc.StatusCode, answers: list[bytes]) -> bool:
    """Whether it is a watch that has told what there is, and goes on."""
    return code is grpc.StatusCode.DEADLINE_EXCEEDED and path.endswith("/Watch") and bool(answers)


def _methods() -> list[tuple[str, Callable[[], Message], bool]]:
    """Path, message of the request, and whether there are several: of all services that the server has."""
    found: list[tuple[str, Callable[[], Message], bool]] = []
    for file in (pb.DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR):
        for service in file.services_by_name.values():
            for method in service.methods:
                described: Any = method.input_type
                kind = message_factory.GetMessageClass(described)
                found.append((f"/{service.full_name}/{method.name}", kind, method.client_streaming))
    return [each for each in found if not each[0].endswith("Health/Watch")]


class Streams:
    """Results that come to the server over Redis: unsigned ones, and signed ones of a worker that is not like ours."""

    def __init__(self) -> None:
        self._place: ServedPlace | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with served_place() as place:
            self._place = place
            yield
            wait_until(lambda: self._is_drained(place) or place.server.process.poll() is not None, 120)
            place.check()

    def _is_drained(self, place: ServedPlace) -> bool:
        groups: Any = place.redis.xinfo_groups(SERVER_STREAM)
        recorder = next(group for group in groups if group["name"] == RECORDER.encode())
        return not recorder["pending"] and not recorder["lag"]

    def take(self, message: bytes) -> None:
        assert self._place is not None
        self._place.redis.xadd(SERVER_STREAM, {EVENT_FIELD: message})


def _result(mutator: Mutator) -> bytes:
    sealed = event_of(mutator).encode()
    return mutator.blob(sealed) if mutator.random.random() < 0.1 else sealed


class Entries:
    """Entries of workers in Redis, each read by the server when somebody asks who is there."""

    def __init__(self) -> None:
        self._place: ServedPlace | None = None

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        with served_place() as self._place:
            yield

    def take(self, message: str) -> None:
        assert self._place is not None
        place = self._place
        put_entry(place.redis, "w", message)
        for method in ("ListWorkers", "ListShares"):
            call: Any = place.channels[0][0].unary_unary(f"/fractune.v1.FleetService/{method}")
            answer = call(b"", timeout=DEADLINE_S)
            if method == "ListWorkers":
                names = [worker.name for worker in pb.ListWorkersResponse.FromString(answer).workers]
        drop_entry(place.redis, "w")
        if "workers/w" not in names:
            raise Refusal("not told")
        assert json.dumps(names)


_calls, _streams, _entries = Calls(), Streams(), Entries()
TARGETS = (
    Target("calls of a server", _calls.make, _calls.take, _calls.opened, weight=6),
    Target("results to a server", _result, _streams.take, _streams.opened, weight=6),
    Target("workers to a server", worker_of, _entries.take, _entries.opened, weight=1),
)
