"""The command on a job's page: a shell reads it as the words of the same request."""

from __future__ import annotations

import shlex

from fractune.dashboard.views.job import command_of
from fractune.server.job_status import job_status
from fractune_core.pb import fractune_pb2 as pb
from tests.unit.client.dashboard.conftest import Pages


def words_of(spec: pb.JobSpec, model_name: str = "m.onnx") -> list[str]:
    job = pb.Job(name="jobs/j1", spec=spec, state=pb.JOB_STATE_DONE, model_display_name=model_name)
    return shlex.split(command_of(job_status(job)))


def test_a_hostile_name_stays_one_word() -> None:
    name = "m.onnx; rm -rf $HOME `id` 'x'"
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"]), name)[2] == name


def test_a_name_like_an_option_is_a_path() -> None:
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
        *("--trials", "0", "--minutes", "2.5", "--round", "8", "--seed", "7", "--only", "conv,dense out"),
        *("--target", "llvm -mcpu=x86-64-v3", "--namespace", "team", "--priority", "high", "--exact", "--fresh"),
    ]


def test_one_budget_is_named() -> None:
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"]))[5:] == ["--trials", "256"]
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"], more=9))[5:] == ["--extra-trials", "9"]
    assert words_of(pb.JobSpec(model="models/m", shares=["cpu:1"], rerank=4))[5:] == ["--rerank", "4"]


def test_the_page_says_what_is_missing(pages: Pages) -> None:
    assert "options that a server does not keep" in pages.page("/jobs/j1").text
