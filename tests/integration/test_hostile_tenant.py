"""Twelve operators of a hostile tenant beside the model of an honest one, on a real stack without the check of modules.

The hostile tenant loses its own work alone: nothing leaves a process that measures, and no worker ends.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fractune_core.access import Quotas, Reach, Scope
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin
from tests.processes.test_access import client_credentials
from tests.support.certificates import Authority
from tests.support.hostile_kernels import ESCAPED, model_of, operators
from tests.support.paths import REPOSITORY
from tests.support.processes.cli_process import write_model
from tests.support.processes.redis_process import running_redis, wait_until
from tests.support.processes.server_process import Client, running_server
from tests.support.secret import SECRET

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]

ROLES = {
    "compile": (),
    "tune": (),
    "build": (),
    "measure": ("--share", "cpu:1"),
}
TWELVE = (
    *("socket", "fork", "signal", "file", "link", "secret", "environment", "shell", "shared-memory"),
    *("sleeping", "aborting", "outside"),
)
ENDED = {"sleeping", "aborting", "outside"}
"""those that end their process: no record of them is one of a measured time"""
TOLD = "a secret of the fleet's operator"


@dataclass(frozen=True)
class Stack:
    address: str
    authority: Authority
    folder: Path
    workers: Mapping[str, subprocess.Popen[bytes]]

    def client(self, tenant: str) -> Client:
        state = self.folder / "state"
        Admin(state).create_tenant(tenant, Quotas())
        token = Admin(state).create_token(tenant, Scope.SUBMIT, None, Quotas(), reach=Reach(tenant))
        return Client(self.address, client_credentials(self.authority, token))

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    authority, secret = Authority.make(tmp_path / "authority"), tmp_path / "secret"
    pair = authority.issue("server", "localhost", "127.0.0.1")
    secret.write_bytes(SECRET)
    path = os.pathsep.join((str(REPOSITORY / "tests/support/blind_check"), str(REPOSITORY)))
    with contextlib.ExitStack() as running:
        url = running.enter_context(running_redis())
        tls = {"cert": str(pair.cert), "key": str(pair.key)}
        server = running.enter_context(running_server(url, tmp_path / "state", tls=tls))
        workers = {}
        for role, more in ROLES.items():
            options = ("--redis", url, "--secret-file", str(secret), "--lock-dir", str(tmp_path / "gate"), *more)
            with (tmp_path / f"{role}.log").open("wb") as log:
                workers[role] = subprocess.Popen(
                    [sys.executable, "-m", "fractune", "worker", "--role", role, *options],
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": path, "SOME_TOKEN": TOLD},
                )
            running.callback(workers[role].wait, 60)
            running.callback(workers[role].terminate)
        made = Stack(server.address, authority, tmp_path, workers)
        with made.client("watching") as client:
            wait_until(lambda: len(client.fleet.ListWorkers(pb.ListWorkersRequest()).workers) == len(ROLES), 120)
        yield made


def test_a_hostile_tenant_loses_its_own_work_alone(stack: Stack) -> None:
    measurer = stack.workers["measure"].pid
    own = stack.folder / "own"
    own.mkdir()
    hostile = operators(stack.folder / "secret", own, measurer)
    with stack.client("hostile") as attacker, stack.client("honest") as user:
        attacks = {
            name: attacker.create(attacker.upload(model_of(hostile[name]), f"{name}.json"), shares=["cpu:1"], trials=1)
            for name in TWELVE
        }
        model = write_model(stack.folder / "small.onnx").read_bytes()
        honest = user.create(user.upload(model, "small.onnx"), shares=["cpu:1"], trials=8)
        done = user.finish(honest.name, 1200)
        ended = {name: attacker.finish(job.name, 1200) for name, job in attacks.items()}
        everything = pb.ListRecordsRequest(page_size=1000)
        of_user, of_attacker = (each.log.ListRecords(everything).records for each in (user, attacker))
    assert done.state == pb.JOB_STATE_DONE, done
    assert {each.status for each in of_user} == {"ok"}
    assert len([each for each in of_user if each.kind == "trial"]) == 8
    for role, worker in stack.workers.items():
        assert worker.poll() is None, role
        assert ESCAPED not in stack.log(role)
        assert TOLD not in stack.log(role)
        assert SECRET.decode() not in stack.log(role)
    assert not list(own.iterdir())
    found = {
        name: {each.status for each in of_attacker if job.name.endswith(each.job)} for name, job in attacks.items()
    }
    assert {name: "ok" in found[name] for name in TWELVE} == {name: name not in ENDED for name in TWELVE}
    assert all(pb.JobState.Name(job.state) in ("JOB_STATE_DONE", "JOB_STATE_FAILED") for job in ended.values())
