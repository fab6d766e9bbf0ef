"""The audit of a real server: each call has its line, without content, and no call fails for want of one."""

import contextlib
import getpass
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from fractune_core.access import Quotas, Reach, Scope
from fractune_core.errors import NotFound
from fractune_core.pb import fractune_pb2 as pb
from fractune_server.admin import Admin, back_up, note_audit
from fractune_server.authenticator import BURST
from fractune_server.instruments import Instruments
from fractune_server.services import interceptors
from fractune_server.services.interceptors import AuditFile
from tests.processes.test_access import client_credentials
from tests.support.certificates import Authority
from tests.support.processes.fleet_simulated import simulated_fleet
from tests.support.processes.redis_process import running_redis
from tests.support.processes.server_process import Client, model_bytes, running_server

CONTENT = "a_secret_operator"


@contextlib.contextmanager
def audited(folder: Path, file: Path, **options: Any) -> Iterator[tuple[str, Authority]]:
    authority = Authority.make(folder / "authority")
    pair = authority.issue("server", "localhost", "127.0.0.1")
    tls = {"cert": str(pair.cert), "key": str(pair.key)}
    with (
        running_redis() as url,
        running_server(url, folder / "state", tls=tls, audit=str(file), **options) as server,
        simulated_fleet(url),
    ):
        yield server.address, authority


def test_each_call_has_a_line_that_says_who_and_what_and_how_it_ended(tmp_path: Path) -> None:
    file = tmp_path / "audit"
    with audited(tmp_path, file) as (address, authority):
        submit, read = (
            Admin(tmp_path / "state").create_token(name, scope, None, Quotas())
            for name, scope in (("ci", Scope.SUBMIT), ('"looks\n', Scope.READ))
        )
        with Client(address, client_credentials(authority, submit)) as client:
            model = client.upload(model_bytes((CONTENT, 1)), f"{CONTENT}.onnx")
            job = client.create(model).name
        with Client(address, client_credentials(authority, read)) as client:
            client.job(job)
            with pytest.raises(grpc.RpcError):
                client.jobs.CancelJob(pb.CancelJobRequest(name=job))
            with pytest.raises(grpc.RpcError):
                client.job("jobs/none")
        with Client(address, client_credentials(authority, "guess")) as client:
            for _ in range(2 * BURST):
                with pytest.raises(grpc.RpcError):
                    client.job(job)
    text = file.read_text()
    lines = [line for line in map(json.loads, text.splitlines()) if not line["call"].startswith("admin/")]
    found = [(each["call"], each["token"], each["tenant"], each["object"], each["result"]) for each in lines]
    looks = '"looks\n'
    assert found[:6] == [
        ("ModelService/UploadModel", "ci", "default", model, "OK"),
        ("JobService/CreateJob", "ci", "default", job, "OK"),
        ("JobService/GetJob", looks, "default", job, "OK"),
        ("JobService/CancelJob", looks, "default", "", "PermissionDenied"),
        ("JobService/GetJob", looks, "default", "jobs/none", "NotFound"),
        ("JobService/GetJob", "", "", "", "Unauthenticated"),
    ]
    assert len(found) <= 6 + BURST, "a stranger's lines push no others out"
    assert {each["address"] for each in lines} == {"127.0.0.1"}
    assert lines[0]["token_id"] == submit.token_id
    assert CONTENT not in text
    assert submit.secret not in text
    assert file.stat().st_mode & 0o077 == 0


def test_an_operators_commands_have_lines_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server knows of none of them. A later one without an audit ends the lines."""
    file, admin = tmp_path / "audit", Admin(tmp_path / "state")
    with audited(tmp_path, file):
        admin.create_tenant("a", Quotas())
        token = admin.create_token("ci", Scope.READ, None, Quotas(), reach=Reach("a"))
        admin.revoke_token(token.token_id)
        with pytest.raises(NotFound):
            admin.remove_tenant("b")
        back_up(tmp_path / "state", tmp_path / "copy")
    lines = list(map(json.loads, file.read_text().splitlines()))
    assert [(each["call"], each["tenant"], each["object"], each["result"]) for each in lines] == [
        ("admin/tenant create", "a", "", "OK"),
        ("admin/token create", "a", token.token_id, "OK"),
        ("admin/token revoke", "", token.token_id, "OK"),
        ("admin/tenant remove", "b", "", "NotFound"),
        ("admin/backup", "", str(tmp_path / "copy"), "OK"),
    ]
    assert {each["address"] for each in lines} == {f"user:{getpass.getuser()}"}
    assert token.secret not in file.read_text()
    note_audit(tmp_path / "state", None)
    admin.list_tokens()
    assert len(file.read_text().splitlines()) == len(lines)
    (tmp_path / "state" / "audit").mkdir()  # nothing there says where the file is
    assert admin.revoke_token(token.token_id) is False
    assert "/state/audit lacks this command (Is a directory)" in capsys.readouterr().err


def test_a_line_that_cannot_be_written_fails_no_call(tmp_path: Path) -> None:
    with audited(tmp_path, Path("/dev/full"), metrics="127.0.0.1:0") as (address, authority):
        token = Admin(tmp_path / "state").create_token("ci", Scope.ADMIN, None, Quotas())
        with Client(address, client_credentials(authority, token)) as client:
            for _ in range(3):
                assert not client.jobs.ListJobs(pb.ListJobsRequest()).jobs
        said = next(tmp_path.glob("server-*/stderr")).read_text()
        assert said.count("the audit /dev/full lacks calls: it cannot be written") == 1
        (url,) = (line.split()[-1] for line in said.splitlines() if "metrics at " in line)
        with urllib.request.urlopen(url) as answer:  # noqa: S310  the server's own port
            assert b"fractune_audit_failures_total 3.0" in answer.read()


def test_its_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interceptors, "FILE_BYTES", 1000)
    file = AuditFile(tmp_path / "audit", Instruments())
    for number in range(1000):
        file.write({"number": number})
    file.close()
    kept = list(tmp_path.iterdir())
    assert len(kept) == interceptors.FILES
    assert max(each.stat().st_size for each in kept) <= 1000
    assert '"number": 999' in (tmp_path / "audit").read_text()
