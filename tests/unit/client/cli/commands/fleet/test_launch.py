"""`fractune worker`: options that do not fit its role are refused before anything is imported or reached."""

from __future__ import annotations

import pytest

from fractune.cli import main
from fractune_core.fleet.options import WorkerOptions


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--role", "measure"], "needs a share"),
        (["--role", "build", "--share", "cpu:1"], "--share cpu:1: only a measure worker has a share"),
        (["--role", "build", "--margin", "2"], "--margin 2.0: only a measure worker races"),
        (["--role", "compile", "--max-model-memory", "lots"], "--max-model-memory 'lots': write a size"),
        (["--role", "compile", "--max-model-memory", "512MiB"], "--max-model-memory '512MiB': TVM alone takes"),
        (["--role", "measure", "--share", "cpu:1", "--margin", "0.5"], "--margin 0.5: it is a factor"),
        (["--role", "measure", "--share", "cpu:1", "--cache", "cold"], "--cache cold: only a measure worker with"),
        (["--role", "build", "--cache", "cold"], "--cache cold: only a measure worker with a share of a GPU"),
        (["--role", "measure", "--share", "gpu:1"], "unknown mechanism 'gpu'"),
        (["--role", "paint"], "'paint' is not one of"),
    ],
)
def test_options_that_do_not_fit_the_role(
    options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setenv("FRACTUNE_SECRET", "s")
    monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_worker", lambda *_, **__: pytest.fail("started"))
    assert main(["worker", "--redis", "unix:///nowhere", *options]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[WorkerOptions]:
    """The options of every worker that the command would have become."""
    options: list[WorkerOptions] = []
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_worker", options.append)
    monkeypatch.setenv("FRACTUNE_SECRET", "s")
    return options


def test_the_environment_may_name_redis(monkeypatch: pytest.MonkeyPatch, started: list[WorkerOptions]) -> None:
    monkeypatch.setenv("FRACTUNE_REDIS", "unix:///from/the/environment")
    assert main(["worker", "--role", "build"]) == 0
    assert main(["worker", "--role", "build", "--redis", "unix:///typed"]) == 0
    assert [options.redis_url for options in started] == ["unix:///from/the/environment", "unix:///typed"]
