"""What the views make of a job: its command, its parts and their times."""

import shlex
from dataclasses import replace

import pytest

from fractune.dashboard.views.job import command_of
from fractune.dashboard.views.parts import kind_of, operator_blocks, time_bars
from fractune.server.job_status import JobStatus, job_status
from fractune_core.analysis.inside import CallTime, Inside
from fractune_core.pb import fractune_pb2 as pb
from tests.support.client_samples import job_script
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
