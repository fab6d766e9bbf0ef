"""The command line against a scripted server: what it prints, and how it fails."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from rich.console import Console

from fractune.api.progress import LineView, status_text
from fractune.cli import main
from fractune.cli.commands.jobs import job_json
from fractune.cli.options import parse_inputs
from fractune.cli.progress import JsonView, TableView, job_table, progress_json
from fractune.from_proto import job_status
from fractune.goals import Goal, GoalStep, PeerTiming
from fractune.reports.result import doubts, latency_table, print_result, result_json
from fractune.reports.text import counts_text, ratio_text, span_text, time_text
from fractune_core.convert import record_to_proto
from fractune_core.errors import BadRequest, JobFailed, error_kinds
from fractune_core.files.bundles import Bundle
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import bundle_bytes, granted, job_script, record
from tests.support.processes.scripted_server import ScriptedServer, serving

BEATS = ["--until-beats", "onnxruntime"]


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(ScriptedServer()) as running:
        running.script = job_script()
        running.bundles["bundles/b1"] = bundle_bytes()
        yield running


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a model")
    return path


def tune(server: ScriptedServer, model: Path, *more: str) -> int:
    out = str(model.parent / "out")
    return main(["tune", str(model), "--shares", "cpu:1,cpu:2", "--server", server.address, "--out", out, *more])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("fractune: ")
    return lines[0]


def test_json_is_one_object_a_line_and_the_result_is_the_last(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(server, model, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {event["event"] for event in events} == {"job", "operator", "progress", "result"}
    result = events[-1]
    assert list(result) == [
        *("event", "job", "wall_s", "trials", "trials_shared", "trials_saved", "trials_per_s", "phases_s", "busy_s"),
        *("failures", "shares", "layout_transforms", "operators", "bundle"),
    ]
    assert result["trials"] == {"cpu:1": 8, "cpu:2": 8}
    assert result["failures"] == {"run_timeout": 1}
    assert list(result["phases_s"].items()) == [("ingesting", 1.0), ("tuning", 8.25), ("compiling", 3.0)]
    assert result["busy_s"] == {"build": 6.5, "measure": 0.01}
    assert result["shares"][0] == {
        "share": "cpu:1",
        "granted": granted().to_json(),
        "untuned_s": 4e-3,
        "tuned_s": 2e-3,
        "timed_by": "jobs/j1",
        "timed_at": None,
        "roof": {"gflops": 20.0, "gb_per_s": 10.0, "cache_bytes": 1 << 25},
        "operators_s": 6e-3,
        "rest_s": -4e-3,
    }
    assert result["shares"][1]["roof"] is None
    assert result["trials_saved"] == 4
    assert [operator["name"] for operator in result["operators"]] == ["fused_conv2d"]
    (operator,) = result["operators"]
    assert operator["best_s"] == {"cpu:1": 2e-3, "cpu:2": 1e-3}
    assert (operator["flops"], operator["io_bytes"]) == (2e7, 1 << 20)
    assert operator["gflops"] == pytest.approx({"cpu:1": 10.0, "cpu:2": 20.0})
    assert operator["roof_part"] == {"cpu:1": pytest.approx(0.5), "cpu:2": None}
    assert operator["model_part"] == pytest.approx({"cpu:1": 3.0, "cpu:2": 3.0})
    assert Path(result["bundle"]).read_bytes() == bundle_bytes()


def test_plain_lines_tell_states_notes_and_the_closing_tables(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(server, model) == 0
    said = capsys.readouterr().out
    assert "jobs/j1: queued" in said
    assert "jobs/j1: tuning, 2/8 trials, 2.0 trials/s, 3 s left, failed: run_timeout 1" in said
    assert said.count("note: waiting for a worker: role build") == 1
    assert "  by phase: ingesting 1.0 s, tuning 8.2 s, compiling 3.0 s\n" in said
    assert "  by what workers did, side by side: build 6.5 s\n" in said
    assert "2.00x" in said
    assert "3.00x" in said
    assert "tuned at x run at" in said
    assert "where the time goes" in said
    assert "saved 4 trials: operators at 90 % of their roof are not searched further" in said
    assert f"bundle: {model.parent / 'out' / 'm.fractune'}" in said


def test_quiet_prints_only_the_result(server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(server, model, "--quiet") == 0
    said = capsys.readouterr().out
    assert "jobs/j1: " not in said
    assert "bundle: " in said


def test_all_options_reach_the_server(server: ScriptedServer, model: Path) -> None:
    options = ["--trials", "9", "--minutes", "1.5", "--more", "3", "--round", "4", "--seed", "7", "--target", "llvm"]
    options += ["--only", "conv", "--input", "x=1,3,8,8", "--input", "a=b=2", "--priority", "high", "--quiet"]
    options += ["--webhook", "https://ci.example.com/x"]
    options += ["--scope", "acme", "--fresh"]
    assert tune(server, model, *options) == 0
    (spec,) = server.specs
    assert (spec.trials, spec.minutes, spec.more, spec.round_size, spec.seed) == (9, 1.5, 3, 4, 7)
    assert (spec.target, spec.only, spec.priority) == ("llvm", "conv", 1)
    assert spec.webhook == "https://ci.example.com/x"
    assert (spec.scope, spec.fresh) == ("acme", True)
    assert {name: list(shape.dims) for name, shape in spec.inputs.items()} == {"x": [1, 3, 8, 8], "a=b": [2]}


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--trials", "-3"], 2, "trials is -3"),
        (["--trials", "many"], 2, "--trials"),
        (["--round", "0"], 2, "round_size is 0"),
        (["--more", "0"], 2, "--more is 0"),
        (["--minutes", "0"], 2, "--minutes is 0"),
        (["--minutes", "nan"], 2, "--minutes is nan"),
        (["--rerank", "0"], 2, "--rerank is 0"),
        (["--rerank", "2", "--more", "3"], 2, "searches nothing"),
        (["--fresh", "--rerank", "2"], 2, "rerank is 2, which reads the log"),
        (["--scope", "a b"], 2, "scope 'a b'"),
        (["--shares", "gpu:1"], 2, "unknown mechanism 'gpu'"),
        (["--shares", "cpu:0"], 2, "'0' is no size"),
        (["--shares", "cpu:1,cpu:1"], 2, "named twice"),
        (["--shares", ","], 2, "no share"),
        (["--input", "x"], 2, "NAME=1,3,224,224"),
        (["--input", "x=1,a"], 2, "no list of whole numbers"),
        (["--input", "x=0"], 2, "at least 1"),
        (["--input", "x=1", "--input", "x=2"], 2, "twice"),
        (["--picture", "table.gif"], 2, ".svg or .png"),
        (["--state", "s"], 2, "exclude each other"),
        (["--out", "/dev/null/x"], 7, "--out /dev/null/x"),
        (["--no-such-option"], 2, "--no-such-option"),
    ],
)
def test_a_wrong_option_is_one_line_and_its_exit_code(
    server: ScriptedServer,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    code: int,
    says: str,
) -> None:
    assert tune(server, model, *options) == code
    assert says in error_line(capsys)
    assert server.specs == []


def test_a_missing_model_is_told(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(server, tmp_path / "none.onnx") == 3
    assert "none.onnx: no such model file" in error_line(capsys)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--until-beats", "tflite"], 2, "until_beats 'tflite' is unknown; write onnxruntime"),
        (["--by", "5%"], 2, "by is 0.05 and goes with until_beats"),
        ([*BEATS, "--by", "5 percent"], 2, "--by '5 percent'"),
        ([*BEATS, "--by", "100%"], 2, "by is 1.0"),
        ([*BEATS, "--minutes", "0"], 2, "--minutes is 0"),
        ([*BEATS, "--more", "3"], 2, "leave more and rerank out"),
        ([*BEATS, "--rerank", "1"], 2, "leave more and rerank out"),
        ([*BEATS, "--trials", "-1"], 2, "trials is -1"),
        ([*BEATS, "--fresh"], 2, "fresh: until_beats tunes in steps"),
        ([*BEATS, "--server", "127.0.0.1:1"], 2, "leave the server out"),
        ([*BEATS, "--shares", "mps:25"], 2, "share 'mps:25': until_beats compares on the CPU"),
        ([*BEATS, "--shares", "cpu:9999"], 4, "share 'cpu:9999' is larger than this machine"),
    ],
)
def test_a_goal_that_cannot_be_meant_starts_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, says: str
) -> None:
    state = [] if "--server" in options else ["--state", str(tmp_path / "state")]
    assert main(["tune", str(model), "--shares", "cpu:1", "--out", str(tmp_path), *state, *options]) == code
    assert says in error_line(capsys)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("name", sorted(error_kinds()))
def test_every_error_has_its_exit_code(server: ScriptedServer, capsys: pytest.CaptureFixture[str], name: str) -> None:
    kind = error_kinds()[name]
    server.fail_with = kind("what is wrong\nand what to do")
    assert main(["workers", "--server", server.address]) == kind.exit_code
    assert "what is wrong and what to do" in error_line(capsys)


@pytest.mark.parametrize("error", ["BadModel", "JobFailed", ""])
def test_a_failed_job_is_told_as_what_ended_it(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    failed = pb.Job(name="jobs/j1", revision=9, state=pb.JOB_STATE_FAILED, error=error, message="no operator")
    server.script = [server.script[0], failed]
    assert tune(server, model, "--quiet") == error_kinds().get(error, JobFailed).exit_code
    assert "no operator" in error_line(capsys)


def test_a_cancelled_job_has_the_exit_code_of_a_failed_one(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = [pb.Job(name="jobs/j1", state=pb.JOB_STATE_CANCELLED)]
    assert tune(server, model, "--quiet") == 6
    assert "jobs/j1 was cancelled" in error_line(capsys)


def test_an_unexpected_error_is_one_line_with_the_way_to_its_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.cli.commands.jobs.session", None)  # a bug: calling it is a TypeError
    assert main(["jobs"]) == 1
    line = error_line(capsys)
    assert "unexpected error: TypeError" in line
    assert "FRACTUNE_DEBUG=1" in line
    monkeypatch.setenv("FRACTUNE_DEBUG", "1")
    assert main(["jobs"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_a_detached_job_is_named_and_nothing_is_written(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tune", str(model), "--shares", "cpu:1", "--trials", "7", "--server", server.address, "--detach"]
    assert main(asked) == 0
    assert capsys.readouterr().out == "jobs/j1\n"
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"event": "detached", "job": "jobs/j1", "server": server.address}
    assert [spec.trials for spec in server.specs] == [7, 7]
    for option in (["--out", "."], ["--picture", "a.svg"], ["--on-done", "true"], BEATS):
        assert main([*asked, *option]) == 2
        assert f"{option[0]} and --detach exclude each other" in error_line(capsys)
    assert len(server.specs) == 2


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
    assert "no job 'jobs/nobody'" in error_line(capsys)
    assert main(["workers", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["role"] == "build"
    assert main(["workers", *at]) == 0
    assert "workers/w1" in capsys.readouterr().out


def test_a_bundle_is_signed_and_a_key_that_is_none_is_told_before_anything_is_written(
    server: ScriptedServer, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, key = tmp_path / "signed.fractune", tmp_path / "key.pem"
    at = ["--server", server.address, "--out", str(out), "--sign", str(key)]
    for of in (["j1"], [str(model), "--shares", "cpu:1"]):
        assert main(["bundle", *of, *at]) == 2
        assert "key.pem: cannot be read" in error_line(capsys)
        key.write_text("no key")
        assert main(["bundle", *of, *at]) == 2
        assert "no private key" in error_line(capsys)
        key.unlink()
    assert server.specs == []
    assert not out.exists()
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    key.write_bytes(ed25519.Ed25519PrivateKey.generate().private_bytes(*pem))
    assert main(["bundle", "j1", *at]) == 0
    assert Bundle(out).signature is not None


def test_the_log_is_shown_and_filtered(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.records = [record_to_proto(record(f"r{number}")) for number in range(3)]
    at = ["--server", server.address]
    filters = ["--model", "m", "--operator", "conv", "--share", "cpu:1", "--device", "rocket", "--kind", "trial"]
    filters += ["--scope", "acme"]
    assert main(["log", "show", *filters, "--job", "j1", "--json", *at]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    wanted = pb.RecordFilter(model="m", operator="conv", share="cpu:1", device="rocket", kind="trial", job="jobs/j1")
    wanted.scope = "acme"
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
    assert capsys.readouterr().out == "3 results are read once more\n"
    assert main(["log", "show", "--kind", "best", *at]) == 2
    assert "write trial or validation" in error_line(capsys)


def test_an_exported_log_comes_back_as_it_was(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.records = [record_to_proto(record("r1", max_error=0.5)), record_to_proto(record("r2", run_secs=()))]
    path, at = tmp_path / "log.jsonl", ["--server", server.address]
    assert main(["log", "export", str(path), *at]) == 0
    assert main(["log", "import", str(path), *at]) == 0
    assert [part.record for part in server.imported[1:]] == server.records
    assert server.imported[0].workload == pb.Workload(workload_hash="0123", json="[]")
    capsys.readouterr()
    assert main(["log", "export", str(path), *at]) == 2
    assert "--force" in error_line(capsys)
    assert main(["log", "export", str(path), "--force", "--format", "csv", "--json", *at]) == 0
    assert json.loads(capsys.readouterr().out)["records"] == 2
    assert len(path.read_text().splitlines()) == 3


def test_match_says_which_record_and_why(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["match", str(model), "--share", "cpu:1", "--server", server.address, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reason"] == "no published record"
    assert main(["match", str(model), "--share", "cpu:1", "--server", server.address]) == 0
    assert "no published record" in capsys.readouterr().out


def test_the_live_table_shows_best_and_gain_per_share() -> None:
    job = job_script()[2]
    job.operators[0].untuned_s["cpu:1"] = 3e-3
    console = Console(width=140, record=True, file=sys.stderr)
    console.print(job_table(job_status(job)))
    shown = console.export_text()
    for expected in ("fused_conv2d", "best cpu:1", "2.00 ms", "1.50x", "8/8 trials"):
        assert expected in shown
    assert "softmax" not in shown


def test_what_other_jobs_asked_for_is_shown_as_shared(capsys: pytest.CaptureFixture[str]) -> None:
    script = job_script()
    for job in script:
        job.progress.candidates_shared = 3
    tuning, done = job_status(script[1]), job_status(script[-1])
    assert status_text(tuning).startswith("tuning, 5/8 trials, 3 shared, 2.0 trials/s")
    assert tuning.time_left_s == 1.5
    assert job_json(tuning)["candidates_shared"] == progress_json(tuning)["candidates_shared"] == 3
    assert result_json(done, "")["trials_shared"] == 3
    print_result(done, "")
    assert "shared: 3 more trials, which other jobs asked for\n" in capsys.readouterr().out


def test_a_goal_is_shown_in_the_live_table_as_lines_and_as_events(capsys: pytest.CaptureFixture[str]) -> None:
    timing = PeerTiming("cpu:1", "cpu:1", (2e-3,) * 6, (1e-3,) * 6, 1e-6, outputs_agree=True)
    known = Goal("onnxruntime", "1.31", 0.0, {"cpu:1": 1e-3})
    timed = replace(known, steps=(GoalStep(40.0, 7, (timing,)),))
    console = Console(width=140, record=True, file=sys.stderr, force_terminal=True)
    for view in (TableView(console), LineView(), JsonView()):
        with view:
            view.show_goal(known)
            view.show(job_status(job_script()[2]))
            view.show_goal(timed)
    lines = ("goal  onnxruntime 1.31: cpu:1 1.00 ms", "7 trials, 40 s, ours / theirs: cpu:1 2.00 (2.00 .. 2.00)")
    said, shown = capsys.readouterr().out, console.export_text()
    for line in lines:
        assert line in said
        assert line in shown
    assert "fused_conv2d" in shown
    goals = [json.loads(line) for line in said.splitlines() if line.startswith('{"event": "goal"')]
    assert [len(goal["steps"]) for goal in goals] == [0, 1]


def test_time_left_obeys_the_minutes() -> None:
    job = job_script()[1]
    assert job_status(job).time_left_s == 3.0
    job.spec.minutes = 0.05
    assert job_status(job).time_left_s == pytest.approx(1.0)
    assert job_status(job_script()[0]).time_left_s is None


@pytest.mark.parametrize(
    ("secs", "text"),
    [
        (None, "-"),
        (0.0, "-"),
        (float("inf"), "-"),
        (1.234e-5, "12.3 us"),
        (4.5e-3, "4.50 ms"),
        (0.01, "10.0 ms"),
        (0.27, "270 ms"),
        (0.9996, "1000 ms"),
        (2.0, "2.00 s"),
    ],
)
def test_times_are_written_with_a_fitting_unit(secs: float | None, text: str) -> None:
    assert time_text(secs) == text


def test_outputs_that_are_far_from_the_untuned_ones_are_pointed_out() -> None:
    job = job_script()[-1]
    assert doubts(job_status(job)) == []
    job.result.shares[1].max_error["cpu:2"] = 1.4e-2
    (line,) = doubts(job_status(job))
    assert line.startswith("note: at cpu:2 the outputs differ from the untuned model's by 1.4e-02")


def test_latencies_that_an_earlier_job_measured_are_called_so() -> None:
    job = job_script()[-1]
    assert latency_table(job_status(job)).notes == ()
    for share in job.result.shares:
        share.earlier_job = "jobs/j0"
        share.time.FromSeconds(1_700_000_000)
    (line,) = latency_table(job_status(job)).notes
    assert "at cpu:1, cpu:2 are from jobs/j0, which timed this very bundle on 2023-11-14 22:13 UTC" in line
    told = result_json(job_status(job), "b")["shares"]
    assert [(each["timed_by"], each["timed_at"]) for each in told] == [("jobs/j0", 1_700_000_000.0)] * 2


def test_spans_ratios_and_counts() -> None:
    assert [span_text(42.4), span_text(185)] == ["42 s", "3 min 05 s"]
    assert [ratio_text(3.0, 2.0), ratio_text(None, 2.0), ratio_text(1.0, 0.0)] == ["1.50x", "-", "-"]
    assert [counts_text({"b": 2, "a": 1}), counts_text({})] == ["a 1, b 2", "none"]


def test_input_shapes_are_read() -> None:
    assert parse_inputs(["x=1,3", "scalar="]) == {"x": [1, 3], "scalar": []}
    with pytest.raises(BadRequest):
        parse_inputs(["=1"])
