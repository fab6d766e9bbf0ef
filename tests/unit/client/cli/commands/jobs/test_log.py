"""`fractune log` and `fractune match` against a scripted server."""

import json
from pathlib import Path

import pytest

from fractune.cli import main
from fractune.server import rpc
from fractune_core.codec.messages import to_proto
from fractune_core.errors import BadBundle
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import record
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
