"""`fractune mps`: a daemon that stays until it is stopped. The program is simulated; its daemon is a process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractune.cli import main
from fractune_core.cuda import MPS_PIPE_DIRECTORY
from fractune_workers.confinement import mps as confinement
from fractune_workers.confinement.mps import MpsConfinement
from tests.support.hardware.simulated_mps import H200, OneGpu, installed_program
from tests.support.hardware.simulated_mps_control import tell


@pytest.fixture(autouse=True)
def pipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The pipe folder of the daemon of the one GPU here."""
    monkeypatch.setattr("signal.signal", lambda *_: None)
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
    for command in ("start", "stop"):
        assert main(["mps", command]) == 4
        assert "names the daemon at /run/mps" in capsys.readouterr().err
