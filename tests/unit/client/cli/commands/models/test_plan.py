"""`fractune plan`: what it prints, what it asks a server, and one line with an exit code for what cannot be."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import fractune
from fractune.cli import main
from fractune.features.plan.plan import plan as make_plan
from fractune_core.codec.messages import to_proto
from fractune_core.errors import PlanInfeasible
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script
from tests.support.measured_pairs import measured_pair
from tests.support.paths import REPOSITORY
from tests.support.processes.scripted_server import ScriptedServer, serving

STATED = """
[device]
gpu = "A100-80GB"

[[models]]
name = "a"
rate_per_s = 350
latency_ms = 100
profile = [{share = "1g", throughput_per_s = 100}, {share = "3g", throughput_per_s = 240}]
"""
LOGGED = """
[device]
cores = 2

[[models]]
name = "a"
rate_per_s = 350
model = "a.onnx"
requests_per_run = 4
"""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serving(ScriptedServer()) as running:
        yield running


def write(folder: Path, text: str) -> str:
    (folder / "a.onnx").write_bytes(b"a model")
    (folder / "plan.toml").write_text(text)
    return str(folder / "plan.toml")


def test_the_plan_file_of_the_docs_runs_as_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    section = (REPOSITORY / "docs" / "sharing.md").read_text().partition("## Plan\n")[2]
    example = section.partition("```toml\n")[2].partition("```")[0]
    assert "[[interference]]" in example
    assert main(["plan", write(tmp_path, example), "--simulate"]) == 0
    assert "simulated with Poisson arrivals" in capsys.readouterr().out


def test_a_plan_of_stated_times_needs_no_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", write(tmp_path, STATED)]) == 0
    said = capsys.readouterr().out
    assert "mig:3g.40gb" in said or said.count("mig:1g.10gb") == 4
    assert "1 x A100-80GB: 4 of 7 slices" in said
    assert "not verified on a GPU" in said


def test_json_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = write(tmp_path, STATED), tmp_path / "plan.svg"
    assert main(["plan", file, "--json", "--simulate", "--gpus", "1", "--picture", str(picture)]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["event"], data["device"]) == ("plan", "A100-80GB")
    assert data["models"][0]["simulated"]["holds"]
    assert picture.is_file()
    assert main(["plan", file, "--minimise", "gpus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["devices"]


@pytest.mark.parametrize(
    ("text", "options", "code", "says"),
    [
        (STATED, ["--gpus", "0"], 2, "count is 0; it must be from 1"),
        (STATED, ["--gpus", "1", "--minimise", "gpus"], 2, "--gpus and --minimise exclude each other"),
        (STATED, ["--apply", "commands"], 2, "No such option: --apply"),
        (STATED, ["--partitioning", "cpu"], 2, "partitioning 'cpu' is for CPUs"),
        (STATED, ["--partitioning", "halves"], 2, "partitioning 'halves': write mig, mps, green, cpu"),
        (STATED, ["--picture", "plan.jpg"], 2, "--picture plan.jpg"),
        (STATED, ["--measure"], 2, "no model of the plan can be timed"),
        (STATED.replace("rate_per_s", "rate"), [], 2, "model 'a': unknown key 'rate'"),
        (STATED.replace("profile", "bundle = 'gone.fractune' #"), [], 8, "gone.fractune: no such file"),
        (STATED.replace("350", "3500"), ["--gpus", "1"], 4, "Beside the others they serve 700 of its 3500"),
        (STATED.replace("100\n", "5\n"), [], 4, "model 'a' is too slow for its target on any part of A100-80GB"),
        (LOGGED.replace("a.onnx", "gone.onnx"), ["--server", "127.0.0.1:1"], 3, "gone.onnx: no such model file"),
        (LOGGED, ["--server", "127.0.0.1:1"], 5, "no fractune server answers at 127.0.0.1:1"),
    ],
)
def test_what_cannot_be_is_one_line_and_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, options: list[str], code: int, says: str
) -> None:
    assert main(["plan", write(tmp_path, text), *options]) == code
    said = capsys.readouterr()
    assert says in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


# ---- with a log ------------------------------------------------------------------------------------------


def a_plan(share_is_predicted: bool) -> pb.Plan:  # noqa: FBT001  - a script
    made = to_proto(
        make_plan(
            {
                "device": {"cores": 2},
                "models": [{"name": "a", "rate_per_s": 5, "profile": [{"share": "cpu:1", "latency_ms": 9}]}],
            }
        ).plan,
        pb.Plan,
    )
    made.devices[0].parts[0].basis = "predicted" if share_is_predicted else "measured"
    return made


def test_a_model_in_the_log_is_planned_by_the_server(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.plans = [a_plan(share_is_predicted=False)]
    assert main(["plan", write(tmp_path, LOGGED), "--server", server.address, "--gpus", "3", "--simulate"]) == 0
    (asked,) = server.plan_requests
    assert (asked.cores, asked.count, asked.simulate) == (2, 3, True)
    assert asked.models[0].model in server.models
    assert asked.models[0].requests_per_run == 4
    assert "cpu:1" in capsys.readouterr().out


def test_pairs_of_a_named_log_say_what_models_cost_each_other(
    tmp_path: Path, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the names of their files; a plan that the server does not make has them too."""
    made = a_plan(share_is_predicted=False)
    made.devices[0].parts.append(made.devices[0].parts[0])
    for part, name in zip(made.devices[0].parts, ("first", "b"), strict=True):
        part.model = name
    server.plans = [made]
    server.pairs = [to_proto(measured_pair(first="a", second="second"), pb.MeasuredPair)]
    stated = 'profile = [{share = "cpu:1", latency_ms = 9}]'
    other = f'\n[[models]]\nname = "b"\nrate_per_s = 5\npaired_as = "second"\n{stated}'
    both = LOGGED.replace('name = "a"', 'name = "first"') + other
    assert main(["plan", write(tmp_path, both), "--server", server.address]) == 0
    (asked,) = server.plan_requests
    assert {(each.model, each.beside): each.i for each in asked.interference} == {
        ("first", "b"): 1.4,
        ("b", "first"): 1.02,
    }
    said = capsys.readouterr().out
    assert "slow-downs of measured pairs" in said
    assert "1.40 (1.35 .. 1.50)" in said
    limits = both.replace('model = "a.onnx"\nrequests_per_run = 4', f'paired_as = "a"\n{stated}')
    limits = limits.replace("cores = 2", 'cores = 2\npartitioning = "limit"')
    assert main(["plan", write(tmp_path, limits), "--server", server.address, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(server.plan_requests) == 1
    slowdown = {part["model"]: part["slowdown"] for parts in data["devices"] for part in parts}
    assert [(each["model"], each["factor"]) for each in data["slowdowns"]] == [("first", slowdown["first"])]
    assert any("1 slow-down by co-runners from measured pairs" in note for note in data["notes"])


def test_measuring_times_the_curve_then_what_the_plan_takes(tmp_path: Path, server: ScriptedServer) -> None:
    """On 4 cores: the ends and the middle first; the plan takes a share that is only predicted; it is timed as well."""
    server.script = job_script()
    first = a_plan(share_is_predicted=True)
    first.devices[0].parts[0].share = "cpu:3"
    server.plans = [first, a_plan(share_is_predicted=False)]
    text = LOGGED.replace("cores = 2", "cores = 4")
    made = make_plan(write(tmp_path, text), measure=True, server=server.address, progress=False)
    assert [list(spec.shares) for spec in server.specs] == [["cpu:1", "cpu:2", "cpu:4"], ["cpu:3"]]
    assert {spec.rerank for spec in server.specs} == {1}
    assert len(server.plan_requests) == 2
    assert made.plan.devices[0][0].basis == "measured"


def test_measuring_ends_when_the_same_share_stays_predicted(tmp_path: Path, server: ScriptedServer) -> None:
    server.script = job_script()
    server.plans = [a_plan(share_is_predicted=True)]
    make_plan(write(tmp_path, LOGGED), measure=True, server=server.address, progress=False)
    assert [list(spec.shares) for spec in server.specs] == [["cpu:1", "cpu:2"]]


def test_a_refusal_of_the_server_keeps_its_kind(tmp_path: Path, server: ScriptedServer) -> None:
    server.fail_with = None
    with fractune.connect(server.address) as client:
        server.plans = [a_plan(share_is_predicted=False)]
        assert client.plan(write(tmp_path, STATED)).plan.device == "2 cores"
        server.fail_with = PlanInfeasible("1 x A100-80GB cannot serve these rates: the limiting model is 'a'")
        with pytest.raises(PlanInfeasible, match="limiting model is 'a'"):
            client.plan(write(tmp_path, STATED))
