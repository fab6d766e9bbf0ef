"""A real server seen from outside: metrics, health and logs, while its workers are killed. The fleet is simulated."""

import itertools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fractune_core.fleet.messages import WORK_KINDS
from fractune_core.pb import fractune_pb2 as pb
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import error_line, run_fractune, start_fractune, stopped_at_end
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, ServerProcess, model_bytes, running_server, simulated_stack
from tests.support.secret import SECRET

Scrape = dict[tuple[str, tuple[str, ...]], float]


def fresh(operators: int = 3) -> bytes:
    mark = uuid.uuid4().hex[:6]
    return model_bytes(*((f"op{index}_{mark}", index + 1) for index in range(operators)))


def port_of(server: ServerProcess) -> str:
    """Where its metrics are, as its log says."""
    found = re.search(r"metrics at (http://\S+)/metrics", server.said())
    assert found
    return found[1]


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=20) as answer:  # noqa: S310  our own address
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scrape(server: ServerProcess) -> Scrape:
    """As Prometheus' own library reads it: by name, and the values of the labels in the order of the labels' names."""
    code, text = get(f"{port_of(server)}/metrics")
    assert code == 200
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def counters(found: Scrape) -> Scrape:
    return {key: value for key, value in found.items() if re.search("_(total|count|bucket)$", key[0])}


def records_in_sql(state: Path) -> dict[tuple[str, ...], float]:
    with sqlite3.connect(f"file:{state / 'fractune.db'}?mode=ro", uri=True) as connection:
        rows = connection.execute("SELECT kind, share, status, count(*) FROM records GROUP BY kind, share, status")
        found = {tuple(row[:3]): float(row[3]) for row in rows}
    connection.close()
    return found


@contextmanager
def worker_process(url: str, role: str, name: str, share: str = "", *, hold: bool = False) -> Iterator[None]:
    """A simulated worker as a process, killed at the end; `hold`: it takes work and never does it."""
    command = [sys.executable, "-m", "tests.support.processes.fleet_simulated", url, role, name, share]
    process = subprocess.Popen(command, env={**os.environ, **({"HOLD": "1"} if hold else {})})
    try:
        yield
    finally:
        process.kill()
        process.wait()


def take_work_and_die(server: ServerProcess, url: str, role: str, name: str, share: str = "") -> None:
    """A worker takes a piece of work, as the metrics say, and is killed with it."""
    with worker_process(url, role, name, share, hold=True):
        wait_until(lambda: scrape(server).get(("fractune_workers", (role, share, "busy")), 0) >= 1, 60)
    wait_until(lambda: ("fractune_workers", (role, share, "busy")) not in scrape(server), 60)


def scrapes_until_done(server: ServerProcess, client: Client, job: str) -> list[Scrape]:
    seen = []

    def look(found: pb.Job) -> bool:
        seen.append(scrape(server))
        return found.state in (pb.JOB_STATE_DONE, pb.JOB_STATE_FAILED)

    assert client.wait(job, look, 120).state == pb.JOB_STATE_DONE
    return [*seen, scrape(server)]


@pytest.mark.long
def test_counters_equal_sql_after_workers_were_killed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with simulated_stack(state, metrics="127.0.0.1:0") as (url, fleet, server, client):
        fleet.remove("build-1")
        job = client.create(client.upload(fresh()), trials=60, round_size=6).name
        client.wait(job, lambda found: found.state == pb.JOB_STATE_TUNING)
        fleet.remove("measure-1")
        first = scrape(server)
        take_work_and_die(server, url, "build", "build-killed")
        with worker_process(url, "build", "builder"):
            for number in range(2):
                take_work_and_die(server, url, "measure", f"measure-killed-{number}", "cpu:1")
            with worker_process(url, "measure", "measurer", "cpu:1"):
                seen = [first, *scrapes_until_done(server, client, job)]
        last = seen[-1]
        told = {key[1]: value for key, value in last.items() if key[0] == "fractune_records_total"}
        assert told == records_in_sql(state)
        assert sum(value for (kind, _, _), value in told.items() if kind == "trial") == 120
        assert last["fractune_work_requeued_total", ("build", "worker_gone")] >= 1
        assert last["fractune_work_requeued_total", ("measure", "worker_gone")] >= 2
        assert all(last["fractune_work_given_up_total", (kind,)] == 0 for kind in WORK_KINDS)
        assert last["fractune_jobs", ("done",)] == 1
        assert last["fractune_recorder_lag_seconds_count", ()] >= sum(told.values())
        assert last["fractune_work_duration_seconds_count", ("search",)] >= 1
        for before, after in itertools.pairwise(seen):
            assert all(after.get(key, 0.0) >= value for key, value in counters(before).items())


def test_calls_are_counted_and_no_series_names_a_job_or_a_worker(tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state", metrics="127.0.0.1:0") as (_, fleet, server, client):
        job = client.finish(client.create(client.upload(fresh(1)), trials=4).name)
        client.fleet.ListWorkers(pb.ListWorkersRequest())
        found = scrape(server)
        service = "fractune.v1.FleetService"
        assert found["grpc_server_handled_total", ("OK", "ListWorkers", service, "unary")] == 1
        assert found["grpc_server_handling_seconds_count", ("ListWorkers", service, "unary")] == 1
        labels = {label for _, values in found for label in values}
        assert not labels & {*fleet.workers, job.name, job.name.partition("/")[2]}


def test_health_by_every_way(tmp_path: Path) -> None:
    with ExitStack() as redis_held:
        url = redis_held.enter_context(running_redis())
        with running_server(url, tmp_path / "state", metrics="127.0.0.1:0") as server:
            asked = run_fractune("health", "--server", server.address, "--json")
            assert (asked.returncode, json.loads(asked.stdout)["healthy"]) == (0, True)
            assert [get(port_of(server) + path)[0] for path in ("/healthz", "/readyz")] == [200, 200]
            redis_held.close()
            wait_until(lambda: get(f"{port_of(server)}/readyz") == (503, "failing: redis\n"))
            assert get(f"{port_of(server)}/healthz") == (200, "ok\n")
            assert scrape(server)["fractune_healthy", ("redis",)] == 0
            # The engine ends when Redis has been away for long: the slow commands come last.
            assert run_fractune("health", "--live", "--server", server.address).returncode == 0
            failing = run_fractune("health", "--server", server.address)
            assert failing.returncode == 1
            assert failing.stdout.splitlines() == ["engine: ok", "store: ok", "redis: failing"]
            assert f"the server at {server.address} is not ready: redis" in error_line(failing)
        gone = run_fractune("health", "--server", server.address)
        assert gone.returncode == 5
        assert "no fractune server answers" in error_line(gone)


@pytest.mark.parametrize(("metrics", "says"), [("0.0.0.0:0", "--insecure"), ("127.0.0.1:no", "--metrics 127.0.0.1:no")])
def test_a_port_for_metrics_that_is_refused(tmp_path: Path, metrics: str, says: str) -> None:
    with running_redis() as url:
        server = ServerProcess(url, tmp_path / "state", metrics=metrics)
        assert server.process.wait() == 2
        assert says in server.said()


def test_without_the_option_there_is_no_port(tmp_path: Path) -> None:
    with running_redis() as url, running_server(url, tmp_path / "state") as server:
        assert "metrics at" not in server.said()


def test_lines_of_the_servers_log_name_the_job(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    options = ("--listen", "127.0.0.1:0", "--state", str(tmp_path / "state"), "--ready-file", str(ready))
    with running_redis() as url, simulated_fleet(url):
        command = ("server", "--redis", url, *options, "--log-format", "json")
        with stopped_at_end(start_fractune(*command, env={"FRACTUNE_SECRET": SECRET.decode()})) as process:
            wait_until(ready.exists, 60)
            with Client(ready.read_text()) as client:
                job = client.finish(client.create(client.upload(b"no model"), trials=4).name)
                assert job.state == pb.JOB_STATE_FAILED
            process.terminate()
            _, said = process.communicate(timeout=60)
    lines = [json.loads(line) for line in said.splitlines()]
    (failed,) = [line for line in lines if "failed" in line["message"]]
    assert failed["job"] == job.name.partition("/")[2]
    assert all("job" not in line for line in lines if line["logger"] == "fractune_server.main")


@pytest.fixture
def promtool() -> str:
    """Prometheus' own tool."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here: `apt-get install prometheus` brings it")
    return found


@pytest.mark.parametrize("what", [("check", "rules", "deploy/alerts.yml"), ("test", "rules", "deploy/alerts_test.yml")])
def test_promtool_finds_nothing_wrong_with_the_alert_rules(promtool: str, what: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *what], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_promtool_finds_nothing_wrong_with_a_scrape(promtool: str, tmp_path: Path) -> None:
    with simulated_stack(tmp_path / "state", metrics="127.0.0.1:0") as (_, _, server, client):
        client.finish(client.create(client.upload(fresh(1)), trials=4).name)
        _, text = get(f"{port_of(server)}/metrics")
    checked = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
