"""What the views make of a job: its command, its parts, its trials and their times."""

import hashlib
import math
import re
import shlex
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fractune.dashboard.following import JobTrials, Point, Trial, model_progress, operator_progress, paced
from fractune.dashboard.serving import PageOptions
from fractune.dashboard.views.job import command_of, job
from fractune.dashboard.views.parts import kind_of, operator_blocks, time_bars
from fractune.features.client import Client
from fractune.features.log.log import Records
from fractune.server.credentials import Credentials
from fractune.server.job_status import JobProgress, JobStatus, OperatorStatus, job_status
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.codec.messages import to_proto
from fractune_core.jobs import JobSpec, JobState
from fractune_core.pb import fractune_pb2 as pb
from tests.support.certificates import Authority
from tests.support.client_samples import job_script, record
from tests.support.paths import REPOSITORY
from tests.support.processes.scripted_server import ScriptedServer
from tests.unit.client.dashboard.conftest import Pages


def words_of(spec: pb.JobSpec, model_name: str = "m.onnx") -> list[str]:
    job = pb.Job(name="jobs/j1", spec=spec, state=pb.JOB_STATE_DONE, model_display_name=model_name)
    return shlex.split(command_of(job_status(job)))


def test_a_name_stays_one_word_and_is_no_option() -> None:
    name = "m.onnx; rm -rf $HOME `id` 'x'"
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"]), name)[2] == name
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"]), "--help")[2] == "./--help"


def test_every_option_that_the_server_knows_is_there() -> None:
    spec = pb.JobSpec(
        model="models/m",
        shares=["cpu:1", "cpu:2"],
        inputs={"x": pb.Shape(dims=[1, 3]), "sr=const:16000": pb.Shape()},
        trials=0,
        minutes=2.5,
        round_size=8,
        seed=7,
        only="conv,dense out",
        target="llvm -mcpu=x86-64-v3",
        namespace="team",
        priority=1,
        exact=True,
        fresh=True,
    )
    words = words_of(spec)
    assert words[:5] == ["fractune", "tune", "m.onnx", "--shares", "cpu:1,cpu:2"]
    assert sorted(words[5:9]) == ["--input", "--input", "sr=const:16000", "x=1,3"]
    assert words[9:] == [
        *("--trials", "0", "--target", "llvm -mcpu=x86-64-v3", "--minutes", "2.5", "--round", "8"),
        *("--only", "conv,dense out", "--seed", "7", "--priority", "high", "--exact"),
        *("--namespace", "team", "--fresh"),
    ]


def test_one_budget_is_named() -> None:
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"]))[5:] == ["--trials", "256"]
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"], more=9))[5:] == ["--extra-trials", "9"]
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"], rerank=4))[5:] == ["--rerank", "4"]


def test_the_page_says_what_is_missing(pages: Pages) -> None:
    assert "options that a server does not keep" in pages.page("/jobs/j1").text


@pytest.fixture
def done() -> JobStatus:
    """Its operator takes 1.5 of 2 ms inside the model at cpu:1; at cpu:2 the inside is not known."""
    job = job_status(job_script()[-1])
    inside = Inside((CallTime("k", 3, 1.5e-3, "0123"), CallTime("vm.builtin.copy", 1, 0.3e-3)), 2e-3, 2e-3)
    first, second = job.results
    faster = replace(job.operators[0], best_s={"cpu:1": 1e-3, "cpu:2": 0.3e-3})
    return replace(job, results=(replace(first, inside=inside), second), operators=(faster, job.operators[1]))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("fused_conv2d_add2", 0),
        ("matmul7", 1),
        ("fused_max1_maximum2", 2),
        ("maximum1", 3),
        ("fused_transpose_to_blocks", 4),
        ("between calls", 5),
    ],
)
def test_the_kind_of_an_operator_is_that_of_its_costliest_part(name: str, kind: int) -> None:
    assert kind_of(name) == kind


def test_a_bar_has_all_of_the_models_time(done: JobStatus) -> None:
    bars = time_bars(done)
    assert bars is not None
    found = [[piece.title for piece in bar.pieces] for bar in bars.bars]
    assert found == [
        ["conv2d: 75%", "copy: 15%", "between calls: 10%"],
        ["conv2d: 90%", "rest of the model: 10%"],
    ]
    assert all(sum(piece.length for piece in bar.pieces) == pytest.approx(100.0) for bar in bars.bars)


def test_operators_stand_by_their_time_with_the_distance_to_the_roof(done: JobStatus) -> None:
    block, small = operator_blocks(done)
    rows = [[cell.text for cell in row] for row in block.rows]
    assert [row[:3] for row in rows] == [
        ["fused_conv2d", "1.50 ms", "900 us"],
        ["copy", "300 us", "-"],
        ["between calls", "200 us", "-"],
        ["rest of the model", "-", "100 us"],
    ]
    assert ([row[0].text for row in small.rows], small.is_folded) == (["softmax"], True)
    heaviest = block.rows[0]
    assert heaviest[1].bar == 100.0
    assert "of roof cpu:1" in [name for name, _ in block.columns]


JOB = JobStatus(
    "jobs/j1",
    JobState.TUNING,
    JobSpec("ab", "m.onnx", ("cpu:1",)),
    created_at=100.0,
    operators=(
        OperatorStatus("a", "aa", weight=2),
        OperatorStatus("b", "bb", weight=1),
        OperatorStatus("c", "cc", weight=1, selected=False),
    ),
)


def trial(number: int, workload: str, secs: float, share: str = "cpu:1") -> Trial:
    return Trial(f"r{number}", 100.0 + number, share, workload, secs)


def test_the_model_has_a_best_once_every_selected_operator_has_one() -> None:
    trials = [trial(1, "aa", 3.0), trial(2, "cc", 9.0), trial(3, "bb", 1.0), trial(4, "aa", 2.0), trial(5, "aa", 2.5)]
    assert model_progress(JOB, trials, "cpu:1") == [Point(3, 3.0, 7.0), Point(4, 4.0, 5.0)]


def test_operators_that_the_job_did_not_try_have_their_time_in_the_log() -> None:
    known = [replace(each, best_s={"cpu:1": 2.0}) for each in JOB.operators]
    trials = [trial(1, "aa", 3.0), trial(2, "aa", 2.0)]
    assert model_progress(replace(JOB, operators=tuple(known)), trials, "cpu:1") == [
        Point(1, 1.0, 8.0),
        Point(2, 2.0, 6.0),
    ]


def test_what_the_last_trials_gained_and_earlier_phases_say_how_long_it_takes() -> None:
    done = replace(JOB, name="jobs/j0", state=JobState.DONE, progress=JobProgress(phases_s={"timing": 9.0}))
    trials = [trial(1, "aa", 3.0), trial(2, "bb", 1.0), *(trial(at, "aa", 3.0) for at in range(3, 41))]
    found = paced(JOB, trials, [JOB, done])
    assert found.pace.sums == [(2, {"cpu:1": 7.0})]
    assert found.pace.gained(40) == (10, 0.0)
    assert found.pace.past_s == {"timing": 9.0}


def test_failures_and_other_shares_count_for_nothing_but_the_number_of_trials() -> None:
    trials = [trial(1, "aa", math.inf), trial(2, "aa", 1.0, "cpu:2"), trial(3, "aa", 4.0)]
    assert operator_progress(JOB, trials, "cpu:1", "aa") == [Point(2, 3.0, 4.0)]
    assert model_progress(JOB, trials, "cpu:1") == []


def test_only_new_trials_are_asked_for(server: ScriptedServer) -> None:
    followed = JobTrials("jobs/j1")
    with Client(server.address) as client:
        server.records = [to_proto(record("r1", measured_at=1.0), pb.Record)]
        assert [each.record_id for each in followed.update(client)] == ["r1"]
        server.records = [to_proto(record(f"r{at}", measured_at=float(at)), pb.Record) for at in (3, 2, 1)]
        assert [each.record_id for each in followed.update(client)] == ["r1", "r2", "r3"]
        asked = len(server.filters)
        followed.update(client)
        assert len(server.filters) == asked + 1
    assert {each.job for each in server.filters} == {"jobs/j1"}


def test_the_first_of_many_trials_are_read_at_once_and_the_others_by_and_by(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fractune.dashboard.following._PAGES", (1, 2))
    monkeypatch.setattr("fractune.dashboard.following._LATER", 2)
    followed = JobTrials("jobs/j1")
    with Client(server.address) as client:
        server.records = records(*range(9, 0, -1))
        read: list[list[int]] = []
        while not followed.is_whole or not read:
            read.append(sorted(int(each.record_id[1:]) for each in followed.update(client)))
        assert read == [[7, 8, 9], [3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9]]


def records(*numbers: int) -> list[pb.Record]:
    return [to_proto(record(f"r{at}", measured_at=float(at)), pb.Record) for at in numbers]


def test_updates_that_overlap_count_a_trial_once(server: ScriptedServer) -> None:
    server.records = records(2, 1)
    followed = JobTrials("jobs/j1")
    met = threading.Barrier(2)

    def update(client: Client) -> int:
        met.wait()
        return len(followed.update(client))

    with Client(server.address) as client, ThreadPoolExecutor(2) as threads:
        for newest in range(3, 23):
            server.records = records(*range(newest, 0, -1))
            assert list(threads.map(update, [client, client])) == [newest, newest]


class ArrivingLog:
    """A log of the newest first that gets a record with each query."""

    def __init__(self) -> None:
        self.held = [record("r0", measured_at=0.0)]

    def query(self, *, limit: int, page: str = "", **_: object) -> Records:
        start = len(self.held) - int(page) if page else 0
        stop = start + limit
        found = Records(
            tuple(self.held[start:stop]),
            len(self.held),
            next_page=str(len(self.held) - stop) if stop < len(self.held) else "",
        )
        number = len(self.held)
        self.held.insert(0, record(f"r{number}", measured_at=float(number)))
        return found


class ArrivingClient:
    def __init__(self) -> None:
        self.log = ArrivingLog()


def test_trials_that_arrive_during_an_update_are_found_by_the_next() -> None:
    client: Any = ArrivingClient()
    followed = JobTrials("jobs/j1")
    for _ in range(20):
        followed.update(client)
    held = len(client.log.held)
    assert [each.record_id for each in followed.update(client)] == [f"r{number}" for number in range(held)]


def test_only_the_newest_trials_are_kept_and_a_note_says_so(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("following", "views.parts"):
        monkeypatch.setattr(f"fractune.dashboard.{module}.MOST_TRIALS", 3)
    followed = JobTrials("jobs/j1")
    with Client(server.address) as client:
        server.records = records(2, 1)
        assert "not read" not in str(job(JOB, followed.update(client), {}, may_cancel=False).blocks)
        for newest in (5, 6):
            server.records = records(*range(newest, 0, -1))
            found = followed.update(client)
            assert [each.record_id for each in found] == [f"r{at}" for at in range(newest - 2, newest + 1)]
        assert "older ones are not read" in str(job(JOB, found, {}, may_cancel=False).blocks)


def test_a_server_with_credentials_is_guarded_and_one_in_plain_text_is_not(tmp_path: Path) -> None:
    ca = Authority.make(tmp_path / "authority").cert
    with Client("127.0.0.1:1", credentials=Credentials(ca=ca)) as client:
        assert client.is_guarded
    with Client("127.0.0.1:1") as client:
        assert not client.is_guarded


def test_a_password_is_made_for_what_others_must_not_read() -> None:
    assert PageOptions("127.0.0.1:0").token(is_guarded=True)
    assert PageOptions("127.0.0.1:0").token(is_guarded=False) == ""
    assert PageOptions("127.0.0.1:0", insecure=True).token(is_guarded=True) == ""


def test_the_password_of_a_file_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret\n")
    assert PageOptions("127.0.0.1:0", token_file=file).token(is_guarded=True) == "secret"


VENDOR = REPOSITORY / "tuner_client" / "fractune" / "dashboard" / "static" / "vendor"
PAGE = REPOSITORY / "docs" / "decisions" / "17-dashboard-and-site.md"


def test_vendored_files_are_those_of_the_page_and_have_a_licence() -> None:
    listed = dict(
        re.findall(r"^\| `([^`]+)` \|[^|]+\| `([0-9a-f]{64})` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    there = {path.name: path for path in VENDOR.iterdir() if path.suffix != ".LICENSE"}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == listed
    licences = {path.stem for path in VENDOR.glob("*.LICENSE")}
    assert {name.partition(".")[0] for name in there} == licences
