"""`fractune shares`: what it prints of a machine, and how it ends. `fractune mps`: with a simulated daemon."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fractune.cli.commands.machine as command
from fractune.cli import main
from fractune_core.cuda import MPS_PIPE_DIRECTORY
from fractune_core.errors import ShareUnavailable
from fractune_core.shares import Share, units_text
from fractune_workers.confinement import mps as confinement
from fractune_workers.confinement.mps import MpsConfinement
from fractune_workers.gpu import nvml
from fractune_workers.inventory.shares import PROOF_FAILED
from tests.support.hardware.simulated_gpu import MODELS, SimulatedGpu
from tests.support.hardware.simulated_mps import H200, OneGpu, installed_program
from tests.support.hardware.simulated_mps_control import tell
from tests.support.hardware.simulated_nvml import SimulatedNvml


@pytest.fixture(autouse=True)
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pipe folder of the daemon of the one GPU here."""
    for name in (MPS_PIPE_DIRECTORY, "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(confinement, "MpsConfinement", lambda share: MpsConfinement(share, nvml=OneGpu))
    with installed_program() as folder:
        monkeypatch.setenv("PATH", str(folder / "bin"), prepend=":")
        yield folder / H200.uuid / "pipe"


def test_it_is_started_reported_and_stopped(pipes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mps", "status"]) == 0
    assert capsys.readouterr().out.endswith("start one: fractune mps start\n")
    for _ in range(2):
        assert main(["mps", "start"]) == 0
        assert capsys.readouterr().out.splitlines()[-1] == f"{MPS_PIPE_DIRECTORY}={pipes}"
    assert main(["mps", "status"]) == 0
    assert "runs on NVIDIA H200 (GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65) until `fractune" in capsys.readouterr().out
    tell(pipes, "stage connect 1")
    assert main(["mps", "stop"]) == 4
    assert "has clients (process 1); end them first" in capsys.readouterr().err
    assert main(["mps", "status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found == {"gpu": H200.uuid, "pipe_dir": str(pipes), "running": True, "kept": True, "clients": [1]}
    tell(pipes, "stage leave 1")
    assert main(["mps", "stop"]) == 0
    assert capsys.readouterr().out.endswith("does not run\n")
    assert not (pipes.parent / "kept").exists()


def test_a_daemon_that_the_environment_names_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MPS_PIPE_DIRECTORY, "/run/mps")
    for word in ("start", "stop"):
        assert main(["mps", word]) == 4
        assert "names the daemon at /run/mps" in capsys.readouterr().err


@pytest.fixture(autouse=True)
def nothing_outlives_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "own_env", dict)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def offer(share: str, units: int | None, **changes: Any) -> dict[str, Any]:
    usual = {"units_total": 132, "unit": "sm", "memory_bytes": 16 << 30, "reserved": False, "proof": "not proved"}
    rest: dict[str, Any] = {
        "instances": [],
        "refusal": "",
        "device_key": "",
        "limit": None,
        "fraction": None if units is None else units / 132,
    }
    return {"share": share, "units": units, **usual, **rest, **changes}


def stage(monkeypatch: pytest.MonkeyPatch, *offers: dict[str, Any], no_gpu: str = "") -> list[bool]:
    """A machine with one GPU that has these offers; gives the values of `--prove` that it was asked with."""
    asked = []

    def machine_shares(_named: list[Share], *, prove: bool) -> Iterator[dict[str, Any]]:
        asked.append(prove)
        yield {
            "kind": "cuda",
            "label": "NVIDIA H200",
            "uuid": "GPU-1",
            "offers": list(offers),
            "cpus": None,
            "limits": None,
        }
        if no_gpu:
            raise ShareUnavailable(no_gpu)

    monkeypatch.setattr(command, "machine_shares", machine_shares)
    return asked


def test_a_table_tells_what_each_share_is_worth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = offer("mig:1g.18gb", 16, reserved=True, proof="UUID, SM count, %smid", instances=["MIG-1", "MIG-2"])
    refused = [offer(f"mps:{size}", None, reserved=None, refusal=f"no MPS at {size}") for size in (25, 50)]
    asked = stage(monkeypatch, offer("green:32", 32), instance, offer("mps-sm:4", None), *refused)
    assert main(["shares", "--prove"]) == 0
    said = capsys.readouterr().out
    lines = {
        cells[0]: cells[1:] for line in said.splitlines() if (cells := [each.strip() for each in line[1:-1].split("│")])
    }
    assert lines["green:32"] == ["32 of 132 SMs", "24.2 %", "16.0 GiB", "green", "capped", "not proved"]
    assert lines["mig:1g.18gb"][1:] == ["12.1 %", "16.0 GiB", "mig", "reserved", "UUID, SM count, %smid"]
    assert lines["mps-sm:4"][:2] == ["- of 132 SMs", "-"]
    assert "mig:1g.18gb is MIG-1\nmig:1g.18gb is MIG-2\n" in said
    assert said.count("not offered: ") == 1
    assert "not offered: no MPS at 25" in said
    assert asked == [True]


def test_a_machine_without_a_driver_says_so_and_ends_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(monkeypatch, offer("cpu:1", 1), no_gpu="no NVIDIA driver here")
    assert main(["shares"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "no GPU shares: no NVIDIA driver here"
    assert main(["shares", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["device", "no_gpu"]
    assert events[0]["offers"] == [offer("cpu:1", 1)]
    assert events[1]["reason"] == "no NVIDIA driver here"


def test_a_proved_limit_shows_what_busy_processes_got(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = {"quota_m": 1500, "request_m": 0, "span": 2, "period_us": 100_000, "burst_us": 50_000, "burned_m": 1497}
    stage(monkeypatch, offer("cpu:1500m", 1500, units_total=2000, unit="millicore", limit=limit))
    assert main(["shares", "cpu:1500m", "--prove"]) == 0
    said = capsys.readouterr().out
    assert "1500 of 2000 millicores" in said
    assert said.endswith(
        "cpu:1500m: busy processes got 1497m on 2 CPUs, in periods of 100 ms, with 50 ms more after idle periods\n"
    )


def test_a_limit_without_a_proof_says_what_it_means(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(monkeypatch, *(offer(f"cpu:500m{size}", 500, units_total=2000, unit="millicore") for size in ("@1/10ms", "")))
    assert main(["shares", "cpu:500m@1/10ms,cpu:500m"]) == 0
    usable = units_text(len(os.sched_getaffinity(0)), "CPU")
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "cpu:500m@1/10ms: a limit of 500m on 1 CPU, in periods of 10 ms; not proved",
        f"cpu:500m: a limit of 500m on {usable}, in periods of 100 ms; not proved",
    ]


def test_the_last_line_names_every_share_that_failed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usual = {"units_total": 2000, "unit": "millicore"}
    failed = offer("cpu:500m", None, proof=PROOF_FAILED, refusal="too busy", **usual)
    refused = offer("cpu:9999m", None, refusal="too few CPUs", **usual)
    stage(monkeypatch, failed, refused)
    assert main(["shares", "cpu:500m,cpu:9999m", "--prove"]) == 4
    said = "cpu:500m could not be proved, and cpu:9999m cannot be had here; the reasons are printed above\n"
    assert capsys.readouterr().err == f"fractune: {said}"


def test_a_named_share_that_cannot_be_had_ends_with_the_code_of_a_share(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shares", "cpu:1,cpu:9999,cpu:9999000m"]) == 4
    out, err = capsys.readouterr()
    assert "cpu:1 " in out
    assert "no GPU" not in out
    assert out.count("not offered: share 'cpu:9999") == 2
    assert err == "fractune: cpu:9999, cpu:9999000m cannot be had here; the reasons are printed above\n"


def test_this_machine_lists_its_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shares"]) == 0
    said = capsys.readouterr().out
    assert "cpu:1" in said
    assert f"the kernel shows {units_text(len(os.sched_getaffinity(0)), 'CPU')} of " in said
    assert "\nCPU limit of this process: " in said
    assert re.search("\n(CPU limits can be made by a|no limit can be made: )", said)


@pytest.fixture
def h200(monkeypatch: pytest.MonkeyPatch) -> str:
    gpu = SimulatedGpu(MODELS["H200"])
    monkeypatch.setattr(nvml, "open_nvml", lambda: nvml.NvidiaMl(SimulatedNvml(gpu)))
    return gpu.uuid


def test_a_layout_is_printed_and_nothing_is_run(
    h200: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path / 'notes'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    lines = [f"nvidia-smi -i {h200} -mig 1", f"nvidia-smi mig -i {h200} -cgi 9:4,5:0 -C"]
    assert main(["shares", "--mig-layout", "3g+4g"]) == 0
    assert capsys.readouterr().out.splitlines() == lines
    assert main(["shares", "--mig-layout", "3g+4g", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"event": "layout", "commands": lines}
    assert not (tmp_path / "notes").exists()
    assert (
        main(["shares", "--mig-layout", "3g+4g", "--apply"]) == 4
    )  # this program makes no instances: the mode stays off
    assert (tmp_path / "notes").read_text() == "run\n"
    assert "is pending, not in force" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--apply"], 2, "--apply runs the commands of a layout"),
        (["--mig-layout", "3g+4g", "--prove"], 2, "--mig-layout changes the shares that --prove checks"),
        (["--mig-layout", "4g+4g"], 2, "does not fit"),
        (["cpu:1", "--mig-layout", "3g+4g"], 2, "--mig-layout divides a whole GPU; leave 'cpu:1' out"),
        (["cpu:0m"], 2, "0m allows no CPU time"),
        (["--mig-layout", "many"], 2, "'many' is no instance"),
    ],
)
@pytest.mark.usefixtures("h200")
def test_wrong_options(options: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["shares", *options]) == code
    assert says in capsys.readouterr().err


def test_a_layout_needs_a_gpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def none() -> None:
        raise nvml.NoNvidiaDriver("no NVIDIA driver on this machine")

    monkeypatch.setattr(nvml, "open_nvml", none)
    assert main(["shares", "--mig-layout", "3g+4g"]) == 4
    assert "no NVIDIA driver" in capsys.readouterr().err


def test_what_a_container_was_handed_is_printed_and_nonsense_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stage(monkeypatch, offer("full", 132))
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "25")
    assert main(["shares"]) == 0
    assert "environment: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=25: at most this part" in capsys.readouterr().out
    assert main(["shares", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (found["event"], found["percentage"], len(found["lines"])) == ("environment", "25", 1)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "a quarter")
    assert main(["shares"]) == 2
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE is 'a quarter': set it to" in capsys.readouterr().err
