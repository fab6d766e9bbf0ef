"""What a node consists of: its workers, and what a scheduler gives it."""

from __future__ import annotations

import os

import pytest

from fractune.local.node import NodeOptions, allotted_cores, node_parts, node_shares
from fractune_core.errors import BadRequest
from fractune_core.fleet.options import RoleName

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
