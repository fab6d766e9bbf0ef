"""`fractune tune` against a scripted server: what it prints, what it asks for, and what it refuses."""

import json
from pathlib import Path

import pytest

from fractune.cli import main
from fractune_core.errors import JobFailed, error_kinds
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import bundle_bytes, granted
from tests.support.processes.cli_process import only_line
from tests.support.processes.scripted_server import ScriptedServer

SPEC = pb.JobSpec(model="models/ab")
BEATS = ["--until-beats", "onnxruntime"]


def tune(server: ScriptedServer, model: Path, *more: str) -> int:
    out = str(model.parent / "out")
    return main(["tune", str(model), "--shares", "cpu:1,cpu:2", "--server", server.address, "--out-dir", out, *more])


def test_json_is_one_object_a_line_and_the_result_is_the_last(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(server, model, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {event["event"] for event in events} == {"job", "operator", "progress", "result"}
    result = events[-1]
    assert list(result) == [
        *("event", "job", "wall_s", "trials", "trials_shared", "trials_saved", "trials_per_s", "phases_s", "busy_s"),
        *("failures", "shares", "layout_transforms", "operators", "bundle", "skipped_shares", "checked"),
        *("answer", "not_compared", "gained"),
    ]
    assert result["trials"] == {"cpu:1": 8, "cpu:2": 8}
    assert result["failures"] == {"run_timeout": 1}
    assert list(result["phases_s"].items()) == [("ingesting", 1.0), ("tuning", 8.25), ("compiling", 3.0)]
    assert result["busy_s"] == {"build": 6.5, "measure": 0.01}
    assert result["shares"][0] == {
        "share": "cpu:1",
        "granted": json.loads(json.dumps(granted().to_json())),
        "untuned_s": 4e-3,
        "untuned_summed": False,
        "tuned_s": 2e-3,
        "timed_by": "jobs/j1",
        "timed_at": None,
        "roof": {"gflops": 20.0, "gb_per_s": 10.0, "cache_bytes": 1 << 25, "read_gb_per_s": 12.0},
        "launch_s": None,
        "launch_bound": None,
        "operators_s": 6e-3,
        "rest_s": -4e-3,
        "at_load": [],
        "served": {},
        "others_cores": 0.0,
        "disturbed": False,
    }
    assert result["shares"][1]["roof"] is None
    assert result["trials_saved"] == 4
    assert [operator["name"] for operator in result["operators"]] == ["fused_conv2d"]
    (operator,) = result["operators"]
    assert operator["best_s"] == {"cpu:1": 2e-3, "cpu:2": 1e-3}
    assert (operator["flops"], operator["io_bytes"]) == (2e7, 1 << 20)
    assert operator["gflops"] == pytest.approx({"cpu:1": 10.0, "cpu:2": 20.0})
    assert operator["roof_part"] == {"cpu:1": pytest.approx(0.5), "cpu:2": None}
    assert operator["memory_bound"] == {"cpu:1": False, "cpu:2": None}
    assert operator["model_part"] == pytest.approx({"cpu:1": 3.0, "cpu:2": 3.0})
    assert Path(result["bundle"]).read_bytes() == bundle_bytes()


def test_plain_lines_tell_states_and_notes_and_the_answer_comes_first_at_the_end(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(server, model) == 0
    said = capsys.readouterr().out
    assert "jobs/j1: queued" in said
    tuning = "jobs/j1: tuning, 2 of 8 new trials (256 requested), 2.0 trials/s, failed: run_timeout 1, about 12 s left"
    assert tuning in said
    assert said.count("note: waiting for a worker: role build") == 1
    _, _, end = said.partition("jobs/j1: done, 8 of 8 new trials (256 requested), failed: run_timeout 1\n")
    answer, why, *_, last_but_one, last = end.splitlines()
    assert answer == (
        "2.00 ms at cpu:1, 1.00 ms at cpu:2; use cpu:2: it is 2.0x as fast as cpu:1; "
        "whether more trials would pay is not known: too few were new"
    )
    assert why.startswith(f"not compared with ONNX Runtime: the job runs on {server.address}; 'fractune compete BUNDLE")
    assert last_but_one.startswith("8 of 8 new trials (256 requested), failed: run_timeout 1; took 12 s: ")
    assert last == f"bundle: {model.parent / 'out' / 'm.fractune'}"
    assert "untuned" not in end


def test_verbose_prints_what_show_prints_later(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(server, model, "--quiet", "--verbose") == 0
    tuned = capsys.readouterr().out
    assert main(["show", "j1", "--server", server.address]) == 0
    for said in (tuned, capsys.readouterr().out):
        assert "  by phase: ingesting 1.0 s, tuning 8.2 s, compiling 3.0 s\n" in said
        assert "  by kind of work, in parallel: build 6.5 s\n" in said
        assert "2.00x" in said
        assert "3.00x" in said
        assert "tuned at x run at" in said
        assert "where the time goes" in said
        assert "saved 4 trials: operators at 90 % of their roof are not searched further" in said
    server.script = server.script[:1]
    assert main(["show", "j1", "--server", server.address]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["queued", "jobs/j1 is queued"]


def test_all_options_reach_the_server(server: ScriptedServer, model: Path) -> None:
    options = ["--trials", "9", "--minutes", "1.5", "--round", "4", "--seed", "7", "--target", "llvm"]
    options += ["--only", "conv", "--input", "x=1,3,8,8", "--input", "a=b=2", "--priority", "high", "--quiet"]
    options += ["--namespace", "acme", "--fresh"]
    assert tune(server, model, *options) == 0
    (spec,) = server.specs
    assert (spec.trials, spec.minutes, spec.round_size, spec.seed) == (9, 1.5, 4, 7)
    assert (spec.target, spec.only, spec.priority) == ("llvm", "conv", 1)
    assert (spec.namespace, spec.fresh) == ("acme", True)
    assert {name: list(shape.dims) for name, shape in spec.inputs.items()} == {"x": [1, 3, 8, 8], "a=b": [2]}


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--trials", "-3"], 2, "--trials is -3"),
        (["--trials", "many"], 2, "--trials"),
        (["--round", "0"], 2, "--round is 0"),
        (["--extra-trials", "0"], 2, "--extra-trials is 0"),
        (["--trials", "9", "--extra-trials", "3"], 2, "give one of them"),
        (["--out", "x.fractune"], 2, "--out x.fractune and --out-dir"),
        (["--minutes", "0"], 2, "minutes is 0"),
        (["--minutes", "nan"], 2, "minutes is nan"),
        (["--rerank", "0"], 2, "rerank is 0"),
        (["--rerank", "2", "--extra-trials", "3"], 2, "searches nothing"),
        (["--fresh", "--rerank", "2"], 2, "rerank is 2, which reads the log"),
        (["--namespace", "a b"], 2, "--namespace 'a b'"),
        (["--shares", "gpu:1"], 2, "unknown mechanism 'gpu'"),
        (["--shares", "cpu:0"], 2, "'0' is not a size"),
        (["--shares", "cpu:1,cpu:1"], 2, "named twice"),
        (["--shares", ","], 2, "no share"),
        (["--input", "x"], 2, "NAME=1,3,224,224"),
        (["--input", "x=1,a"], 2, "is not a list of whole numbers"),
        (["--input", "x=0"], 2, "at least 1"),
        (["--input", "x=1", "--input", "x=2"], 2, "has a shape already"),
        (["--picture", "table.gif"], 2, ".svg or .png"),
        (["--state", "s"], 2, "exclude each other"),
        (["--out-dir", "/dev/null/x"], 7, "--out /dev/null/x/m.fractune"),
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
    assert says in only_line(capsys.readouterr().err)
    assert server.specs == []


def test_a_missing_model_is_told(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(server, tmp_path / "none.onnx") == 3
    assert "none.onnx: no such model file" in only_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--until-beats", "tflite"], 2, "--until-beats 'tflite' is unknown; write onnxruntime"),
        (["--min-gain", "5%"], 2, "--min-gain is 0.05 and needs --until-beats"),
        ([*BEATS, "--min-gain", "5 percent"], 2, "--min-gain '5 percent'"),
        ([*BEATS, "--min-gain", "100%"], 2, "--min-gain is 1.0"),
        ([*BEATS, "--minutes", "0"], 2, "minutes is 0"),
        ([*BEATS, "--extra-trials", "3"], 2, "leave --extra-trials and --rerank out"),
        ([*BEATS, "--rerank", "1"], 2, "leave --extra-trials and --rerank out"),
        ([*BEATS, "--trials", "-1"], 2, "trials is -1"),
        ([*BEATS, "--fresh"], 2, "--fresh: --until-beats tunes in steps"),
        ([*BEATS, "--server", "127.0.0.1:1"], 2, "leave the server out"),
        ([*BEATS, "--shares", "mps:25"], 2, "share 'mps:25': --until-beats compares on the CPU"),
        ([*BEATS, "--shares", "cpu:9999"], 4, "share 'cpu:9999' is larger than this machine"),
    ],
)
def test_a_goal_that_cannot_be_meant_starts_nothing(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, says: str
) -> None:
    state = [] if "--server" in options else ["--state", str(tmp_path / "state")]
    assert main(["tune", str(model), "--shares", "cpu:1", "--out-dir", str(tmp_path), *state, *options]) == code
    assert says in only_line(capsys.readouterr().err)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("error", ["BadModel", "JobFailed", ""])
def test_a_failed_job_is_told_as_what_ended_it(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str], error: str
) -> None:
    failed = pb.Job(
        name="jobs/j1", spec=SPEC, revision=9, state=pb.JOB_STATE_FAILED, error=error, message="no operator"
    )
    server.script = [server.script[0], failed]
    assert tune(server, model, "--quiet") == error_kinds().get(error, JobFailed).exit_code
    assert "no operator" in only_line(capsys.readouterr().err)


def test_a_cancelled_job_has_the_exit_code_of_a_failed_one(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.script = [pb.Job(name="jobs/j1", spec=SPEC, state=pb.JOB_STATE_CANCELLED)]
    assert tune(server, model, "--quiet") == 6
    assert "jobs/j1 was cancelled" in only_line(capsys.readouterr().err)


def test_a_detached_job_is_named_and_nothing_is_written(
    server: ScriptedServer, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["tune", str(model), "--shares", "cpu:1", "--trials", "7", "--server", server.address, "--detach"]
    assert main(asked) == 0
    assert capsys.readouterr().out == "jobs/j1\n"
    assert main([*asked, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"event": "detached", "job": "jobs/j1", "server": server.address, "skipped_shares": {}}
    assert [spec.trials for spec in server.specs] == [7, 7]
    of_end = [["--out", "."], ["--out-dir", "."], ["--force"], ["--picture", "a.svg"], ["--on-done", "true"]]
    for option in (*of_end, ["--min-gain", "5%"], BEATS):
        assert main([*asked, *option]) == 2
        assert f"{option[0]} and --detach exclude each other" in only_line(capsys.readouterr().err)
    assert len(server.specs) == 2
