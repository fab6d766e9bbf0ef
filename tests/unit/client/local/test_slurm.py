"""The batch file of a fleet, and what is refused before the job waits in a queue."""

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from fractune.cli import main
from fractune.local import slurm
from fractune.local.node import NodeOptions, allotted_cores, node_parts, node_shares
from fractune.local.slurm import HeadOptions, ScriptOptions, batch_script, prepare
from fractune_core.errors import BadRequest, StateUnusable
from fractune_core.fleet.options import RoleName


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


ARGUMENTS = {role: ["--redis", f"redis://{role}@r"] for role in RoleName}


def parts(shares: str, gpus: list[str], builders: int = 0) -> dict[str, tuple[list[str], str]]:
    """By name: the words of the command, and the GPU that the worker sees."""
    options = NodeOptions(node_shares(shares), builders, compilers=1, tuners=0, arguments=ARGUMENTS)
    found = node_parts(options, gpus)
    return {each.name: (each.command()[3:], each.env.get("CUDA_VISIBLE_DEVICES", "")) for each in found}


def test_each_gpu_has_the_measurers_of_its_shares_and_a_share_may_stand_twice() -> None:
    found = parts("mps:25,mps:25,cpu:1", ["GPU-a", "GPU-b"], builders=2)
    measured = {name: words[-1] + gpu for name, (words, gpu) in found.items() if "measure" in words}
    assert measured == {
        "measure-mps-25-GPU-a": "mps:25GPU-a",
        "measure-mps-25-GPU-b": "mps:25GPU-b",
        "measure-mps-25-GPU-a-2": "mps:25GPU-a",
        "measure-mps-25-GPU-b-2": "mps:25GPU-b",
        "measure-cpu-1": "cpu:1",
    }
    assert [name for name in found if name not in measured] == ["compile", "build", "build-2"]
    assert found["build"][0] == ["worker", "--role", "build", "--redis", "redis://build@r"]


def test_a_mig_share_has_one_measurer_which_claims_an_instance_of_any_gpu() -> None:
    assert parts("mig:1g.18gb", ["GPU-a", "GPU-b"])["measure-mig-1g.18gb"][1] == ""


def test_shares_bring_those_of_their_kernels() -> None:
    assert node_shares("cpu:500m,cpu:1,cpu:1") == ("cpu:1", "cpu:1", "cpu:500m")
    assert node_shares("") == ()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"shares": (), "builders": 0, "compilers": 0, "tuners": 0}, "no worker"),
        ({"shares": ("cpu:1",), "tuners": -1}, "--tuners -1"),
        ({"shares": ("cpu:1",), "builders": 10**6}, "--builders 1000000"),
        ({"shares": ("cpu:1",), "grace_s": float("nan")}, "--grace nan"),
    ],
)
def test_numbers_out_of_bounds_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(BadRequest, match=says):
        NodeOptions(**wrong)  # type: ignore[arg-type]


def test_a_node_takes_the_cpus_that_its_scheduler_allots_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {2, 3})
    assert allotted_cores(environment={}) == allotted_cores(environment={"SLURM_CPUS_ON_NODE": "2"}) == [2, 3]
    assert allotted_cores([3], {"SLURM_CPUS_ON_NODE": "1"}) == [3]
    with pytest.raises(BadRequest, match="Slurm allots 1 CPUs, and does not confine"):
        allotted_cores(environment={"SLURM_CPUS_PER_TASK": "1", "SLURM_CPUS_ON_NODE": "2"})
    with pytest.raises(BadRequest, match=r"--cores 1: this process may use \[2, 3\] only"):
        allotted_cores([1], {})
