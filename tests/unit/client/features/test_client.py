"""The Python API against a scripted server: jobs, their results, the log, and what is raised."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import onnx
import pytest

import fractune
from fractune import JobState
from fractune.cli import main
from fractune.errors import (
    BadModel,
    BadRequest,
    JobCancelled,
    JobFailed,
    NotFound,
    RedisGone,
    ShareUnavailable,
    StateUnusable,
)
from fractune.server.job_status import operator_match
from fractune.sessions.progress import LineView, View, choose_view
from fractune_core.codec.messages import from_proto, to_proto
from fractune_core.files.bundles import Bundle
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_results import results
from tests.support.client_samples import DEVICE, bundle_bytes, granted, job_script, record
from tests.support.processes.cli_process import write_model
from tests.support.processes.scripted_server import ScriptedServer, abort

SPEC = pb.JobSpec(model="models/ab")
SHARES = ["cpu:1", "cpu:2"]


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[fractune.Client]:
    with fractune.connect(server.address) as connected:
        yield connected


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model file, in the folder that is the current one."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"a model")
    return path


def test_a_job_is_submitted_with_the_options_of_the_command(
    client: fractune.Client, server: ScriptedServer, model: Path
) -> None:
    options: dict[str, Any] = {"trials": 9, "minutes": 1.5, "round_size": 4, "seed": 7, "target": "llvm"}
    job = client.submit(model, SHARES, **options, only="conv", inputs={"x": (1, 3)}, priority="high")
    assert job.name == "jobs/j1"
    (spec,) = server.specs
    assert (spec.trials, spec.minutes, spec.round_size, spec.seed) == (9, 1.5, 4, 7)
    assert (spec.target, spec.only, spec.priority, list(spec.shares)) == ("llvm", "conv", 1, SHARES)
    assert {name: list(shape.dims) for name, shape in spec.inputs.items()} == {"x": [1, 3]}
    assert server.models[spec.model] == b"a model"
    client.submit(str(model), "cpu:1,cpu:2", rerank=2)
    assert (server.specs[1].rerank, list(server.specs[1].shares)) == (2, SHARES)
    client.submit(str(model), "cpu:1,cpu:2", extra_trials=3)
    assert server.specs[2].more == 3


def test_a_model_in_memory_is_sent_as_its_file(client: fractune.Client, server: ScriptedServer, tmp_path: Path) -> None:
    proto = onnx.load(write_model(tmp_path / "m.onnx"))
    client.submit(proto, SHARES)
    assert server.models[server.specs[0].model] == proto.SerializeToString()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trials": -1}, "trials is -1"),
        ({"extra_trials": 0}, "extra_trials is 0"),
        ({"trials": 9, "extra_trials": 3}, "which includes the log, and extra_trials is"),
        ({"minutes": float("nan")}, "minutes is nan"),
        ({"rerank": -1}, "rerank is -1"),
        ({"rerank": 1, "extra_trials": 2}, "searches nothing"),
        ({"shares": []}, "no share"),
        ({"shares": ["gpu:1"]}, "unknown mechanism 'gpu'"),
        ({"shares": ["cpu:1", "mps:25"]}, "a job is for one processor"),
        ({"inputs": {"x": [1, 0]}}, r"'x' has the shape \[1, 0\]"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_sent(
    client: fractune.Client, server: ScriptedServer, model: Path, options: dict[str, Any], says: str
) -> None:
    asked = {"shares": SHARES, **options}
    with pytest.raises(BadRequest, match=says):
        client.submit(model, **asked)
    with pytest.raises(BadRequest, match=says):
        fractune.tune(model, **asked, server=server.address)
    assert (server.specs, server.uploads) == ([], 0)


def test_watching_gives_each_state_as_plain_values(client: fractune.Client, model: Path) -> None:
    seen = list(client.submit(model, SHARES).watch())
    assert [status.state for status in seen] == [JobState.QUEUED, JobState.TUNING, JobState.TUNING, JobState.DONE]
    assert seen[1].notes == ("waiting for a worker: role build",)
    assert (seen[1].progress.candidates_done, seen[1].progress.trials_planned) == (2, 8)
    assert seen[1].progress.failures == {"run_timeout": 1}
    assert [(each.name, each.weight, each.selected) for each in seen[2].operators] == [
        ("fused_conv2d", 3, True),
        ("softmax", 1, False),
    ]
    assert [(each.share, each.speed_up) for each in seen[3].results] == [("cpu:1", 2.0), ("cpu:2", 3.0)]
    assert seen[3].results[0].granted == granted()


def test_a_result_has_the_bundle_and_tables(client: fractune.Client, model: Path, tmp_path: Path) -> None:
    result = client.submit(model, SHARES).result(tmp_path / "out" / "m.fractune")
    assert result.bundle.path == tmp_path / "out" / "m.fractune"
    assert Bundle(Path(result.bundle)).manifest["model"]["name"] == "m.onnx"
    assert result.bundle.job == "jobs/j1"
    assert [row["speed_up"] for row in result.table.rows] == [2.0, 3.0]
    assert "3.00x" in str(result.latency)
    assert result.answer.line.startswith("2.00 ms at cpu:1, 1.00 ms at cpu:2; use cpu:2: it is 2.0x as fast as cpu:1; ")
    assert "tuned at x run at" in str(result.matrix.table)
    assert result.shares[1].tuned_s == 1e-3
    assert result.matrix.sentences == result.matrix.table.notes
    result.matrix.draw(tmp_path / "m.svg")
    assert (tmp_path / "m.svg").stat().st_size > 1000
    with pytest.raises(BadRequest, match=r"\.svg or \.png"):
        result.matrix.draw(tmp_path / "m.gif")


def test_a_bundle_goes_where_it_is_wanted(client: fractune.Client, server: ScriptedServer, model: Path) -> None:
    job = client.job("j1")
    assert job.bundle().path == model.with_name("m.fractune")
    assert job.bundle(model.with_name("deep") / "other.fractune").path.read_bytes() == bundle_bytes()
    with pytest.raises(StateUnusable, match="out /dev/null/x"):
        job.bundle("/dev/null/x.fractune")
    server.script = server.script[:2]
    with pytest.raises(JobFailed, match="has no bundle: it is tuning"):
        job.bundle()


@pytest.mark.parametrize(
    ("state", "error", "kind"),
    [
        (pb.JOB_STATE_FAILED, "BadModel", BadModel),
        (pb.JOB_STATE_FAILED, "", JobFailed),
        (pb.JOB_STATE_CANCELLED, "", JobCancelled),
    ],
)
def test_what_ended_a_job_is_raised_by_waiting(
    client: fractune.Client, server: ScriptedServer, state: pb.JobState, error: str, kind: type[Exception]
) -> None:
    ended = pb.Job(name="jobs/j1", spec=SPEC, state=state, error=error, message="no operator")
    server.script = [server.script[0], ended]
    job = client.job("jobs/j1")
    for wait in (job.wait, job.result):
        with pytest.raises(kind, match="no operator"):
            wait()
    assert [status.state.open for status in job.watch()] == [True, False]  # watching only looks


def test_jobs_are_listed_and_cancelled(client: fractune.Client, server: ScriptedServer) -> None:
    assert [job.state.value for job in client.jobs()] == ["queued", "tuning", "tuning", "done"]
    assert len(client.jobs(limit=2)) == 2
    assert client.job("j1").cancel().state is JobState.CANCELLED
    assert server.cancelled == ["jobs/j1"]
    with pytest.raises(NotFound, match="no job 'jobs/none'"):
        client.job("none").status()


def test_the_fleet_and_its_shares(client: fractune.Client) -> None:
    assert client.workers() == [fractune.Worker("workers/w1", "build", "here", 1, 0.0)]
    assert client.fleet() == fractune.Fleet(tuple(client.workers()))
    assert client.shares() == []
    offered = fractune.OfferedShare(DEVICE, granted(), 2)
    assert from_proto(fractune.OfferedShare, to_proto(offered, pb.OfferedShare)) == offered
    waiting = fractune.WaitingWork("measure", "cpu:1", 3, 1.7e9)
    assert from_proto(fractune.WaitingWork, to_proto(waiting, pb.WaitingWork)) == waiting


def test_the_log_is_asked_exported_imported_and_pruned(
    client: fractune.Client, server: ScriptedServer, tmp_path: Path
) -> None:
    server.records = [to_proto(record(f"r{number}"), pb.Record) for number in range(3)]
    found = client.log.query(model="m", operator="conv", share="cpu:1", kind="trial", job="j1", limit=2)
    assert server.filters[-1] == pb.RecordFilter(model="m", operator="conv", share="cpu:1", kind="trial", job="jobs/j1")
    assert (len(found), found.total, found[0], list(found)[1].record_id) == (2, 3, record("r0"), "r1")
    assert "fused_conv2d" in str(found.table)
    unknown = {"gflops": None, "roof_part": None, "memory_bound": None, "lost": None}
    assert found.table.rows[0] == {**record("r0").to_json(), "implementation": "", **unknown}
    path = tmp_path / "log.jsonl"
    assert client.log.export(path) == 3
    assert client.log.import_file(path) == fractune.Imported(added=3, already_there=0)
    assert [part.record for part in server.imported[1:]] == server.records
    with pytest.raises(BadRequest, match="exists; pass"):
        client.log.export(path)
    assert client.log.export(path, file_format="csv", force=True) == 3
    assert len(path.read_text().splitlines()) == 4
    assert client.log.prune(keep_best=1, dry_run=True) == fractune.Pruned(deleted=2, kept=1)
    (kept,), total = client.log.unreadable(limit=1)
    assert (kept.reason, kept.set_aside_at.year, total) == ("KeyError('kind')", 2001, 3)
    assert client.log.replay_unreadable() == 3


@pytest.mark.parametrize(("wanted", "says"), [({"share": "gpu:1"}, "gpu"), ({"kind": "best"}, "trial or validation")])
def test_a_filter_that_nothing_can_pass_is_refused(client: fractune.Client, wanted: dict[str, str], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        client.log.query(**wanted)  # type: ignore[arg-type]


def test_a_folder_of_records_needs_the_share_that_it_was_measured_at(client: fractune.Client, tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="pass share"):
        client.log.import_file(tmp_path)
    with pytest.raises(ShareUnavailable, match="no measurer offers cpu:1"):
        client.log.import_file(tmp_path, share="cpu:1")


def test_a_match_says_which_record_and_why(client: fractune.Client, server: ScriptedServer, model: Path) -> None:
    (found,) = client.match(model, "cpu:1").operators
    assert (found.operator.name, found.operator.weight, found.how, found.record) == ("conv", 2, "none", None)
    result = fractune.match(model, "cpu:1", server=server.address)
    assert result.operators == (found,)
    assert "no published record" in str(result.table)
    with pytest.raises(BadRequest, match="unknown mechanism"):
        fractune.match(model, "gpu:1", server=server.address)


def test_a_match_takes_the_name_of_a_model_that_the_server_has(
    client: fractune.Client, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = f"models/{'ab' * 32}"
    assert fractune.match(name, "cpu:1", server=server.address).operators == client.match(name, "cpu:1").operators
    assert server.uploads == 0
    assert main(["match", name, "--share", "cpu:1", "--server", server.address]) == 0
    with pytest.raises(BadModel, match="no such model file"):
        fractune.match("model/none", "cpu:1", server=server.address)


def test_tuning_on_a_server_writes_the_bundle(server: ScriptedServer, model: Path, tmp_path: Path) -> None:
    seen: list[fractune.JobStatus] = []
    result = fractune.tune(
        model, SHARES, trials=8, out=tmp_path / "m.fractune", server=server.address, progress=seen.append
    )
    assert [status.revision for status in seen] == [1, 2, 3, 4]
    assert seen[-1] == result.job
    assert result.bundle.path.read_bytes() == bundle_bytes()
    assert result.measurers == {}
    assert server.cancelled == []


def test_the_other_questions_are_jobs_that_search_nothing(server: ScriptedServer, model: Path) -> None:
    at: dict[str, Any] = {"server": server.address, "progress": False}
    table = fractune.matrix(model, SHARES, rerank=2, **at)
    assert table.tables[0].shares == ("cpu:1", "cpu:2")
    assert table.operators == ()
    knee = fractune.knee(model, SHARES, slack=0.2, **at)
    assert knee.units == 2
    assert "2 cores" in str(knee.table)
    assert knee.limits == ()
    limited = fractune.knee(model, [*SHARES, "cpu:1500m"], **at)
    assert limited.reports[0].shares == knee.reports[0].shares
    assert [each.share for each in limited.limits] == ["cpu:1500m"]
    assert list(server.specs.pop().shares) == SHARES
    made = fractune.bundle(model, SHARES, policy="robust", **at)
    assert made.path == model.with_name("m.fractune")
    assert [(spec.rerank, spec.variants) for spec in server.specs] == [(2, ""), (1, ""), (1, "robust")]
    for slack in (10.0, float("nan")):
        with pytest.raises(BadRequest, match=f"slack is {slack}"):
            fractune.knee(model, SHARES, slack=slack, **at)
    with pytest.raises(BadRequest, match="policy 'best'"):
        fractune.bundle(model, SHARES, policy="best", **at)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_ctrl_c_and_an_error_of_the_callers_own_function_cancel_the_job(
    server: ScriptedServer, model: Path, error: type[BaseException]
) -> None:
    def fail(status: fractune.JobStatus) -> None:
        if status.state is JobState.TUNING:
            raise error

    with pytest.raises(error):
        fractune.tune(model, SHARES, server=server.address, progress=fail)
    assert server.cancelled == ["jobs/j1"]


def test_a_server_that_goes_away_leaves_the_job_alone(server: ScriptedServer, model: Path) -> None:
    def watch(context: grpc.ServicerContext) -> Iterator[pb.Job]:
        yield job_script()[0]
        abort(context, RedisGone("Redis stopped"))

    server.watch = watch
    with pytest.raises(RedisGone, match="Redis stopped"):
        fractune.tune(model, SHARES, server=server.address, progress=False)
    assert server.cancelled == []


def test_it_works_in_any_thread_and_leaves_signals_alone(server: ScriptedServer, model: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    made: list[fractune.TuneResult] = []
    thread = threading.Thread(target=lambda: made.append(fractune.tune(model, SHARES, server=server.address)))
    thread.start()
    thread.join(60)
    assert made[0].bundle.path.is_file()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers


def test_progress_is_live_lines_plain_lines_a_function_or_nothing() -> None:
    assert isinstance(choose_view(progress=True), LineView)  # nothing to redraw on: not a terminal
    assert type(choose_view(progress=False)) is View
    mine = View()
    assert choose_view(mine) is mine


@pytest.mark.parametrize(("regret", "known", "shown"), [(float("nan"), None, "not measured"), (0.02, 0.02, "2.0 %")])
def test_a_regret_that_was_not_measured_is_none(regret: float, known: float | None, shown: str) -> None:
    answer = pb.OperatorMatch(operator=pb.Operator(display_name="conv"), how="near", regret=regret)
    found = fractune.MatchResult("cpu:1", (operator_match(answer),))
    assert found.operators[0].regret == known
    assert found.to_json()[0]["regret"] == known
    assert shown in str(found.table)


RESULTS = results()


def test_a_result_is_one_short_line_that_names_what_it_has() -> None:
    for result in RESULTS.values():
        line = repr(result)
        assert "\n" not in line
        assert len(line) < 250
        assert line.startswith(f"{type(result).__name__}(")
    line = repr(RESULTS["tune"])
    for expected in ("light_squeezenet", "cpu:1 4.31 ms (2.88x)", "cpu:8 4.31 ms", "light_squeezenet.fractune)"):
        assert expected in line
