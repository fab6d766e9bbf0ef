"""`fractune jobs`, `watch`, `cancel`, `workers`, `bundle` of a job, `log` and `match`, against a scripted server."""

import json
import signal
from contextlib import closing
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.cli.commands import jobs
from fractune.cli.ending import LeavableView, Stopped
from fractune.features.client import Client
from fractune.server import rpc
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadBundle
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import bundle_bytes, record
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer


def test_the_log_is_shown_and_filtered(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(3)]
    at = ["--server", server.address]
    filters = ["--model", "m", "--operator", "conv", "--share", "cpu:1", "--device", "rocket", "--kind", "trial"]
    filters += ["--namespace", "acme"]
    assert main(["log", "show", *filters, "--job", "j1", "--json", *at]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    wanted = pb.RecordFilter(model="m", operator="conv", share="cpu:1", device="rocket", kind="trial", job="jobs/j1")
    wanted.namespace = "acme"
    assert server.filters[-1] == wanted
    assert main(["log", "show", "--limit", "2", *at]) == 0
    assert "2 of 3 records" in capsys.readouterr().out
    assert main(["log", "prune", "--keep-best", "1", "--dry-run", *at]) == 0
    assert capsys.readouterr().out == "2 records would be deleted, 1 kept\n"
    assert main(["log", "dead", *at]) == 0
    said = capsys.readouterr().out
    assert said.startswith("2001-09-09T01:46:40+00:00  fractune:results:tune-1 7-0  KeyError('kind')\n  {}\n")
    assert said.endswith("1 of 3 unreadable results\n")
    assert main(["log", "dead", "--replay", *at]) == 0
    assert capsys.readouterr().out == "3 results are read again\n"
    assert main(["log", "show", "--kind", "best", *at]) == 2
    assert "write trial or validation" in only_line(capsys.readouterr().err)


def test_a_large_log_is_imported_by_several_calls_and_workloads_come_first(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(20)]
    path, at = tmp_path / "log.jsonl", ["--server", server.address]
    assert main(["log", "export", str(path), *at]) == 0
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[1:], lines[0]]), encoding="utf-8")
    monkeypatch.setattr(rpc, "IMPORT_PART_BYTES", 5 * server.records[0].ByteSize())
    capsys.readouterr()
    assert main(["log", "import", str(path), *at]) == 0
    assert [part.record for part in server.imported[1:]] == server.records
    assert server.imported[0].WhichOneof("part") == "workload"
    assert len(server.imports) == 5
    assert "20 records" in capsys.readouterr().out


def test_match_says_which_record_and_why(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["match", str(model), "--share", "cpu:1", "--server", server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "no published record"
    assert main(["match", str(model), "--share", "cpu:1", "--server", server.address]) == 0
    assert "no published record" in capsys.readouterr().out


def test_a_csv_cannot_be_imported_and_the_line_names_the_format_that_can(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.records = [to_proto(record("r1"), pb.Record)]
    path, at = tmp_path / "log.csv", ["--server", server.address]
    assert main(["log", "export", str(path), "--format", "csv", *at]) == 0
    capsys.readouterr()
    assert main(["log", "import", str(path), *at]) == 2
    line = only_line(capsys.readouterr().err)
    assert line.endswith("log.csv is a CSV, which cannot be imported; export with --format jsonl")


def test_a_torn_bundle_is_named_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = tmp_path / "m.fractune"
    torn.write_bytes(b"PK torn")
    assert main(["match", str(torn)]) == BadBundle.exit_code
    assert "m.fractune: not a fractune bundle, or torn" in capsys.readouterr().err


HOSTILE = "[/b, 64] [batch, 64] \x1b]0;owned\x07"
SHOWN = "[/b, 64] [batch, 64] \\x1b]0;owned\\x07"


def test_names_and_messages_are_shown_as_they_are(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    """An error quotes a model's dimensions, which may look like markup of the library that draws tables."""
    server.script[-1].model_display_name = HOSTILE
    server.script[-1].message = HOSTILE
    server.workers = [pb.Worker(name="workers/w1", role="build", host=HOSTILE)]
    assert main(["jobs", "--server", server.address]) == 0
    assert "".join(capsys.readouterr().out.split()).count("".join(SHOWN.split())) == 2
    assert main(["workers", "--server", server.address]) == 0
    assert SHOWN in capsys.readouterr().out


def test_a_watch_that_is_stopped_says_that_the_job_goes_on(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LeavableView, "show", stop)
    assert main(["watch", "j1", "--server", server.address]) == 130
    assert capsys.readouterr().err == "fractune: stopped; jobs/j1 goes on\n"
    assert server.cancelled == []


@pytest.mark.parametrize(
    ("stop", "code"), [(KeyboardInterrupt(), 130), (Stopped(signal.SIGTERM), 143)], ids=["SIGINT", "SIGTERM"]
)
def test_a_job_that_a_signal_cancels_is_named_in_one_line(
    server: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stop: BaseException,
    code: int,
) -> None:
    def raise_stop(*_: object) -> None:
        raise stop

    (tmp_path / "m.onnx").write_bytes(b"a model")
    monkeypatch.setattr(LeavableView, "show", raise_stop)
    tune = ["tune", str(tmp_path / "m.onnx"), "--shares", "cpu:1", "--out-dir", str(tmp_path / "out")]
    assert main([*tune, "--server", server.address]) == code
    assert capsys.readouterr().err == "fractune: stopped; jobs/j1 is cancelled\n"
    assert server.cancelled == ["jobs/j1"]


def test_workers_without_a_stack_say_so(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["workers", "--server", server.address]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(jobs, "session", lambda *_, **__: closing(Client(server.address)))
    assert main(["workers", "--state", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith(f"no stack is running in {tmp_path}: this command starts ")


def test_jobs_watch_cancel_and_bundle(
    server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    at = ["--server", server.address]
    assert main(["jobs", "--json", *at]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [job["state"] for job in listed] == ["queued", "tuning", "tuning", "done"]
    assert main(["jobs", *at]) == 0
    assert "cpu:1, cpu:2" in capsys.readouterr().out
    assert main(["watch", "j1", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bundle"] == "bundles/b1"
    assert main(["watch", "j1", "--json", "--out", "fetched.fractune", *at]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bundle"] == str(tmp_path / "fetched.fractune")
    assert (tmp_path / "fetched.fractune").read_bytes() == bundle_bytes()
    assert main(["cancel", "j1", *at]) == 0
    assert capsys.readouterr().out == "jobs/j1 is cancelled\n"
    assert server.cancelled == ["jobs/j1"]
    assert main(["bundle", "j1", *at]) == 0
    assert (tmp_path / "m.fractune").read_bytes() == bundle_bytes()
    capsys.readouterr()
    assert main(["bundle", "nobody", *at]) == 9
    assert "no job 'jobs/nobody'" in only_line(capsys.readouterr().err)
    assert main(["workers", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["role"] == "build"
    assert main(["workers", *at]) == 0
    assert "workers/w1" in capsys.readouterr().out


def test_a_reason_stands_under_the_table_of_jobs_and_widens_no_row(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script[-1].message = reason = "no operator's name contains 'zzz'; " + "m.onnx " * 100
    assert main(["jobs", "--server", server.address]) == 0
    *rows, last = capsys.readouterr().out.splitlines()
    assert last.endswith(reason)
    assert max(map(len, rows)) < 150
