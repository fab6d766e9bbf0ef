"""The batch file of a fleet, and what is refused before the job waits in a queue."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune.local import slurm
from fractune.local.slurm import HeadOptions, ScriptOptions, batch_script, prepare
from fractune_core.errors import BadRequest, StateUnusable


def test_the_batch_file_holds_the_request_and_the_words_of_the_head() -> None:
    options = ScriptOptions(4, "4:00:00", Path("/shared/fleet"), "gpu", gpus_per_node=8)
    lines = batch_script(options, ["--state", "/shared/fleet", "--", "tune", "a model.onnx"]).splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert set(lines[1:-1]) == {
        f"#SBATCH --{each}"
        for each in (
            "job-name=fractune",
            "nodes=4",
            "ntasks-per-node=1",
            "exclusive",
            "mem=0",
            "gpus-per-node=8",
            "time=4:00:00",
            "partition=gpu",
            "signal=TERM@180",
            "requeue",
            "no-kill",
            "open-mode=append",
            "output=/shared/fleet/slurm-%j.log",
        )
    }
    assert shlex.split(lines[-1])[-4:] == ["/shared/fleet", "--", "tune", "a model.onnx"]


RIGHT: dict[str, Any] = {"nodes": 1, "time": "1:00", "output": Path("/f")}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"nodes": 0}, "--nodes 0"),
        ({"gpus_per_node": -1}, "--gpus-per-node -1"),
        ({"time": "1:00\n#SBATCH --uid=0"}, "--time"),
        ({"time": ""}, "--time ''"),
        ({"partition": "a b"}, "--partition 'a b'"),
        ({"output": Path("/shared/my fleet")}, "cannot hold spaces"),
    ],
)
def test_what_a_line_of_the_file_cannot_hold_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        ScriptOptions(**(RIGHT | wrong))


@pytest.mark.parametrize(
    "words", [["--shares", "cpu:0"], ["--builders", "few"], ["--listen", "0.0.0.0:50051"], ["--host", "a\nb"]]
)
def test_what_a_part_would_refuse_is_refused_before_the_job_is_submitted(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    assert main(["slurm", "script", "--state", str(folder), "--time", "1:00", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert not folder.exists()


def test_the_folder_is_for_its_owner_alone_and_keeps_its_secrets(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    prepare(folder)
    found = {path.name: path.read_bytes() for path in (folder / "secrets").iterdir()}
    prepare(folder)
    assert {path.name: path.read_bytes() for path in (folder / "secrets").iterdir()} == found
    assert all(path.stat().st_mode & 0o077 == 0 for path in (folder / "secrets").iterdir() if path.suffix != ".acl")
    folder.chmod(0o755)
    with pytest.raises(StateUnusable, match="others can open it"):
        prepare(folder)


def test_a_head_outside_of_a_job_says_how_to_submit_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert main(["slurm", "head", "--state", str(tmp_path / "fleet")]) == 2
    assert not (tmp_path / "fleet").exists()


def test_a_torn_copy_is_one_line_and_stays_as_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "fleet"
    prepare(folder)
    (folder / "fleet.tar").write_bytes(b"torn")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv("TMPDIR", "/tmp")
    assert main(["slurm", "head", "--state", str(folder)]) == StateUnusable.exit_code
    assert "fleet.tar cannot be read" in capsys.readouterr().err
    assert (folder / "fleet.tar").read_bytes() == b"torn"


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    head = slurm._Head(HeadOptions(tmp_path, ("cpu:1",), "auto", command=("fractun", "tune")), tmp_path)
    with pytest.raises(BadRequest, match="the command 'fractun' cannot be run: No such file"):
        head._command()
