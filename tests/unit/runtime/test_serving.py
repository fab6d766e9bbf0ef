"""What the servers around a bundle share: bounds of what comes in, and settings from the environment."""

import asyncio
import json
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from fractune.local.model_server import SERVERS
from fractune_runtime import serving
from fractune_runtime.serving import BodyLimit, Protocol, settings
from tests.support.real_bundle import Small


async def echo(scope: dict[str, Any], receive: Any, send: Any) -> None:
    """Answers with the size of the body, or fails, as frameworks do, when the client has gone."""
    del scope
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ConnectionError
        size, more = size + len(message["body"]), message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


async def asked(app: BodyLimit, pieces: list[bytes | None]) -> tuple[int, bytes, int]:
    """The status, the answer, and how many pieces were read. At None the client stops for ever."""
    sent: list[dict[str, Any]] = []
    read = iter(enumerate(pieces, 1))
    count = 0

    async def receive() -> dict[str, Any]:
        nonlocal count
        count, piece = next(read)
        if piece is None:
            await asyncio.sleep(3600)
        return {"type": "http.request", "body": piece, "more_body": count < len(pieces)}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http"}, receive, send)
    return sent[0]["status"], sent[1]["body"], count


def test_a_body_is_read_to_its_limit_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent after that is dropped for a while, so that the client sees its answer."""
    monkeypatch.setattr(serving, "MOST_BODY_BYTES", 100)
    monkeypatch.setattr(serving, "_MOST_DROPPED_BYTES", 100)
    app = BodyLimit(echo)
    assert asyncio.run(asked(app, [b"x" * 50, b"x" * 50])) == (200, b"100", 2)
    status, answer, read = asyncio.run(asked(app, [b"x" * 50] * 9))
    assert (status, read) == (413, 5)
    assert b"more than 100 bytes" in answer
    assert app.held_bytes == 0


def test_a_client_that_stops_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_SILENT_S", 0.01)
    status, answer, _ = asyncio.run(asked(BodyLimit(echo), [b"x", None]))
    assert status == 408
    assert b"stopped" in answer


def test_all_bodies_together_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_MOST_HELD_BYTES", 100)
    monkeypatch.setattr(serving, "_SILENT_S", 0.01)
    app = BodyLimit(echo)

    async def beside() -> Any:
        return await asyncio.gather(asked(app, [b"x" * 60, None]), asked(app, [b"x" * 60]))

    assert [status for status, _, _ in asyncio.run(beside())] == [408, 503]
    assert asyncio.run(asked(app, [b"x" * 60]))[0] == 200


@pytest.mark.parametrize(
    ("name", "text", "code", "complaint"),
    [
        ("BUNDLE", "", 2, "BUNDLE is not set"),
        ("BUNDLE", "/none.fractune", 8, "BUNDLE: none.fractune"),
        ("REPLICAS", "-1", 2, "REPLICAS='-1': give a number from 1 to 4096"),
        ("THREADS", "9" * 5000, 2, f"THREADS='{'9' * 40}': give"),
        ("THREADS", "0000000019999", 2, "THREADS='0000000019999': give a number from 1 to 4096"),
        ("PORT", "70000", 2, "PORT='70000': give a number from 1 to 65535"),
    ],
)
def test_a_wrong_setting_is_one_line(
    small: Small,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    text: str,
    code: int,
    complaint: str,
) -> None:
    monkeypatch.setenv("BUNDLE", str(small.bundle))
    monkeypatch.setenv(name, text)
    with pytest.raises(SystemExit) as ended:
        serving.port() if name == "PORT" else settings()
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, line.startswith("fractune: ")) == (code, True)
    assert complaint in line


def test_a_port_in_use_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(serving, "HOST", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        monkeypatch.setenv("PORT", str(number))
        with pytest.raises(SystemExit) as ended:
            serving.port()
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2
    assert line.startswith(f"fractune: cannot listen on 127.0.0.1:{number}: it is in use, or ")
    assert serving.port() == number


@pytest.mark.parametrize("name", SERVERS)
def test_a_server_without_its_package_says_what_to_install(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in SERVERS[name]:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"fractune_runtime.serving.{name}", run_name="__main__")
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1
    assert line.replace("'", "").startswith("fractune: this server cannot start (import of ")
    assert f"; pip install {name}" in line.replace("'", "")


def test_a_server_answers_what_the_protocol_asks_of_it(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(small.bundle))
    asked_for = []

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        del receive, send
        asked_for.append((scope["method"], scope["path"]))

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def answer(path: str, method: str = "GET") -> Any:
        sent: list[dict[str, Any]] = []

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        await Protocol(app)({"type": "http", "method": method, "path": path}, receive, send)
        return json.loads(sent[1]["body"]) if sent else None

    assert asyncio.run(answer("/v2/health/live/")) == {"live": True}
    assert asyncio.run(answer("/v2"))["name"] == "fractune"
    model = asyncio.run(answer("/v2/models/model"))
    assert (model["name"], model["inputs"]) == (
        "model",
        [{"name": "x", "datatype": "FP32", "shape": [1, 4, 16, 16]}],
    )
    for path in ("/v2/models/model/ready", "/v2/models/other", "/v2/models/other/ready"):
        assert asyncio.run(answer(path)) is None
    assert asyncio.run(answer("/v2", "POST")) is None
    paths = ("/v2/health/ready", "/v2/models/other", "/v2/models/other/ready")
    assert asked_for == [*(("GET", path) for path in paths), ("POST", "/v2")]


def test_settings_are_those_of_the_environment(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUNDLE", str(small.bundle))
    monkeypatch.setenv("REPLICAS", "2")
    assert settings() == (str(small.bundle), {"replicas": 2})
    assert Path(settings()[0]).is_file()
