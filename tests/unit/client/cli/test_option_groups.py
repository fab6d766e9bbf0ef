"""Every command with --server takes the options for credentials; they set its environment, for file names only."""

from __future__ import annotations

import os

import pytest
import typer

from fractune.cli import build_app, main
from fractune.server.credentials import VARIABLES
from fractune.text.text import (
    parse_bytes,
    parse_lifetime_s,
    parse_millicores,
    parse_rate_per_s,
    parse_time_s,
)
from fractune_core.errors import BadRequest

OPTIONS = {f"--{name.replace('_', '-')}" for name in VARIABLES}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    for variable in VARIABLES.values():
        monkeypatch.setenv(variable, "")  # so that what a command sets is taken back


def options_of(command: object) -> dict[str, set[str]]:
    """The options of each command, by its name; those of groups too."""
    found: dict[str, set[str]] = {}
    for name, each in getattr(command, "commands", {}).items():
        inner = options_of(each)
        found |= {f"{name} {key}": value for key, value in inner.items()} or {
            name: {opt for parameter in each.params for opt in parameter.opts}
        }
    return found


def test_they_go_with_server() -> None:
    found = options_of(typer.main.get_command(build_app("")))
    assert {"tune", "jobs", "log show", "admin token create"} <= found.keys()
    for name, options in found.items():
        assert options & OPTIONS == (OPTIONS if "--server" in options else set()), name


def test_they_set_the_environment_while_the_command_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRACTUNE_CA", "former")
    monkeypatch.delenv("FRACTUNE_TOKEN_FILE")
    assert main(["jobs", "--server", "h:1", "--token-file", "t", "--ca", "c", "--client-key", "k"]) == 2
    assert "--ca c: cannot be read" in capsys.readouterr().err
    assert (os.environ["FRACTUNE_CA"], os.environ.get("FRACTUNE_TOKEN_FILE")) == ("former", None)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--tls-cert", "c"], "--tls-cert and --tls-key go together"),
        (["--tls-key", "k"], "--tls-cert and --tls-key go together"),
        (["--client-ca", "a"], "--client-ca a: client certificates need TLS"),
        (["--upload-limit", "2GB"], "--upload-limit '2GB': write a size"),
    ],
)
def test_what_a_server_refuses(
    options: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FRACTUNE_SECRET", "s")
    monkeypatch.setattr("fractune.cli.commands.fleet.launch.run_server", lambda *_, **__: pytest.fail("started"))
    assert main(["server", "--redis", "unix:///nowhere", *options]) == 2
    assert says in capsys.readouterr().err


def test_sizes_and_times() -> None:
    assert [parse_bytes("--x", text) for text in ("7", "2KiB", "3GiB")] == [7, 2048, 3 << 30]
    assert [parse_lifetime_s("--x", text) for text in ("12h", "2d")] == [43_200, 172_800]
    for text in ("", "0", "-1", "1.5GiB", "1GB", "GiB", "٣", "8388608TiB", "9" * 5000):
        with pytest.raises(BadRequest, match="--x"):
            parse_bytes("--x", text)
    for text in ("", "0d", "30", "30m", "d", "36501d"):
        with pytest.raises(BadRequest, match="--x"):
            parse_lifetime_s("--x", text)


def test_rates_short_times_and_thousandths_of_a_core() -> None:
    assert [parse_time_s("--x", text) for text in ("50ms", "1.5s", "800 us")] == pytest.approx([0.05, 1.5, 8e-4])
    assert [parse_rate_per_s("--x", text) for text in ("18/s", "600/min", "0.5/s")] == pytest.approx([18, 10, 0.5])
    assert parse_millicores("--x", "50m") == 50
    for text in ("", "50", "0ms", "-5ms", "1h", "1e3ms", "ms", "inf s", "5 ms x", "9" * 5000 + "s"):
        with pytest.raises(BadRequest, match="--x"):
            parse_time_s("--x", text)
    for text in ("", "18", "0/s", "-1/s", "18/day", "/s", "nan/s"):
        with pytest.raises(BadRequest, match="--x"):
            parse_rate_per_s("--x", text)
    for text in ("", "50", "0m", "0.05", "50ms"):
        with pytest.raises(BadRequest, match="--x"):
            parse_millicores("--x", text)
