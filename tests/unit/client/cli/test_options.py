"""Options that several commands share."""

import json
import logging
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest
import typer

from fractune.cli import build_app, main
from fractune.cli.commands.fleet.launch import LogFormat, LogLevel, set_up_logs
from fractune.cli.options import parse_inputs, parse_one_size, parse_part, parse_several, parse_sizes, read_key
from fractune.features.tune.shape_jobs import read_sample
from fractune.server.credentials import VARIABLES
from fractune.text.text import parse_bytes, parse_lifetime_s, parse_millicores, parse_rate_per_s, parse_time_s
from fractune.text.toml_table import read_toml
from fractune_core.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "part"),
    [("10%", 0.1), ("0.1", 0.1), (" 10 % ", 0.1), (".5", 0.5), ("2.5%", 0.025), ("0", 0), ("1", 1), ("100%", 1)],
)
def test_a_part_is_a_percentage_or_a_fraction(text: str, part: float) -> None:
    assert parse_part("--slack", text) == pytest.approx(part)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "--slack ''"),
        ("nan", "--slack 'nan'"),
        ("%", "--slack '%'"),
        ("10", "write 10% for a percentage"),
        ("101%", "from 0 to 100 %"),
    ],
)
def test_any_other_part_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_part("--slack", text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "read",
    [lambda path: read_key("--sign", path), lambda path: read_toml(path, "the models"), read_sample],
    ids=["a key", "a table", "lengths"],
)
def test_a_file_without_an_end_is_not_read_whole(read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(BadRequest, match="File too large"):
        read(path)


def test_input_shapes_are_read() -> None:
    assert parse_inputs(["x=1,3", "scalar="]) == {"x": [1, 3], "scalar": []}
    assert parse_inputs(["x=1,3", "sr=const:16000"]) == {"x": [1, 3], "sr": "const:16000"}
    assert parse_inputs(["m=const:1", "m=1,32"]) == {"m": ([1, 32], "const:1")}
    with pytest.raises(BadRequest):
        parse_inputs(["=1"])


@pytest.mark.parametrize(("texts", "what"), [(["x=1", "x=2"], "shape"), (["x=const:1", "x=const:2"], "constant")])
def test_an_input_has_one_shape_and_one_constant(texts: list[str], what: str) -> None:
    with pytest.raises(BadRequest, match=f"--input '{texts[1]}': 'x' has a {what} already; give one"):
        parse_inputs(texts)


def test_an_axis_with_several_sizes() -> None:
    assert parse_several(["ids=1,16|64", "mask=1,16|64", "sr=const:1"]) == {
        "ids": [[1, 16], [1, 64]],
        "mask": [[1, 16], [1, 64]],
        "sr": "const:1",
    }
    assert parse_several(None) == {}
    for text in ("ids=1,16|", "ids=1,16|x", "ids=16|0"):
        with pytest.raises(BadRequest, match="--input 'ids="):
            parse_several([text])
    with pytest.raises(BadRequest, match=r"--input 'ids=1,16\|64': give one shape; tune takes several"):
        parse_inputs(["ids=1,16|64"])


def test_sizes_by_name() -> None:
    assert parse_sizes("--size", ["s=64,16,16", "x:0=auto", "past + s=8|9"]) == {
        "s": [16, 64],
        "x:0": None,
        "past + s": [8, 9],
    }
    assert parse_sizes("--lengths", ["auto"]) == {"": None}
    assert parse_sizes("--lengths", None) == {}
    for texts, says in (
        (["s"], "--size 's': write NAME=128, or NAME=16,64"),
        (["s=16,x"], "--size 's=16,x': write NAME=128, or NAME=16,64"),
        (["s=-1"], "write NAME=128"),
        (["s=" + "9" * 5000], "write NAME=128"),
        (["=16"], "write NAME=128"),
        (["s=16", "s=32"], "'s' has sizes already; give them once"),
    ):
        with pytest.raises(BadRequest, match=says):
            parse_sizes("--size", texts)
    assert parse_one_size(["s=16"]) == {"s": 16}
    for text in ("s=16,32", "s=auto"):
        with pytest.raises(BadRequest, match="--size 's': give one number; tune takes several"):
            parse_one_size([text])


OPTIONS = {f"--{name.replace('_', '-')}" for name in VARIABLES}


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_collector_gets_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(LogLevel.INFO, LogFormat.JSON)
    log = logging.getLogger("fractune_server.main")
    log.info("serving on %s", "127.0.0.1:1\nand more")
    try:
        int("torn")
    except ValueError:
        log.exception("a call failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {"level": "info", "logger": "fractune_server.main", "message": "serving on 127.0.0.1:1\nand more"}
    assert (second["level"], second["message"]) == ("error", "a call failed")
    assert "ValueError: invalid literal" in second["exception"]


@pytest.mark.parametrize(
    ("level", "told"), [(LogLevel.INFO, ["here", "worse"]), (LogLevel.WARNING, ["worse"]), (LogLevel.ERROR, [])]
)
def test_what_is_below_the_level_is_not_told(
    capsys: pytest.CaptureFixture[str], level: LogLevel, told: list[str]
) -> None:
    set_up_logs(level, LogFormat.TEXT)
    logging.getLogger("fractune_workers").info("here")
    logging.getLogger("fractune_workers").warning("worse")
    logging.getLogger("alembic").info("migrated")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == told
