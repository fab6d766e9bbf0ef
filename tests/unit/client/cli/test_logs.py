"""What the server and the workers log, as text and as JSON."""

from __future__ import annotations

import json
import logging
from datetime import datetime

import pytest

from fractune.cli.logs import LogFormat, LogLevel, set_up_logs


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
