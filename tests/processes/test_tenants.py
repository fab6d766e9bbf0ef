"""Two tenants on one server: a call by one answers the same whether or not the other has what the call names."""

import contextlib
import hashlib
import http.client
import json
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from fractune.dashboard.app import Site
from fractune.dashboard.guard import GuardOptions
from fractune.dashboard.serving import PageServer
from fractune.dashboard.sign_in import Entrance, SignedInPages
from fractune.server.credentials import Credentials
from fractune_core.access import Quotas, Reach, Scope, TokenText
from fractune_core.codec.messages import to_proto
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from fractune_server.authenticator import SCOPES
from tests.processes.test_access import Place, client_credentials, metrics_answer, running_place
from tests.support.measured_pairs import measured_pair, runtime_time
from tests.support.processes.cli_process import error_line, run_fractune
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import wait_until
from tests.support.processes.server_process import Client, as_call, model_bytes

MARK = "secretproject"
"""in every name that the one tenant gives"""


@dataclass
class Names:
    """The names of what a tenant has, or made-up names."""

    payload: bytes
    job: str = field(default_factory=lambda: f"jobs/{uuid.uuid4().hex[:12]}")
    bundle: str = field(default_factory=lambda: f"bundles/{uuid.uuid4().hex}")
    operator: str = field(default_factory=lambda: f"conv_{uuid.uuid4().hex[:6]}")
    workload: str = field(default_factory=lambda: uuid.uuid4().hex * 2)
    record: str = field(default_factory=lambda: f"records/{uuid.uuid4().hex}")
    display_name: str = field(default_factory=lambda: f"{uuid.uuid4().hex}.onnx")

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.payload).hexdigest()

    @property
    def model(self) -> str:
        return f"models/{self.sha256}"

    @property
    def filter(self) -> pb.RecordFilter:
        return pb.RecordFilter(job=self.job)

    @property
    def pair(self) -> pb.MeasuredPair:
        made = to_proto(measured_pair(), pb.MeasuredPair, pair_id=self.sha256[:16])
        made.models[0].model_name = self.display_name
        return made

    @property
    def time(self) -> pb.RuntimeTime:
        made = to_proto(runtime_time(self.sha256[:16]), pb.RuntimeTime)
        made.model = self.model
        return made

    def hidden(self, text: str) -> str:
        """The text without these names."""
        found = (self.sha256, self.operator, self.workload, self.display_name)
        for name in (*found, *(each.partition("/")[2] for each in (self.job, self.bundle, self.record))):
            text = text.replace(name, "NAME")
        return text


health: Any = health_pb2
health_stub: Any = health_pb2_grpc.HealthStub
reflection: Any = reflection_pb2
reflection_stub: Any = reflection_pb2_grpc.ServerReflectionStub


def upload(names: Names) -> Iterator[pb.UploadModelRequest]:
    """A header alone: what is there already would need no data."""
    size = len(names.payload)
    yield pb.UploadModelRequest(header=pb.ModelHeader(display_name="x.onnx", sha256=names.sha256, size_bytes=size))


def create(names: Names) -> pb.CreateJobRequest:
    return pb.CreateJobRequest(spec=pb.JobSpec(model=names.model, shares=["cpu:1"], trials=1))


def plan(names: Names) -> pb.MakePlanRequest:
    return pb.MakePlanRequest(cores=8, layouts="cpu", models=[pb.PlanModel(name="m", model=names.model)])


def lists(names: Names) -> Iterable[pb.ListRecordsRequest]:
    for chosen in (
        pb.RecordFilter(),
        pb.RecordFilter(job=names.job),
        pb.RecordFilter(model=names.sha256),
        pb.RecordFilter(operator=names.operator),
        pb.RecordFilter(operator=names.workload),
    ):
        yield pb.ListRecordsRequest(filter=chosen)
        yield pb.ListRecordsRequest(filter=chosen, fastest_first=True)


Call = Callable[[Client, Names], Any]
ROWS: dict[str, Call] = {
    "ModelService/UploadModel": lambda c, n: c.models.UploadModel(upload(n)),
    "ModelService/GetUpload": lambda c, n: c.models.GetUpload(pb.GetUploadRequest(name=n.model)),
    "ModelService/GetModel": lambda c, n: c.models.GetModel(pb.GetModelRequest(name=n.model)),
    "JobService/CreateJob": lambda c, n: c.jobs.CreateJob(create(n)),
    "JobService/GetJob": lambda c, n: c.jobs.GetJob(pb.GetJobRequest(name=n.job)),
    "JobService/ListJobs": lambda c, _: c.jobs.ListJobs(pb.ListJobsRequest()),
    "JobService/CancelJob": lambda c, n: c.jobs.CancelJob(pb.CancelJobRequest(name=n.job)),
    "JobService/WatchJob": lambda c, n: list(c.jobs.WatchJob(pb.WatchJobRequest(name=n.job), timeout=20)),
    "JobService/ListCosts": lambda c, n: [
        c.jobs.ListCosts(pb.ListCostsRequest()),
        c.jobs.ListCosts(pb.ListCostsRequest(job=n.job)),
    ],
    "LogService/ListRecords": lambda c, n: [c.log.ListRecords(each) for each in lists(n)],
    "LogService/ExportRecords": lambda c, n: [
        list(c.log.ExportRecords(pb.ExportRecordsRequest(filter=each.filter, with_workloads=True))) for each in lists(n)
    ],
    "LogService/ImportRecords": lambda c, _: c.log.ImportRecords(iter([])),
    "LogService/PruneRecords": lambda c, n: c.log.PruneRecords(pb.PruneRecordsRequest(filter=n.filter, dry_run=True)),
    "LogService/MatchModel": lambda c, n: c.log.MatchModel(pb.MatchModelRequest(model=n.model, share="cpu:1")),
    "LogService/TabulateModel": lambda c, n: c.log.TabulateModel(
        pb.TabulateModelRequest(model=n.model, shares=["cpu:1"])
    ),
    "LogService/ListUnreadable": lambda c, _: c.log.ListUnreadable(pb.ListUnreadableRequest()),
    "LogService/ReplayUnreadable": lambda c, _: c.log.ReplayUnreadable(pb.ReplayUnreadableRequest()),
    "LogService/AddPair": lambda c, n: c.log.AddPair(pb.AddPairRequest(pair=n.pair)),
    "LogService/ListPairs": lambda c, n: c.log.ListPairs(pb.ListPairsRequest(model_name=n.display_name)),
    "LogService/AddRuntimeTimes": lambda c, n: c.log.AddRuntimeTimes(pb.AddRuntimeTimesRequest(times=[n.time])),
    "LogService/ListRuntimeTimes": lambda c, n: c.log.ListRuntimeTimes(pb.ListRuntimeTimesRequest(model=n.model)),
    "PlanService/MakePlan": lambda c, n: c.plans.MakePlan(plan(n)),
    "BundleService/DownloadBundle": lambda c, n: list(
        c.bundles.DownloadBundle(pb.DownloadBundleRequest(name=n.bundle))
    ),
    "FleetService/ListWorkers": lambda c, _: c.fleet.ListWorkers(pb.ListWorkersRequest()),
    "FleetService/ListShares": lambda c, _: c.fleet.ListShares(pb.ListSharesRequest()),
    "grpc.health.v1.Health/Check": lambda c, n: health_stub(c.channel).Check(health.HealthCheckRequest(service=n.job)),
    "grpc.health.v1.Health/List": lambda c, _: health_stub(c.channel).List(health.HealthListRequest()),
    "grpc.health.v1.Health/Watch": lambda c, n: next(
        health_stub(c.channel).Watch(health.HealthCheckRequest(service=n.job), timeout=20)
    ),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": lambda c, n: list(
        reflection_stub(c.channel).ServerReflectionInfo(
            iter([reflection.ServerReflectionRequest(file_containing_symbol=n.job)])
        )
    ),
}
"""by RPC: what a tenant asks with the names of another one. Each new RPC needs a row."""
KEPT = ("LogService/AddPair", "LogService/AddRuntimeTimes")
"""rows of calls that store something for the caller"""


ALIKE = {
    *("ModelService/GetUpload", "LogService/ImportRecords", "LogService/ListUnreadable", "LogService/ReplayUnreadable"),
    *("FleetService/ListWorkers", "FleetService/ListShares"),
    *(row for row in ROWS if row.startswith("grpc.")),
}
"""rows that answer each tenant alike"""


@dataclass
class Two:
    """A server with two tenants: one has everything, the other has nothing."""

    place: Place
    names: Names
    client: Client
    """of the tenant that has something"""
    other: Client
    tokens: dict[str, TokenText]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with (
        running_place(tmp_path_factory.mktemp("tenants"), metrics="0.0.0.0:0") as place,
        simulated_fleet(place.redis_url),
    ):
        for tenant in ("alpha", "beta", "gamma"):
            Admin(place.state).create_tenant(tenant, Quotas())
        rights = {
            "alpha": (Scope.OPERATE, Reach("alpha")),
            "beta": (Scope.OPERATE, Reach("beta")),
            "gamma": (Scope.OPERATE, Reach("gamma")),
            "admin": (Scope.ADMIN, Reach()),
            "reader": (Scope.READ, Reach("beta", all_tenants=True)),
        }
        tokens = {
            name: Admin(place.state).create_token("a token", scope, None, Quotas(), reach=reach)
            for name, (scope, reach) in rights.items()
        }
        with client_of(place, tokens["alpha"]) as alpha, client_of(place, tokens["beta"]) as beta:
            names = Names(model_bytes((f"conv_{MARK}", 2)), display_name=f"{MARK}.onnx")
            model = alpha.upload(names.payload, names.display_name)
            done = alpha.finish(alpha.create(model, trials=4).name)
            assert done.result.bundle
            names.job, names.bundle = done.name, done.result.bundle
            names.operator, names.workload = done.operators[0].display_name, done.operators[0].workload_hash
            records = alpha.log.ListRecords(pb.ListRecordsRequest()).records
            names.record = records[0].name
            assert alpha.log.AddPair(pb.AddPairRequest(pair=names.pair)).added
            assert alpha.log.AddRuntimeTimes(pb.AddRuntimeTimesRequest(times=[names.time])).added
            yield Two(place, names, alpha, beta, tokens)


def client_of(place: Place, token: TokenText) -> Client:
    return Client(place.server.address, client_credentials(place.authority, token))


def answer(call: Call, client: Client, names: Names) -> str:
    """All that a caller sees of a call."""
    try:
        found = call(client, names)
    except grpc.RpcError as error:
        refused = as_call(error)
        return f"{refused.code()} {refused.details()} {refused.trailing_metadata()}"
    return str(found)


def test_each_rpc_has_a_row() -> None:
    paths = {path.lstrip("/").removeprefix("fractune.v1.") for path in SCOPES}
    assert set(ROWS) == paths, "say what a tenant asks with another tenant's names"


@pytest.mark.parametrize("rpc", [row for row in ROWS if row not in KEPT] + list(KEPT))
def test_no_rpc_tells_of_another_tenant(two: Two, rpc: str) -> None:
    nothing = Names(model_bytes((f"conv_{uuid.uuid4().hex[: len(MARK)]}", 2)))
    own = answer(ROWS[rpc], two.client, two.names)
    theirs, nobodys = (answer(ROWS[rpc], two.other, names) for names in (two.names, nothing))
    assert two.names.hidden(theirs) == nothing.hidden(nobodys)
    assert rpc in KEPT or MARK not in two.names.hidden(theirs)
    assert "alpha" not in theirs.replace("v1alpha", "")
    if rpc not in ALIKE:
        assert two.names.hidden(own) != nothing.hidden(nobodys), "the one who has it gets another answer"


def test_admins_and_tokens_for_all_tenants_see_both(two: Two) -> None:
    for kind in ("admin", "reader"):
        with client_of(two.place, two.tokens[kind]) as client:
            listed = [job.name for job in client.jobs.ListJobs(pb.ListJobsRequest()).jobs]
            assert two.names.job in listed
            found = client.log.ListRecords(pb.ListRecordsRequest(filter=two.names.filter))
            assert found.total_size > 0
            assert {each.namespace for each in found.records} == {""}
            assert client.job(two.names.job).result.bundle == two.names.bundle
            assert list(client.bundles.DownloadBundle(pb.DownloadBundleRequest(name=two.names.bundle)))
    with pytest.raises(grpc.RpcError, match="has the scope read"), client_of(two.place, two.tokens["reader"]) as reader:
        reader.jobs.CancelJob(pb.CancelJobRequest(name=two.names.job))


def test_an_equal_upload_and_an_equal_job_begin_from_nothing(two: Two) -> None:
    """What another tenant has is neither taken nor noted: the same bytes, the same trials, the same notes."""
    payload, name = two.names.payload, "own.onnx"
    with pytest.raises(grpc.RpcError, match="the upload ended"):
        two.other.models.UploadModel(upload(two.names))
    model = two.other.upload(payload, name)
    assert two.other.models.GetModel(pb.GetModelRequest(name=model)).display_name == name
    job = two.other.finish(two.other.create(model, trials=4).name)
    assert (job.progress.candidates_done, job.progress.candidates_shared) == (4, 0)
    assert job.result.bundle != two.names.bundle
    assert not any(share.earlier_job for share in job.result.shares)
    assert two.names.job.partition("/")[2] not in str(job)
    mine = two.other.log.ListRecords(pb.ListRecordsRequest(filter=pb.RecordFilter(model=two.names.sha256)))
    assert {record.job for record in mine.records} == {job.name.partition("/")[2]}


def test_tenants_that_consent_share_times_and_schedules_and_no_names(two: Two) -> None:
    payload, done = model_bytes((f"conv_{uuid.uuid4().hex[:6]}", 2)), []
    for tenant in ("delta", "epsilon"):
        Admin(two.place.state).create_tenant(tenant, Quotas(), shares_searches=True)
        token = Admin(two.place.state).create_token(tenant, Scope.SUBMIT, None, Quotas(), reach=Reach(tenant))
        with client_of(two.place, token) as client:
            model = client.upload(payload, f"{tenant}.onnx")
            job = client.finish(client.create(model, trials=4).name)
            matched = client.log.MatchModel(pb.MatchModelRequest(model=model, share="cpu:1")).matches
            bundle = b"".join(
                each.data for each in client.bundles.DownloadBundle(pb.DownloadBundleRequest(name=job.result.bundle))
            )
            listed = client.log.ListRecords(pb.ListRecordsRequest()).total_size
            done.append((job, matched, bundle, listed))
    (first, *_), (second, matched, bundle, listed) = done
    assert (first.progress.candidates_done, second.progress.candidates_done) == (4, 0)
    assert (matched[0].how, matched[0].record.job, matched[0].record.operator) == ("exact", "", "")
    assert listed == 0, "shared records are not listed"
    owner = first.name.partition("/")[2]
    for text in (str(second), str(matched), bundle.decode(errors="replace")):
        assert owner not in text
        assert "delta" not in text
    assert first.result.bundle != second.result.bundle


@pytest.mark.parametrize("namespace", ["alpha/", "*/", "alpha/x", "/"])
def test_no_namespace_is_the_pool_of_another_tenant(two: Two, namespace: str) -> None:
    """The default tenant's pools have the names of its namespaces."""
    token = Admin(two.place.state).create_token("x", Scope.OPERATE, None, Quotas())
    with client_of(two.place, token) as client:
        model = client.upload(two.names.payload, "own.onnx")
        chosen = pb.RecordFilter(namespace=namespace)
        for ask in (
            lambda: client.log.MatchModel(pb.MatchModelRequest(model=model, share="cpu:1", namespace=namespace)),
            lambda: client.log.TabulateModel(
                pb.TabulateModelRequest(model=model, shares=["cpu:1"], namespace=namespace)
            ),
            lambda: client.create(model, trials=1, namespace=namespace),
            lambda: client.log.ListRecords(pb.ListRecordsRequest(filter=chosen)),
            lambda: list(client.log.ExportRecords(pb.ExportRecordsRequest(filter=chosen))),
            lambda: client.log.PruneRecords(pb.PruneRecordsRequest(filter=chosen)),
        ):
            with pytest.raises(grpc.RpcError, match="namespace '"):
                ask()


def test_the_command_line_manages_tenants_of_a_running_server(two: Two, tmp_path: Path) -> None:
    state, out = ("--state", str(two.place.state)), tmp_path / "ci.token"
    limits = ("--jobs", "1", "--trials-a-day", "20", "--bytes", "1G", "--share-seconds-a-day", "60")
    assert run_fractune("admin", "tenant", "create", "zeta", *limits, "--weight", "2", *state).returncode == 0
    create = ("admin", "token", "create", "ci", "--scope", "submit", "--out", str(out), *state)
    assert error_line(run_fractune(*create, "--tenant", "eta")).startswith("fractune: no tenant 'eta'; create it by")
    assert run_fractune(*create, "--tenant", "zeta").returncode == 0
    token = TokenText.parse(out.read_text().strip())
    assert token is not None
    with client_of(two.place, token) as client:
        model = client.upload(model_bytes((f"conv_{uuid.uuid4().hex[:6]}", 1)))
        client.finish(client.create(model, trials=4).name)
        assert run_fractune("admin", "tenant", "set", "zeta", "--trials-a-day", "10", *state).returncode == 0
        with pytest.raises(grpc.RpcError, match=r"tenant zeta has 6 of 10 in 24 hours left; .* frees up in 2[34] h"):
            client.create(model, more=7)
    listed = [
        json.loads(line) for line in run_fractune("admin", "tenant", "list", "--json", *state).stdout.splitlines()
    ]
    (found,) = (each for each in listed if each["tenant"] == "zeta")
    assert found["quotas"] | {"open_jobs": 1, "trials_a_day": 10, "stored_bytes": 1 << 30} == found["quotas"]
    assert found["used"]["trials_a_day"] == 4
    assert found["used"]["share_seconds_a_day"] > 0
    refused = run_fractune("admin", "tenant", "remove", "zeta", *state)
    assert "tenant 'zeta' has 1 valid tokens, 1 jobs, 1 models" in error_line(refused)


OWN = {"fractune_build", "fractune_jobs", "fractune_records", "fractune_tenant_used", "fractune_tenant_limit"}
"""metrics that a tenant sees, of itself; fractune_build says which version serves"""
OF_FLEET = re.compile(
    r"fractune_(healthy|jobs|records|build|workers|work_\w+|batches_remeasured|fault_epochs|results_unreadable"
    r"|recorder_lag_seconds|engine_turn_seconds|audit_failures)|grpc_server_\w+|process_\w+"
)
"""those of who sees all tenants. A new metric goes to one of both"""


def families(two: Two, token: str) -> dict[str, str]:
    status, text = metrics_answer(two.place, two.tokens[token])
    assert status == 200
    return {each.name.removesuffix("_info"): str(each.samples) for each in text_string_to_metric_families(text)}


def test_no_metric_tells_of_another_tenant(two: Two) -> None:
    whole, before = families(two, "admin"), families(two, "beta")
    assert set(before) == OWN
    assert [name for name in whole if not OF_FLEET.fullmatch(name)] == []
    model = two.client.upload(model_bytes((f"conv_{uuid.uuid4().hex}", 1)))
    two.client.finish(two.client.create(model, trials=2).name)
    assert families(two, "beta") == before
    assert families(two, "admin")["fractune_jobs"] != whole["fractune_jobs"]
    assert set(families(two, "reader")) == set(whole)


PAGES: dict[str, Callable[[Names], list[str]]] = {
    "/": lambda _: ["/"],
    "/jobs/{id}": lambda n: [f"/{n.job}", f"/{n.job}?operator={n.workload}"],
    "/jobs/{id}/bundle": lambda n: [f"/{n.job}/bundle"],
    "/jobs/{id}/cancel": lambda n: [f"POST /{n.job}/cancel"],
    "/models/{id}": lambda n: [f"/{n.model}", f"/{n.model}?share=cpu:1"],
    "/shares": lambda _: ["/shares"],
    "/log": lambda n: ["/log", f"/log?job={n.job}", f"/log?model={n.sha256}", f"/log?operator={n.operator}"],
    "/log/records/{id}": lambda n: [f"/log/{n.record}?job={n.job}", f"/log/{n.record}"],
    "/log/records/{id}/code": lambda n: [f"/log/{n.record}/code?job={n.job}", f"/log/{n.record}/code"],
    "/compare": lambda n: ["/compare", f"/compare?a={n.job}&b={n.job}"],
    "/fit": lambda n: ["/fit", f"/fit?job={n.job}&rate=18/s&p99=50ms"],
    "/plan": lambda n: ["/plan", f"/plan?job={n.job}&rate=18/s&p99=50ms"],
    "/pairs": lambda _: ["/pairs"],
    "/find": lambda n: [f"/find?q={each}" for each in (n.job.partition("/")[2], n.sha256, n.operator, n.display_name)],
    "/events": lambda _: [],
    "/static": lambda _: ["/static/page.js"],
}
"""by route: what a reader asks with the names of another tenant. `/events` has a test of its own"""


@pytest.fixture(scope="module")
def port(two: Two) -> Iterator[int]:
    """Of pages whose readers sign in."""
    entrance = Entrance(two.place.server.address, credentials=Credentials(ca=two.place.authority.cert), reconnect_s=1.0)
    pages = SignedInPages(entrance, lambda client: Site(client, GuardOptions(is_loopback=True), may_cancel=True))
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        running = PageServer(pages)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
        thread.start()
        wait_until(lambda: running.started)
        yield bound.getsockname()[1]
        running.should_exit = True
        thread.join()


_CHANGING = re.compile(r'value="[\w-]{43}"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|"taken_at": [0-9.]+')
"""of a page: its moment, and the key of its form"""


def page(port: int, token: str, asked: str, accept: str = "text/html") -> tuple[int, str]:
    method, _, path = asked.rpartition(" ")
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method or "GET", path, headers={"authorization": f"Bearer {token}", "accept": accept})
        answer = connection.getresponse()
        return answer.status, _CHANGING.sub("", answer.read().decode(errors="replace"))


def test_each_page_has_a_row() -> None:
    unused: Any = SimpleNamespace(address="")
    routes: Any = Site(unused, GuardOptions(is_loopback=True), may_cancel=True).app().routes
    assert set(PAGES) == {each.path for each in routes}, "say what a reader asks with another tenant's names"


@pytest.mark.parametrize("route", PAGES)
def test_no_page_tells_of_another_tenant(two: Two, port: int, route: str) -> None:
    nothing = Names(model_bytes((f"conv_{uuid.uuid4().hex[: len(MARK)]}", 2)))
    for mine, nobodys in zip(PAGES[route](two.names), PAGES[route](nothing), strict=True):
        for accept in ("text/html", "application/json"):
            seen, empty = (page(port, two.tokens["gamma"].text, asked, accept) for asked in (mine, nobodys))
            assert (seen[0], two.names.hidden(seen[1])) == (empty[0], nothing.hidden(empty[1]))
            assert MARK not in two.names.hidden(seen[1])


@contextlib.contextmanager
def events(port: int, token: TokenText) -> Iterator[list[bytes]]:
    """The events that a reader has got, from the first on."""
    found: list[bytes] = []
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as listening:
        listening.request("GET", "/events", headers={"authorization": f"Bearer {token.text}"})
        answer, link = listening.getresponse(), listening.sock

        def listen() -> None:
            with contextlib.suppress(OSError, ValueError):
                found.extend(line for line in answer if line.startswith(b"data:"))

        thread = threading.Thread(target=listen)
        thread.start()
        wait_until(lambda: found)
        yield found
        link.shutdown(socket.SHUT_RDWR)
        thread.join()


def taken_at(port: int, token: TokenText) -> float:
    """When the server was last read for this reader."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/", headers={"authorization": f"Bearer {token.text}", "accept": "application/json"})
        return float(json.load(connection.getresponse())["taken_at"])


def test_no_event_tells_of_another_tenant(two: Two, port: int) -> None:
    """A reader's events are the changes of what this reader sees: also how many come, and when, tells of no other."""
    Admin(two.place.state).create_tenant("theta", Quotas())
    token = Admin(two.place.state).create_token("x", Scope.READ, None, Quotas(), reach=Reach("theta"))
    for each in (token, two.tokens["reader"]):
        taken_at(port, each)
    with events(port, token) as theirs, events(port, two.tokens["reader"]) as of_all:
        before = list(theirs), list(of_all)
        model = two.client.upload(model_bytes((f"conv_{uuid.uuid4().hex}", 1)))
        two.client.finish(two.client.create(model, trials=2).name)
        ended_at = time.time()
        wait_until(lambda: taken_at(port, token) > ended_at)
        wait_until(lambda: of_all != before[1])
        assert theirs == before[0]


def test_readers_see_their_own_and_admins_all(two: Two, port: int) -> None:
    for token, sees in (("alpha", True), ("gamma", False), ("admin", True), ("reader", True)):
        status, text = page(port, two.tokens[token].text, "/")
        assert (status, MARK in text) == (200, sees)
    assert page(port, "", "/")[0] == 401
    assert page(port, TokenText.new().text, "/")[0] == 401
    assert page(port, two.tokens["alpha"].text, "/")[0] == 200, "a wrong token keeps no reader out"


def test_a_revoked_token_ends_its_reader(two: Two, port: int) -> None:
    made = Admin(two.place.state).create_token("x", Scope.READ, None, Quotas(), reach=Reach("alpha"))
    assert page(port, made.text, "/")[0] == 200
    Admin(two.place.state).revoke_token(made.token_id)
    wait_until(lambda: page(port, made.text, "/")[0] == 401, 20)
